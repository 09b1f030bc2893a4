"""The runs that a command is about, and the score that they are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pfl.results import names
from pfl.results.files import RunError
from pfl.results.runs import RunFolder

# Folder of the pictures of several runs, beside these.
PLOTS = "plots"


def common_score(runs: Sequence[RunFolder]) -> str:
    """Return the score that runs are judged by together: the first that all of them have.

    Personal models come first. Runs without them, such as those of UniVarFL on a common test set,
    are judged by their global model.

    Raises:
        RunError: There is none.
    """
    present = [{name for name in names.JUDGED_BY if name in run.metrics} for run in runs]
    for name in names.JUDGED_BY:
        if all(name in found for found in present):
            return name
    for run in runs:
        run.evaluated()
    told = [
        f"{run.path} has {' and '.join(sorted(found)) or 'none'}"
        for run, found in zip(runs, present, strict=True)
    ]
    raise RunError(f"the runs have no score in common: {'; '.join(dict.fromkeys(told))}")


def find(paths: Sequence[str | Path]) -> list[RunFolder]:
    """Find the runs that paths name: a run's folder, or a folder of runs, which means all in it.

    Raises:
        RunError: A path names no run; or one of those that it names is damaged.
    """
    runs: dict[Path, RunFolder] = {}
    for path in map(Path, paths):
        if path.name == PLOTS and len(paths) > 1:
            continue
        folders = [path]
        if path.is_dir() and not (path / "environment.json").is_file():
            folders = sorted(file.parent for file in path.glob("*/environment.json")) or folders
        for folder in folders:
            if folder.resolve() not in runs:
                runs[folder.resolve()] = RunFolder.read(folder)
    return list(runs.values())
