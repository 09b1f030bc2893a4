"""The runs that a command is about, and the score that they are judged by."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pfl.results import names
from pfl.results.files import RunError, Table
from pfl.results.runs import RunFolder

# Folder of the pictures of several runs, beside these.
PLOTS = "plots"
# What lies beside the folders of runs: pictures, and the runs of tables and of sweeps.
APART = (PLOTS, "tables", "sweeps")


def common_score(runs: Sequence[RunFolder]) -> str:
    """Return the score that runs are judged by together: the first that all of them have.

    Personal models come first. Runs without them, such as those of UniVarFL on a common test set,
    are judged by their global model.

    Raises:
        RunError: There is none.
    """
    scores = dict.fromkeys(next(iter(run.scores)) for run in runs)
    wanted = [f"test/{model}/{score}" for model in names.JUDGED_BY for score in scores]
    present = [{name for name in wanted if name in run.metrics} for run in runs]
    for name in wanted:
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
    """Find the runs that paths name: a run's folder, or a folder, which means all runs below it.

    Of several runs, those that did not come to their end are left out with a note on stderr.

    Raises:
        RunError: A path names no run, or one that is damaged; or none of several is finished.
    """
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        inside = [path]
        if path.is_dir() and not (path / "environment.json").is_file():
            if path.name in APART and len(paths) > 1:
                continue
            below = path.rglob("environment.json")
            found = [
                file.parent for file in below if not {*APART} & {*file.relative_to(path).parts}
            ]
            # A run's folder is named by the time of its start.
            inside = sorted(found, key=lambda folder: (folder.name, folder)) or inside
        folders |= {folder.resolve(): folder for folder in inside}
    if len(folders) == 1:
        return [RunFolder.read(folder) for folder in folders.values()]
    runs, left_out = [], []
    for folder in folders.values():
        if _begun(folder) and (run := RunFolder.read(folder)).finished:
            runs.append(run)
        else:
            left_out.append(str(folder))
    if not runs:
        raise RunError(f"none of these runs is finished: {', '.join(left_out) or 'there is none'}")
    for name in left_out:
        print(f"{name} is left out: it is not finished", file=sys.stderr)
    return runs


def _begun(folder: Path) -> bool:
    """Tell whether a run finished a round; what is no run's folder is for others to refuse."""
    if not (folder / "environment.json").is_file():
        return True
    return len(Table.read(folder / "metrics.csv")) > 0
