"""The implementation of ``pfl reproduce``: repeat a finished run and compare the numbers."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pfl.cli.config import Experiment
from pfl.cli.explain import FailedError, MissingError, UsageError, explained
from pfl.cli.reading import read
from pfl.cli.runs import RUN_REFUSALS
from pfl.cli.untrusted import PlaceError, UntrustedFile
from pfl.disk.writing import write
from pfl.results.files import RunError, read_json
from pfl.results.runs import RunFolder
from pfl.verification import portable
from pfl.verification.reproduced import compare, largest_of
from pfl.verification.rounding import DRAWS, move

# File of a run's rounding radius, in its folder.
ROUNDING = "rounding.json"


def repeat(first: RunFolder, options: argparse.Namespace) -> None:
    """Repeat a finished run and print whether its numbers agree.

    Raises:
        UsageError: The run cannot be repeated.
        MissingError: Its data are missing.
        SystemExit: The numbers differ by more than rounding.
    """
    with explained((), RunError):
        radius = read_json(first.path / ROUNDING, {"radius": float}).get("radius")
    portable.enter_like([first.environment])
    out = options.out or Path(tempfile.mkdtemp(prefix="pfl-reproduce-"))
    print(f"runs {first.path} again in {out}", flush=True)
    # The repetition is not sent to the run's loggers.
    os.environ["WANDB_MODE"] = "disabled"
    words = [f"--{word}" for word in options.set] + ["--loop.progress=false", "--loop.loggers=null"]
    words += ["--download_weights"] * options.download_weights

    def again(name: str, draw: int | None = None) -> RunFolder:
        places = [f"--loop.default_root_dir={out}", f"--loop.name={name}"]
        return _run(first.path / "config.yaml", [*words, *places], options.trust, draw)

    second = again("again")

    @cache
    def measured() -> float | None:
        if not options.radius:
            return None
        try:
            moved = [again(f"moved_{draw}", draw) for draw in range(DRAWS)]
        except FailedError:
            return None
        return max(largest_of(second, run)[1] for run in moved)

    if options.radius and radius is None and (radius := measured()) is not None:
        write(first.path / ROUNDING, json.dumps({"radius": radius}))
    comparison = compare(first, second, radius, measured)
    print(comparison)
    for line in comparison.environment:
        print(f"  {line}")
    if comparison.verdict.word == "different":
        raise SystemExit(1)


def _run(config: Path, words: Sequence[str], trusted: bool, draw: int | None) -> RunFolder:
    """Run a configuration; a ``draw`` first moves the weights by one unit in the last place.

    Raises:
        UsageError: The configuration is wrong or names something that it may not.
        MissingError: The data are missing, or the user has not given their place.
    """
    untrusted = None if trusted else UntrustedFile(config, "--set ")
    argv = ["--config", str(config), *words] if trusted else words
    try:
        experiment = Experiment.of(read("fit", argv, untrusted))
    except PlaceError as error:
        raise MissingError(f"cannot compare without the data: {error}") from error
    except SystemExit as ended:
        raise UsageError("--set: only keys of a configuration can be set") from ended
    experiment.look()
    if draw is not None:
        move(experiment.module.net, draw)
    with explained(experiment.settings, *RUN_REFUSALS):
        run = experiment.loop.fit(experiment.module, experiment.data, None, experiment.text)
        return RunFolder.read(run.folder or config.parent)
