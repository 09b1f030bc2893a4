"""Running a sweep: from its file to its best point."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import optuna
from optuna.trial import TrialState
from rich.console import Console

from pfl.campaign.campaign import Planned, work
from pfl.cli import runs, shipped
from pfl.cli.config import Experiment
from pfl.cli.explain import UsageError, refuse
from pfl.extras.sweeps import outcome as outcomes
from pfl.extras.sweeps import pictures
from pfl.extras.sweeps.file import Sweep, read
from pfl.extras.sweeps.program import fit_words
from pfl.extras.sweeps.search import INTERRUPTED, Search, identity
from pfl.extras.sweeps.trial import UnknownMetricError, value_of
from pfl.federation.run import Callback
from pfl.results import sheets
from pfl.results.pictures import write as write_pictures
from pfl.results.settings import short_names

SEED = 42
ROOT = "loop.default_root_dir"
# W&B is off unless the user turns it on, and silent.
_QUIET_WANDB = {"WANDB_MODE": "disabled", "WANDB_SILENT": "true"}


def run(
    file: Path,
    storage: Path,
    flags: Sequence[str],
    seed: int | None = None,
    trials: int | None = None,
    retry: bool = False,
) -> None:
    """Run a sweep, or the rest of it.

    ``flags`` are those of ``pfl fit`` for every point; the seed is that of the search and of every
    point. ``retry`` runs failed points again.

    Raises:
        UsageError: The sweep cannot be run, or no point could be finished.
    """
    sweep = read(file)
    limit = sweep.run_cap if trials is None else trials
    if limit is None and sweep.method != "grid":
        raise UsageError(f"{sweep.method} never ends: give --trials N, or run_cap in {file}")
    if storage.suffix != ".db":
        raise UsageError(f"--storage: expected a file that ends in .db, got {storage}")
    flags = [*flags, *([] if seed is None else [f"--seed={seed}"])]
    swept = {name: f"the sweep sets {name}" for name in sweep.space.varied}
    refuse(flags, {**swept, "ckpt_path": "every point of a sweep starts from scratch"})
    # The runs of points stay apart from runs/<name>, unless the sweep or a flag sets the folder.
    place = [] if ROOT in sweep.space.constants else [f"--{ROOT}={storage.with_suffix('')}"]
    _announce(sweep)
    seed = SEED if seed is None else seed
    # What the user has set comes first.
    with patch.dict(os.environ, {**_QUIET_WANDB, **os.environ}):
        # Other processes may do the same at the same time.
        example = storage.with_suffix("") / "points" / f"example-{os.getpid()}.json"
        with _example_of(sweep, example):
            experiment, configs = _parse(sweep, [*place, *flags], example)
            same = identity(sweep, configs, flags, seed)
            search = Search(sweep, storage, seed, limit, same)
            if retry:
                search.retry()
            if search.missing():
                _look(experiment)
            del experiment  # and its data, as each point reads its own
        # The runs show their own progress.
        points = Points(search, [*place, *flags])
        work(points, Console(stderr=True, quiet=True), 1, lambda: points)
        if search.hopeless is not None:
            raise UsageError(search.hopeless)
        _report(search, flags)


def _announce(sweep: Sweep) -> None:
    if sweep.metric.name.startswith("test/"):
        print(
            f"warning: {sweep.path}: metric {sweep.metric.name} selects on the test data, so the "
            "best score is not an unbiased estimate; set data.init_args.val_fraction and use a "
            "val/... metric"
        )
    if sweep.unused:
        print(f"{sweep.path}: not used here: {', '.join(sweep.unused)}")
    if (early := sweep.early_terminate) is not None:
        steps = ", ".join(str(early.min_iter * early.eta**power) for power in range(3))
        print(
            f"after {steps}, ... values of {sweep.metric.name}, the best 1/{early.eta} of the "
            "points continue"
        )


@contextmanager
def _example_of(sweep: Sweep, file: Path) -> Iterator[None]:
    """Remove an example's file at the end; errors name the sweep's file in its place."""
    try:
        yield
    except UsageError as error:
        message = re.sub(rf"{re.escape(str(file))}:\d+", str(sweep.path), str(error))
        raise UsageError(message) from error
    finally:
        file.unlink(missing_ok=True)


def _parse(sweep: Sweep, flags: Sequence[str], file: Path) -> tuple[Experiment, list[str]]:
    """Parse an example point, so that mistakes of the whole sweep are found at once.

    Returns:
        The example, and the configuration files without the point's own.

    Raises:
        UsageError: The configuration is wrong.
    """
    words = shipped.with_config_files([*fit_words(sweep, sweep.space.example(), file), *flags])
    experiment = runs.fit_experiment(words)
    parts = [part for word in words for part in re.split("(?<=^--config)=", word)]
    configs = [after for word, after in pairwise(parts) if word == "--config"]
    return experiment, [config for config in configs if config != str(file)]


def _look(experiment: Experiment) -> None:
    """Read the data; anything that is wrong with them may be wrong for this point alone.

    Raises:
        UsageError: They are missing.
    """
    try:
        _ = experiment.data
    except UsageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise


@dataclass(frozen=True)
class Points:
    """The runs of a sweep, with the flags that hold for all of them."""

    search: Search
    flags: Sequence[str]

    def missing(self) -> list[Planned]:
        """Return the runs of the points that have not ended."""
        return [
            Planned(
                name=str(number + 1),
                label=f"point {number + 1}",
                home=self.search.folder / "points" / str(number + 1),
                make=partial(_run_point, self.search, number, self.flags),
            )
            for number in self.search.missing()
        ]


def _run_point(
    search: Search, number: int, flags: Sequence[str], callbacks: Sequence[Callback] = ()
) -> None:
    """Run a point, whose number counts from 0, and store its outcome.

    Raises:
        KeyboardInterrupt: The process was asked to end; the next call resumes the point.
    """
    sweep, trial, number = search.sweep, search.ask(number), number + 1
    point = sweep.space.decode(trial.params)
    short = short_names(list(sweep.space.varied))
    varied = [f"{short[name]}={outcomes.value_text(point[name])}" for name in sweep.space.varied]
    print(f"point {number} of {search.size}: {', '.join(varied)}", flush=True)
    try:
        file = search.folder / "points" / f"{number}.json"
        value = value_of([*fit_words(sweep, point, file), *flags], trial, sweep)
    except KeyboardInterrupt:
        search.end(trial, INTERRUPTED, TrialState.FAIL)
        print("the same command resumes this sweep", file=sys.stderr)
        raise
    except optuna.TrialPruned as pruned:
        search.end(trial, str(pruned), TrialState.PRUNED)
        print(f"point {number} was {pruned}")
    except UnknownMetricError as error:
        search.fail(trial, str(error), hopeless=True)
    except Exception as error:  # the other points continue, whatever the error
        if not isinstance(error, UsageError | ArithmeticError):
            traceback.print_exc()
        search.fail(trial, f"{type(error).__name__}: {error}".removeprefix("UsageError: "))
        print(f"point {number} failed: {error}", file=sys.stderr)
    else:
        search.study.tell(trial, value)
        print(f"point {number}: {sweep.metric.name} {value:.4f}")


def _report(search: Search, flags: Sequence[str]) -> None:
    """Show the outcomes.

    Raises:
        UsageError: No point was finished.
    """
    sweep, folder = search.sweep, search.folder
    table = outcomes.outcomes(sweep, trials := search.latest())
    sheet = outcomes.sheet(sweep, table)
    sheets.write([sheet], folder / "points.csv")
    sheets.show([sheet])
    for reason, points in table[table["state"] == "failed"].groupby("reason")["point"]:
        print(f"failed: point {', '.join(map(str, points))}: {reason}")
    if (table["state"] == "failed").any():
        print("--retry runs failed points again")
    if not (table["state"] == "done").any():
        raise UsageError("no point was finished")
    drawn = pictures.draw(sweep, trials)
    for picture in (one for one in drawn if one.refusal):
        print(f"no picture {picture.name}: {picture.refusal}")
    for path in (folder / "points.csv", *write_pictures(drawn, folder, ("png", "svg"))):
        print(f"wrote {path}")
    best, name = table.iloc[0], sweep.metric.name
    print(f"best: point {best['point']}, {name} {best[name]:.4f}")
    if best["folder"] is not None:
        print(f"to look at it: pfl report {shlex.quote(best['folder'])}")
    print("to repeat it:")
    point = {key: best[key] for key in sweep.space.varied}
    command = outcomes.command_line(sweep, point, flags)
    # The points' W&B was off, and without an account it cannot be on.
    off = os.environ["WANDB_MODE"] == "disabled" and "WandB" in command
    print(f"{'WANDB_MODE=disabled ' * off}{command}")
