"""``pfl reproduce``: run a finished run's configuration again, and compare the numbers."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from pfl.cli.explain import UsageError, explained
from pfl.core import portable
from pfl.federation.identity import STARTED
from pfl.results.files import RunError
from pfl.results.reproduced import compare
from pfl.results.runs import RunFolder


def reproduce(options: argparse.Namespace) -> None:
    """Run a finished run again and say whether its numbers are the same.

    Raises:
        UsageError: The run cannot be repeated.
        SystemExit: The numbers differ by more than rounding.
    """
    first = _finished(options.run)
    if first.environment.get("portable"):
        with explained((), RuntimeError):
            portable.enter()
    out = options.out or Path(tempfile.mkdtemp(prefix="pfl-reproduce-"))
    print(f"runs {first.path} again in {out}", flush=True)
    # The repetition is logged nowhere else.
    os.environ["WANDB_MODE"] = "disabled"
    from pfl.cli import runs

    config = str(first.path / "config.yaml")
    places = [f"--loop.default_root_dir={out}", "--loop.name=again", "--loop.loggers=null"]
    weights = ["--download_weights"] if options.download_weights else []
    run = runs.fit(["--config", config, *places, "--loop.progress=false", *weights])
    comparison = compare(first, RunFolder.read(run.folder or out))
    print(comparison)
    for line in comparison.environment or ("the environment is the same",):
        print(f"  {line}")
    if comparison.verdict == "different":
        raise SystemExit(1)


def _finished(path: str) -> RunFolder:
    """Return a run that can be repeated.

    Raises:
        UsageError: It is none, has not ended, or has no configuration.
    """
    with explained((), RunError):
        run = RunFolder.read(path)
    if not run.config or STARTED in run.config:
        raise UsageError(f"{path} was started from Python, so repeat that")
    if "fingerprint" not in run.summary or not run.finished:
        raise UsageError(f"{path} is not finished, so there is nothing to compare with")
    return run
