"""``pfl sweep``; the code that does the work is imported once the file is found."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from pfl.cli.explain import UsageError
from pfl.cli.yaml_file import YamlFile


def sweep(options: argparse.Namespace) -> None:
    """Run a W&B sweep file on this machine."""
    if find_spec("optuna") is None:
        raise UsageError("pfl sweep needs Optuna: pip install 'pfl-lightning[sweep]'")
    if options.trials is not None and options.trials < 1:
        raise UsageError(f"--trials: expected a whole number, at least 1, got {options.trials}")
    # A missing file is reported before Optuna and torch are imported.
    YamlFile(options.file, "sweep file")
    from pfl.extras.sweeps.run import run

    storage = options.storage or Path("runs", "sweeps", f"{options.file.stem}.db")
    run(options.file, storage, options.flags, options.seed, options.trials, options.retry)
