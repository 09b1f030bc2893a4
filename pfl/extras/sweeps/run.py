"""Running a sweep: from its file to its best point."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import optuna
from filelock import BaseFileLock, FileLock
from optuna.pruners import NopPruner, SuccessiveHalvingPruner
from rich.console import Console

from pfl.campaign.campaign import work
from pfl.cli.config import Experiment
from pfl.cli.explain import UsageError, refuse
from pfl.disk.reading import first_line
from pfl.extras.sweeps import report
from pfl.extras.sweeps.file import Sweep, read
from pfl.extras.sweeps.points import Points
from pfl.extras.sweeps.program import fit_words
from pfl.federation import identity
from pfl.results.sheets import show, write

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
    size = _size(sweep, trials)
    if storage.suffix != ".db":
        raise UsageError(f"--storage: expected a file that ends in .db, got {storage}")
    if sweep.metric.name.startswith("test/"):
        print(
            f"warning: {file}: metric {sweep.metric.name} selects on the test data, so the best "
            "score is not an unbiased estimate; set data.init_args.val_fraction and use a val/... "
            "metric"
        )
    if sweep.unused:
        print(f"{file}: not used here: {', '.join(sweep.unused)}")
    flags = [*flags, *([] if seed is None else [f"--seed={seed}"])]
    swept = {name: f"the sweep sets {name}" for name in sweep.varied}
    refuse(flags, {**swept, "ckpt_path": "every point of a sweep starts from scratch"})
    # The runs of points stay apart from runs/<name>, unless the sweep or a flag sets the folder.
    place = [] if ROOT in sweep.constants else [f"--{ROOT}={storage.with_suffix('')}"]
    # What the user has set comes first.
    with patch.dict(os.environ, {**_QUIET_WANDB, **os.environ}):
        seed = SEED if seed is None else seed
        # Mistakes of the whole sweep are found at once.
        first = {key: one.first for key, one in sweep.varied.items()}
        words = fit_words(sweep, {**first, **sweep.constants}, None)
        example = Experiment.parse("fit", [*words, *place, *flags])
        study, mutex = _opened(sweep, storage, example.text, seed)
        try:
            _ = example.data
        except UsageError as error:
            # Anything else that is wrong with the data may be wrong for this point alone.
            if isinstance(error.__cause__, FileNotFoundError):
                raise
        folder = storage.with_suffix("")
        points = Points(sweep, study, mutex, folder, [*place, *flags], seed, size)
        if retry:
            points.retry()
        try:
            # The runs show their own progress.
            work(points, Console(stderr=True, quiet=True), 1, lambda: points)
        except KeyboardInterrupt:
            print("the same command resumes this sweep", file=sys.stderr)
            raise
        if points.refusal is not None:
            raise points.refusal
        _report(points, flags)


def _size(sweep: Sweep, trials: int | None) -> int:
    """Return the number of points: those of a grid, or as many as are wanted.

    Raises:
        UsageError: The search has no end.
    """
    limits = [sweep.run_cap if trials is None else trials]
    limits += [sweep.size if sweep.method == "grid" else None]
    if not (known := [limit for limit in limits if limit is not None]):
        raise UsageError(f"{sweep.method} never ends: give --trials N, or run_cap in {sweep.path}")
    return min(known)


def _opened(
    sweep: Sweep, storage: Path, config: str, seed: int
) -> tuple[optuna.Study, BaseFileLock]:
    """Return the study of a sweep, and the lock for choosing points.

    A sweep with another configuration or seed is another study in the same file.

    Raises:
        UsageError: The file is not a storage of sweeps, or its file system has no locks.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    (folder := storage.with_suffix("")).mkdir(parents=True, exist_ok=True)
    mutex, early = FileLock(folder / "choice.lock"), sweep.early_terminate
    halving = early and SuccessiveHalvingPruner(early.min_iter, reduction_factor=early.eta)
    content = [sweep.method, sweep.metric, sweep.parameters, early, config, seed]
    try:
        with mutex:
            # Another process may be writing for a moment.
            options = {"connect_args": {"timeout": 60}}
            study = optuna.create_study(
                storage=optuna.storages.RDBStorage(f"sqlite:///{storage}", options),
                pruner=halving or NopPruner(),
                study_name=f"{sweep.path.stem}-{identity.digest({'sweep': content})}",
                direction=sweep.metric.goal,
                load_if_exists=True,
            )
    except Exception as error:
        what = "it is no storage of sweeps, or its file system has no locks, which SQLite needs"
        raise UsageError(f"--storage {storage}: {what}: {first_line(error)}") from error
    return study, mutex


def _report(points: Points, flags: Sequence[str]) -> None:
    """Show the outcomes.

    Raises:
        UsageError: No point was finished.
    """
    sweep, file = points.sweep, points.folder / "points.csv"
    records = report.outcomes(points)
    write([sheet := report.sheet(points, records)], file)
    show([sheet])
    if failed := [str(one["point"]) for one in records if one["state"] == "failed"]:
        print(f"{file} says why points failed: {', '.join(failed)}; --retry runs them again")
    best, name = records[0], sweep.metric.name
    if best["state"] != "done":
        raise UsageError("no point was finished")
    for line in report.draw(points):
        print(line)
    print(f"wrote {file}\nbest: point {best['point']}, {name} {best[name]:.4f}")
    if best["folder"] is not None:
        print(f"to look at it: pfl report {shlex.quote(best['folder'])}")
    point = {**{key: best[key] for key in sweep.varied}, **sweep.constants}
    command = f"pfl fit {shlex.join([*fit_words(sweep, point, None), *flags])}"
    # The points' W&B was off, and without an account it cannot be on.
    off = os.environ["WANDB_MODE"] == "disabled" and "WandB" in command
    print(f"to repeat it:\n{'WANDB_MODE=disabled ' * off}{command}")
