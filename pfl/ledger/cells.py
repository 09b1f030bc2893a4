"""The folders of the ledger: a finished run each, without checkpoints, and what cell it is of."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfl.cli.explain import UsageError
from pfl.results.files import RunError
from pfl.results.runs import RunFolder
from pfl.tables import cells as tables
from pfl.tables import kept
from pfl.tables.plan import Plan
from pfl.tables.spec import TableFile

# What is kept of a run.
FILES = ("config.yaml", "environment.json", "metrics.csv", "summary.json")


@dataclass(frozen=True)
class Entry:
    """One run of one cell.

    Attributes:
        paper: Whose table.
        table: Its name there.
        row: Label of the row.
        column: Label of each axis.
        seed: Of the run.
        metric: What ``summary.json`` calls the number, for instance ``test/personal/acc/last``.
        reported: The paper's number as a fraction; ``None`` where it prints none.
        spread: What it prints behind its ±, likewise.
        partition: Hash of who holds which samples.
        commit: Of the project that ran it.
        hardware: Processor and cores.
        note: What differs from the paper's own set-up, such as the images.
    """

    paper: str
    table: str
    row: str
    column: Mapping[str, str]
    seed: int
    metric: str
    reported: float | None
    spread: float | None
    partition: str
    commit: str
    hardware: str
    note: str

    @property
    def key(self) -> str:
        """Name of its folder."""
        parts = [self.paper, self.table, self.row, *(f"{k} {v}" for k, v in self.column.items())]
        words = [*parts, f"seed {self.seed}"]
        return "_".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-") for word in words)


def keep(
    folder: Path, table: TableFile, plan: Plan, commit: str, note: str
) -> Iterator[tuple[str, str | None]]:
    """Copy the finished runs of a table into the ledger.

    Args:
        folder: Of the ledger.
        table: The table.
        plan: Its runs.
        commit: Of the project that ran them.
        note: What differs from the paper's own set-up.

    Yields:
        The label of each run, and why it is not kept, if it is not.
    """
    for cell, names in plan.names.items():
        for seed, name in names.items():
            label = f"{cell.label}, seed {seed}"
            source = kept.finished(plan.runs[name])
            if source is None:
                yield label, "not finished"
                continue
            entry = _entry(table, cell, seed, RunFolder.read(source), commit, note)
            target = folder / entry.key
            _copy(source, target, entry)
            yield label, None


def _entry(
    table: TableFile, cell: tables.Cell, seed: int, run: RunFolder, commit: str, note: str
) -> Entry:
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
        commit=commit,
        hardware=hardware(run.environment),
        note=note,
    )


def _copy(source: Path, target: Path, entry: Entry) -> None:
    """Write a folder beside its place, then move it there: nothing half-written is left."""
    made = target.with_name(f".{target.name}")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(source / name, made / name)
    text = json.dumps(asdict(entry), indent=1, ensure_ascii=False)
    (made / "cell.json").write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    made.rename(target)


def read(folder: Path) -> list[tuple[Entry, RunFolder]]:
    """Return all runs of the ledger, by the names of their folders.

    Raises:
        RunError: A folder is damaged.
    """
    found = []
    for file in sorted(folder.glob("*/cell.json")):
        try:
            entry = Entry(**json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise RunError(f"{file} is damaged ({error})") from error
        run = RunFolder.read(file.parent)
        if not run.summary:
            raise RunError(f"{file.parent} has no summary.json: the run is not finished")
        found.append((entry, run))
    return found


def hardware(environment: Mapping[str, Any]) -> str:
    """Return the processor, and how many cores and op threads a run had."""
    cores, threads = environment.get("cpus"), environment.get("op_threads")
    return f"{_processor()}, {cores} cores, {threads} op thread{'s' if threads != 1 else ''}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def present_commit(given: str | None, git: Sequence[str] = ("git",)) -> str:
    """Return the commit that was given, or the working directory's.

    Raises:
        UsageError: None was given, and the working directory is not a clean clone.
    """
    if given is not None:
        return given
    try:
        changed = _output(*git, "status", "--porcelain", "--untracked-files=no")
        commit = _output(*git, "rev-parse", "--short=10", "HEAD")
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError("--keep: say with --commit which version ran (no git clone)") from error
    if changed:
        raise UsageError("--keep: the clone has changes: say with --commit which version ran")
    return commit


def _output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
