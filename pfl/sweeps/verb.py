"""``pfl sweep``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from pfl.cli.explain import UsageError


def sweep(argv: Sequence[str]) -> None:
    """Run a W&B sweep file here."""
    parser = argparse.ArgumentParser(
        prog="pfl sweep",
        usage="%(prog)s [options] FILE [flags of pfl fit]",
        description="Run a W&B sweep file here, without a network: a file of `wandb sweep`, on "
        "Optuna. The same command again resumes the sweep; started several times, the "
        "processes share the work. Other flags are those of pfl fit and hold for every point.",
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a sweep file")
    parser.add_argument(
        "--trials",
        type=int,
        metavar="N",
        help="largest number of points in all (default: the file's run_cap; a grid ends by itself)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of the search and of every point (default: 42 and what the points' "
        "configuration says)",
    )
    parser.add_argument(
        "--storage",
        type=Path,
        help="SQLite file with the points, shared by processes (default: runs/sweeps/FILE.db)",
    )
    parser.add_argument("--retry", action="store_true", help="run points again that failed")
    options, flags = parser.parse_known_args(argv)
    if find_spec("optuna") is None:
        raise UsageError("this needs Optuna: pip install 'pfl-lightning[sweep]'")
    if options.trials is not None and options.trials < 1:
        raise UsageError(f"--trials: expected a whole number from 1, got {options.trials}")
    from pfl.sweeps.run import run

    storage = options.storage or Path("runs", "sweeps", f"{options.file.stem}.db")
    run(options.file, storage, flags, options.seed, options.trials, options.retry)
