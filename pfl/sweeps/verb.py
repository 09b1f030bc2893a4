"""The command line of ``pfl sweep``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from pfl.cli.explain import UsageError
from pfl.cli.yaml_file import YamlFile


def sweep(argv: Sequence[str]) -> None:
    """Run a W&B sweep file on this machine."""
    parser = argparse.ArgumentParser(
        prog="pfl sweep",
        usage="%(prog)s [options] FILE [flags of pfl fit]",
        description="Run a sweep file of `wandb sweep` on this machine, with Optuna and without "
        "internet access. Repeat the command to resume the sweep; several processes started with "
        "the same command share the work. All other flags are those of pfl fit and apply to every "
        "point.",
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a sweep file")
    parser.add_argument(
        "--trials",
        type=int,
        metavar="N",
        help="largest total number of points (default: the file's run_cap; a grid is finite)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of the search and of every point (default: 42 for the search, the "
        "configuration's seed for points)",
    )
    parser.add_argument(
        "--storage",
        type=Path,
        help="SQLite file of the points, shared by processes (default: runs/sweeps/FILE.db)",
    )
    parser.add_argument("--retry", action="store_true", help="run failed points again")
    options, flags = parser.parse_known_args(argv)
    if find_spec("optuna") is None:
        raise UsageError("pfl sweep needs Optuna: pip install 'pfl-lightning[sweep]'")
    if options.trials is not None and options.trials < 1:
        raise UsageError(f"--trials: expected a whole number, at least 1, got {options.trials}")
    # A missing file is told before Optuna and torch are imported.
    YamlFile(options.file, "sweep file")
    from pfl.sweeps.run import run

    storage = options.storage or Path("runs", "sweeps", f"{options.file.stem}.db")
    run(options.file, storage, flags, options.seed, options.trials, options.retry)
