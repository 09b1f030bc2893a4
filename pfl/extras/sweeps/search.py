"""The points of a sweep in a SQLite file: which are missing, and what came of the others.

Processes that share the file choose points one after another, under a lock beside it, as a choice
may depend on what others have found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import optuna
from filelock import FileLock
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState

from pfl.cli.explain import UsageError
from pfl.core.seeds import derive
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
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.sweep = sweep
        self.folder = storage.with_suffix("")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._seed = seed
        sizes = [size for size in (limit, sweep.space.size) if size is not None]
        self.size = min(sizes) if sweep.method == "grid" else limit or 0
        self._mutex = FileLock(self.folder / "choice.lock")
        _check_locks(self._mutex)
        with self._mutex:
            self.study = _open(sweep, storage, identity)

    def missing(self) -> list[int]:
        """Return the numbers of the points that have not ended.

        None is begun once the target is reached, or if runs do not have the metric.
        """
        known = {trial.user_attrs["point"]: trial for trial in self.latest()}
        if self.hopeless is not None:
            return []
        values = [one.value for one in known.values() if one.state == TrialState.COMPLETE]
        reached = any(value is not None and self.sweep.metric.reached(value) for value in values)
        wanted = {*known, *range(0 if reached else self.size)}
        return sorted(n for n in wanted if n not in known or not self._has_ended(known[n]))

    @property
    def hopeless(self) -> str | None:
        """Why no point can be finished; ``None`` if there is no reason."""
        reasons = (
            trial.user_attrs["reason"]
            for trial in self.latest()
            if trial.user_attrs.get("hopeless") and self._has_ended(trial)
        )
        return next(reasons, None)

    def _has_ended(self, trial: FrozenTrial) -> bool:
        if failed(trial):
            return trial.number not in self.study.user_attrs.get("retried", ())
        return trial.state in (TrialState.COMPLETE, TrialState.PRUNED)

    def ask(self, number: int) -> Trial:
        """Return a trial of a point that this process has claimed.

        The run of an earlier trial is resumed if its folder has a checkpoint.
        """
        with self._mutex:
            seed, space = derive(self._seed, "point", number), self.sweep.space
            last = next((one for one in self.latest() if one.user_attrs["point"] == number), None)
            if last is None:
                grid = self.sweep.method == "grid"
                choices = space.on_grid(number) if grid else {}
            else:
                choices = {**last.system_attrs.get("fixed_params", {}), **last.params}
                if last.state == TrialState.RUNNING:  # whose process has lost its claim
                    self.end(Trial(self.study, last._trial_id), KILLED, TrialState.FAIL)
            folder = None if last is None else last.user_attrs.get("folder")
            self.study.enqueue_trial(choices, {"point": number, "folder": folder})
            sampler = TPESampler if self.sweep.method == "bayes" else RandomSampler
            # Optuna's seeds have 32 bits.
            self.study.sampler = sampler(seed=seed % 2**32)
            return self.study.ask({**space.varied})

    def fail(self, trial: Trial, reason: str, hopeless: bool = False) -> None:
        """Store that a point failed, and whether all others would.

        Optuna's samplers ignore failed trials. For ``bayes`` they are stored as pruned, which ranks
        below all trials with a value: as in W&B, a failure counts as the worst outcome.
        """
        trial.set_user_attr("failed", True)
        trial.set_user_attr("hopeless", hopeless)
        bayes = self.sweep.method == "bayes"
        self.end(trial, reason, TrialState.PRUNED if bayes else TrialState.FAIL)

    def end(self, trial: Trial, reason: str, state: TrialState) -> None:
        """Store that a point ended without a value; after ``FAIL`` alone it is missing."""
        trial.set_user_attr("reason", reason)
        self.study.tell(trial, state=state)

    def retry(self) -> None:
        """Let all failed points be missing."""
        with self._mutex:
            lost = [trial.number for trial in self.latest() if failed(trial)]
            self.study.set_user_attr("retried", lost)

    def latest(self) -> list[FrozenTrial]:
        """Return the last trial of each point, in the order of the points."""
        points = {
            trial.user_attrs["point"]: trial for trial in self.study.get_trials(deepcopy=False)
        }
        return [points[number] for number in sorted(points)]


def _check_locks(mutex: FileLock) -> None:
    """Refuse a file system without locks: a file in their place does not protect SQLite's file.

    Raises:
        UsageError: There are none.
    """
    try:
        with mutex:
            pass
    except OSError as error:
        raise UsageError(
            f"--storage: the file system of {mutex.lock_file} has no locks ({error}), and without "
            "them SQLite may lose points: choose a file on a disk of this machine; "
            "--loop.default_root_dir=DIR puts the runs elsewhere"
        ) from error


def failed(trial: FrozenTrial) -> bool:
    """Return ``True`` if a trial failed; it was neither stopped early nor interrupted."""
    return bool(trial.user_attrs.get("failed"))


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
    if (early := sweep.early_terminate) is not None:
        pruner = SuccessiveHalvingPruner(early.min_iter, reduction_factor=early.eta)
    for name in optuna.get_all_study_names(store):
        study = optuna.load_study(study_name=name, storage=store, pruner=pruner)
        stored = study.user_attrs.get("identity", {})
        if stored == identity:
            for trial in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                # Earlier versions queue what is missing; so does who is killed in the middle.
                study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
            return study
        if not all(failed(trial) for trial in study.get_trials(deepcopy=False)):
            other = [
                what for what in {**stored, **identity} if stored.get(what) != identity.get(what)
            ]
            raise UsageError(
                f"{storage} has the points of another sweep, which differs in "
                f"{' and '.join(other)}; choose another file by --storage, or remove this one"
            )
        # All its points failed, and the sweep has been changed since.
        optuna.delete_study(study_name=name, storage=store)
    study = optuna.create_study(
        study_name=sweep.path.stem, storage=store, direction=sweep.metric.goal, pruner=pruner
    )
    study.set_user_attr("identity", dict(identity))
    return study
