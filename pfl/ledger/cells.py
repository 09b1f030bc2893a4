"""The folders of the ledger: each holds a finished run, without checkpoints, and its cell."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfl.cli import shipped
from pfl.cli.explain import UsageError
from pfl.disk.form import FormError, formed
from pfl.disk.reading import read_json, read_yaml
from pfl.engines.cores import processor
from pfl.federation import identity
from pfl.federation.identity import Identity
from pfl.results.files import RunError
from pfl.results.runs import RunFolder
from pfl.tables import cells as tables
from pfl.tables import kept
from pfl.tables.plan import TablePlan
from pfl.tables.spec import TableFile

# Files of a run that the ledger stores, and those of them that are compressed if they are long.
PACKED = ("clients.csv", "partition.json")
FILES = ("config.yaml", "environment.json", "metrics.csv", "summary.json", *PACKED)
_LONG = 50_000  # bytes


@dataclass(frozen=True)
class Entry:
    """One run of one cell.

    Attributes:
        paper: The paper.
        table: Name of the table in the paper.
        row: Label of the row.
        column: Label of the column on each axis.
        seed: Seed of the run.
        metric: Name of the number in ``summary.json``, for instance ``test/personal/acc/last``.
        reported: The paper's number as a fraction; ``None`` if it prints none.
        spread: The number after the paper's ±, as a fraction; ``None`` if it prints none.
        partition: Hash of the assignment of samples to clients.
        released: Whether it has the paper's own numbers of samples by client and class, from its
            released code; otherwise it is a draw of our own from the same law.
        commit: The project's commit that ran it.
        hardware: Processor and cores.
        note: Differences from the paper's set-up that could not be helped, such as the images.
        departure: Settings other than the table's, chosen to see what a number depends on; empty
            for a cell of the table.
    """

    paper: str
    table: str
    row: str
    column: dict[str, str]
    seed: int
    metric: str
    reported: float | None
    spread: float | None
    partition: str
    commit: str
    hardware: str
    note: str
    released: bool = False
    departure: str = ""

    @property
    def key(self) -> str:
        """Name of the entry's folder."""
        parts = [self.paper, self.table, self.row, *(f"{k} {v}" for k, v in self.column.items())]
        words = [*parts, f"seed {self.seed}", *(["released partition"] if self.released else [])]
        words += [self.departure] if self.departure else []
        return "_".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-") for word in words)


@dataclass(frozen=True)
class Told:
    """What whoever keeps runs tells of them: see the attributes of :class:`Entry`."""

    commit: str
    note: str = ""
    departure: str = ""


def keep(
    folder: Path, table: TableFile, plan: TablePlan, told: Told
) -> Iterator[tuple[str, str | None]]:
    """Copy the finished runs of a table into the ledger.

    Args:
        folder: Folder of the ledger.
        table: The table.
        plan: Runs of the table.
        told: What is told of the runs.

    Yields:
        The label of each run, with the reason if it was not copied.
    """
    for cell, names in plan.names.items():
        for seed, name in names.items():
            label = f"{cell.label}, seed {seed}"
            source = kept.finished(plan.runs[name])
            if source is None:
                yield label, "not finished"
                continue
            run = RunFolder.read(source)
            entry = _entry(table, cell, seed, run, told)
            _checked(entry, run)
            _copy(source, folder / entry.key, entry)
            yield label, None


def _entry(table: TableFile, cell: tables.Cell, seed: int, run: RunFolder, told: Told) -> Entry:
    reported, of_table = cell.reported, table.common.reported or {}
    return Entry(
        paper=of_table.get("paper", ""),
        table=of_table.get("table", table.path.stem),
        row=cell.row,
        column=dict(cell.column),
        seed=seed,
        metric=f"{cell.metric}/{cell.at}",
        reported=None if reported is None else reported.value,
        spread=None if reported is None else reported.error,
        partition=run.split_hash,
        commit=told.commit,
        hardware=hardware(run.environment),
        note=told.note,
        released=is_released(of_table.get("paper", ""), run.partition),
        departure=told.departure,
    )


