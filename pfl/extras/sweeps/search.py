"""The points of a sweep in a SQLite file: the next one, finished ones, and those in progress.

Processes that share the file coordinate through file locks beside it. One lock guards the choice of
a point, so that no point is chosen twice. Another one is held by each process while it lives: if
the lock of a running point's process is free, the process was killed and the point is queued again.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState

from pfl.cli.explain import UsageError
from pfl.core.seeds import derive
from pfl.disk.lock import NoLocksError, hold
from pfl.disk.reading import first_line
from pfl.extras.sweeps.file import Sweep

# Reasons why a trial ended without a value.
KILLED, INTERRUPTED = "its process was killed", "interrupted"


class Search:
    """Chooses the points of a sweep and stores their outcomes.

    Args:
        sweep: The sweep.
        storage: The SQLite file; created if it is missing.
        seed: Seed of all draws. A point's draws depend on its number and, for ``bayes``, on the
            outcomes so far.
        limit: Largest number of points, including those of earlier calls and other processes.
        identity: Named values that must be the same whenever the file is used.

    Raises:
        UsageError: The file belongs to another sweep, or is not a storage of sweeps, or its file
            system has no locks.
    """

    def __init__(
        self, sweep: Sweep, storage: Path, seed: int, limit: int | None, identity: Mapping[str, str]
    ) -> None:
        self.sweep = sweep
        self.folder = storage.with_suffix("")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._seed = seed
        sizes = [size for size in (limit, sweep.space.size) if size is not None]
        self.size = min(sizes) if sweep.method == "grid" else limit or 0
        choice = self.folder / "choice.lock"
        _check_locks(choice)
        self._mutex = FileLock(choice)
        self._worker = uuid.uuid4().hex
        self._alive = self._lock(self._worker)
        self._alive.acquire()
        with self._mutex:
            self.study = _open(sweep, storage, identity)

    def close(self) -> None:
        """Release this process's lock."""
        self._alive.release()
        Path(self._alive.lock_file).unlink(missing_ok=True)

    def claim(self) -> Trial | None:
        """Return the next point's trial, or ``None`` if no point is left to start."""
        with self._mutex:
            self._requeue_killed()
            waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            number = waiting[0].user_attrs["point"] if waiting else len(self.latest())
            seed, space = derive(self._seed, "point", number), self.sweep.space
            if not waiting:
                if number >= self.size or self._reached():
                    return None
                grid = self.sweep.method == "grid"
                self._enqueue(number, space.on_grid(number) if grid else space.weighted(seed))
            sampler = TPESampler if self.sweep.method == "bayes" else RandomSampler
            # Optuna's seeds have 32 bits.
            self.study.sampler = sampler(seed=seed % 2**32)
            trial = self.study.ask(space.distributions)
            trial.set_user_attr("worker", self._worker)
        return trial

    def fail(self, trial: Trial, reason: str) -> None:
        """Store that a point failed.

        Optuna's samplers ignore failed trials. For ``bayes`` they are stored as pruned, which ranks
        below all trials with a value: as in W&B, a failure counts as the worst outcome.
        """
        trial.set_user_attr("failed", True)
        bayes = self.sweep.method == "bayes"
        self.end(trial, reason, TrialState.PRUNED if bayes else TrialState.FAIL)

    def end(self, trial: Trial, reason: str, state: TrialState) -> None:
        """Store that a point ended without a value."""
        trial.set_user_attr("reason", reason)
        self.study.tell(trial, state=state)

    def interrupt(self, trial: Trial) -> None:
        """Queue an unfinished point again."""
        with self._mutex:
            self.end(trial, INTERRUPTED, TrialState.FAIL)
            self._again(self.study.trials[trial.number])

    def retry(self) -> None:
        """Queue all failed points again."""
        with self._mutex:
            for trial in self.latest():
                if failed(trial):
                    self._again(trial)

    def latest(self) -> list[FrozenTrial]:
        """Return the last trial of each point, in the order of the points."""
        points = {
            trial.user_attrs["point"]: trial for trial in self.study.get_trials(deepcopy=False)
        }
        return [points[number] for number in sorted(points)]

    def _reached(self) -> bool:
        values = [trial.value for trial in self.latest() if trial.state == TrialState.COMPLETE]
        return any(value is not None and self.sweep.metric.reached(value) for value in values)

    def _requeue_killed(self) -> None:
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            worker = trial.user_attrs.get("worker")
            if worker == self._worker or (worker is not None and not self._is_gone(worker)):
                continue
            self.end(Trial(self.study, trial._trial_id), KILLED, TrialState.FAIL)
            self._again(trial)

    def _again(self, trial: FrozenTrial) -> None:
        """Queue a trial's point; its run is resumed if its folder has a checkpoint."""
        choices = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        self._enqueue(trial.user_attrs["point"], choices, trial.user_attrs.get("folder"))

    def _enqueue(self, number: int, choices: Mapping[str, Any], folder: str | None = None) -> None:
        self.study.enqueue_trial(dict(choices), {"point": number, "folder": folder})

    def _lock(self, worker: str) -> FileLock:
        return FileLock(self.folder / f"{worker}.lock")

    def _is_gone(self, worker: str) -> bool:
        lock = self._lock(worker)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)
        return True


