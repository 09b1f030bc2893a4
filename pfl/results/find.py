"""Finding the runs below given paths, and their main score."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pfl.results import names
from pfl.results.files import RunError, read_cells
from pfl.results.runs import RunFolder

# Folder for the pictures of several runs, beside the runs.
PLOTS = "plots"
# Folders beside run folders, with pictures or with the runs of tables and sweeps.
APART = (PLOTS, "tables", "sweeps")


def common_score(runs: Sequence[RunFolder]) -> str:
    """Return the score by which runs are judged: the first of their main scores that all have.

    One of :data:`pfl.results.names.FIRST` takes their place if all runs have it.

    Scores of personal models come first. Runs without personal models, such as those of UniVarFL on
    a common test set, are judged by their global model.

    Raises:
        RunError: The runs have no score in common.
    """
    better = [name for name in names.FIRST if all(name in run.scores for run in runs)]
    scores = dict.fromkeys([*better, *(next(iter(run.scores)) for run in runs)])
    wanted = [f"test/{model}/{score}" for model in names.JUDGED_BY for score in scores]
    for name in wanted:
        if all(name in run.metrics for run in runs):
            return name
    lacking: dict[str, None] = {}
    for run in runs:
        run.evaluated()
        present = " and ".join(sorted(name for name in wanted if name in run.metrics))
        lacking[f"{run.path} has {present or 'none'}"] = None
    raise RunError(f"the runs have no score in common: {'; '.join(lacking)}")


def find_runs(paths: Sequence[str | Path]) -> list[RunFolder]:
    """Find the runs at some paths; a path is a run folder, or a folder of runs at any depth.

    If there are several runs, unfinished ones are left out with a note on stderr.

    Raises:
        RunError: A path has no run or a damaged one, or no run of several is finished.
    """
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        if len(paths) == 1 or path.name not in APART or _is_run(path):
            folders |= {folder.resolve(): folder for folder in _folders(path)}
    if len(folders) == 1:
        return [RunFolder.read(folder) for folder in folders.values()]
    found = {folder: _finished(folder) for folder in folders.values()}
    left_out = [str(folder) for folder, run in found.items() if run is None]
    runs = [run for run in found.values() if run is not None]
    if not runs:
        raise RunError(f"none of these runs is finished: {', '.join(left_out) or 'no run found'}")
    for name in left_out:
        print(f"{name} is left out because it is not finished", file=sys.stderr)
    return runs


def _is_run(path: Path) -> bool:
    return (path / "environment.json").is_file()


def _folders(path: Path) -> list[Path]:
    """Return the run folders below a path, by their starting times; the path itself if none is."""
    if _is_run(path) or not path.is_dir():
        return [path]
    below = (file.parent for file in path.rglob("environment.json"))
    folders = [one for one in below if not {*APART} & {*one.relative_to(path).parts}]
    # Run folders are named by their starting time.
    return sorted(folders, key=lambda folder: (folder.name, folder)) or [path]


def _finished(folder: Path) -> RunFolder | None:
    """Return the run of a folder; ``None`` if it is not finished."""
    if _is_run(folder) and len(read_cells(folder / "metrics.csv")) == 0:
        return None
    run = RunFolder.read(folder)
    return run if run.finished else None