def is_released(paper: str, partition: Mapping[str, Any]) -> bool:
    """Return whether a partition was dealt as the shipped overlay of the paper's released code.

    Args:
        paper: The paper.
        partition: Content of ``partition.json``.
    """
    overlay = _overlay(paper)
    if not overlay or not partition:
        return False
    wanted = overlay["data"]["init_args"]
    dealt, recipe = wanted.pop("partition"), partition["partition"]
    kind = recipe["class_path"].rpartition(".")[2]
    return (
        dealt.get("class_path", kind) == kind
        and dealt["init_args"].items() <= recipe["init_args"].items()
        # What an overlay says of batches is no part of a partition.
        and all(partition[key] == value for key, value in wanted.items() if key in partition)
    )


def released_settings(paper: str) -> Identity:
    """Return what a paper's released code sets of clients, cohorts and tests; often nothing."""
    return identity.of_run(_overlay(paper))


def _overlay(paper: str) -> dict[str, Any]:
    overlays = shipped.root() / "configs" / "overlays"
    return read_yaml(overlays / f"{paper.lower()}_data_as_released.yaml")


def _copy(source: Path, target: Path, entry: Entry) -> None:
    """Copy a run to a temporary folder, then move it to ``target``, so none is half written."""
    made = target.with_name(f".{target.name}")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for name in FILES:
        content = (source / name).read_bytes()
        if name in PACKED and len(content) > _LONG:
            # Without a time the same content is the same file.
            (made / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (made / name).write_bytes(content)
    text = json.dumps(asdict(entry), indent=1, ensure_ascii=False)
    (made / "cell.json").write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    made.rename(target)


def read(folder: Path) -> list[tuple[Entry, RunFolder]]:
    """Return all runs of the ledger, sorted by the names of their folders.

    Raises:
        RunError: A folder is damaged, or holds the cell of another one.
    """
    entries = []
    for path in sorted(folder.glob("[!.]*/")):
        if (file := path / "cell.json").is_file():
            entry = _read_entry(file)
            entries.append((entry, _checked(entry, RunFolder.read(path))))
        elif any((path / name).exists() for name in FILES):
            raise RunError(f"{path} holds a run, but no cell.json, which says of which cell")
    return entries


def _read_entry(file: Path) -> Entry:
    content = read_json(file)
    try:
        entry: Entry = formed(content, Entry)
    except FormError as error:
        raise RunError(f"{file}: {error}") from error
    for key in ("reported", "spread"):
        if not math.isfinite(getattr(entry, key) or 0):
            raise RunError(f"{file}: {key}: expected a finite number, got {content[key]}")
    if entry.key != file.parent.name:
        raise RunError(f"{file.parent} holds the cell of {entry.key}: rename or remove the folder")
    return entry


def _checked(entry: Entry, run: RunFolder) -> RunFolder:
    """Check that a run is finished and has the cell's number; return it.

    Raises:
        RunError: It is not, or has not.
    """
    if not run.summary:
        raise RunError(f"{run.path} has no summary.json: the run is not finished")
    if not run.finished:
        file = run.path / "metrics.csv"
        raise RunError(f"{file} ends after round {run.round}, and the run did not")
    value = run.summary.get("summary", {}).get(entry.metric)
    if value is None or not math.isfinite(value):
        file = run.path / "summary.json"
        raise RunError(f"{file}: {entry.metric}: expected a finite number, got {value}")
    return run


def hardware(environment: Mapping[str, Any]) -> str:
    """Return this machine's processor, and a run's numbers of cores and op threads."""
    cores, threads = environment.get("cpus"), environment.get("op_threads")
    return f"{processor()}, {cores} cores, {threads} op thread{'s' if threads != 1 else ''}"


def present_commit(given: str | None, git: Sequence[str] = ("git",)) -> str:
    """Return the given commit, or that of the working directory.

    Raises:
        UsageError: No commit is given, and the working directory is not a clean clone.
    """
    if given is not None:
        return given
    try:
        changed = _output(*git, "status", "--porcelain", "--untracked-files=no")
        commit = _output(*git, "rev-parse", "--short=10", "HEAD")
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(
            "--keep: this is not a git clone: give the version that ran as --commit"
        ) from error
    if changed:
        raise UsageError(
            "--keep: the clone has uncommitted changes: give the version that ran as --commit"
        )
    return commit


def _output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