def _check_locks(file: Path) -> None:
    """Refuse a file system without locks: a file in their place does not protect SQLite's file.

    Raises:
        UsageError: There are none.
    """
    try:
        descriptor = hold(file, os.O_RDWR | os.O_CREAT)
    except NoLocksError as error:
        raise UsageError(
            f"--storage: {error}, and without them SQLite may lose points: choose a file on a disk "
            "of this machine; --loop.default_root_dir=DIR puts the runs elsewhere"
        ) from error
    if descriptor is not None:
        os.close(descriptor)


def failed(trial: FrozenTrial) -> bool:
    """Return ``True`` if a trial ended without a value and was not stopped early."""
    return trial.state == TrialState.FAIL or bool(trial.user_attrs.get("failed"))


def identity(
    sweep: Sweep, configs: Sequence[str], flags: Sequence[str], seed: int
) -> dict[str, str]:
    """Return named values that all points of a sweep have in common.

    Of the sweep's file the content counts, not comments or layout; of configuration files the text.
    """
    content = json.dumps(sweep.content, sort_keys=True, default=str)
    return {
        "the sweep file": _digest(content),
        **{f"the file {path}": _digest(Path(path).read_text("utf-8")) for path in configs},
        "the flags": " ".join(flags),
        "the seed": str(seed),
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _open(sweep: Sweep, storage: Path, identity: Mapping[str, str]) -> optuna.Study:
    # Another process may be writing for a moment.
    url, options = f"sqlite:///{storage}", {"connect_args": {"timeout": 60}}
    try:
        store = optuna.storages.RDBStorage(url, engine_kwargs=options)
    except Exception as error:
        what = f"this is not a storage of sweeps: {first_line(error)}"
        raise UsageError(f"--storage {storage}: {what}") from error
    pruner: BasePruner = NopPruner()
    if sweep.early is not None:
        pruner = SuccessiveHalvingPruner(sweep.early.first, reduction_factor=sweep.early.eta)
    for name in optuna.get_all_study_names(store):
        study = optuna.load_study(study_name=name, storage=store, pruner=pruner)
        stored = study.user_attrs.get("identity", {})
        if stored == identity:
            return study
        if not all(failed(trial) for trial in study.get_trials(deepcopy=False)):
            other = [
                what for what in {**stored, **identity} if stored.get(what) != identity.get(what)
            ]
            raise UsageError(
                f"{storage} holds the points of another sweep, which differs in "
                f"{' and '.join(other)}; choose another file by --storage, or remove this one"
            )
        # All its points failed, and the sweep has been changed since.
        optuna.delete_study(study_name=name, storage=store)
    study = optuna.create_study(
        study_name=sweep.path.stem, storage=store, direction=sweep.metric.goal, pruner=pruner
    )
    study.set_user_attr("identity", dict(identity))
    return study
