"""Runs that the ledger lacks and that would decide something, from ``open.yaml``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from benchmarks.ledger.keep import overlay_of
from benchmarks.ledger.runs import Entry
from pfl.cli import shipped
from pfl.cli.explain import UsageError
from pfl.disk.reading import read_yaml
from pfl.extras.papers.cells import Cell, expand
from pfl.extras.papers.reader import read
from pfl.extras.papers.spec import TableFile


class Wanted(BaseModel):
    """Some runs of one table.

    Attributes:
        decides: What they would decide.
        hours: Hours of one core for one run.
        table: Name of the table file.
        rows: Its rows.
        columns: Its columns, as for ``pfl table``.
        seeds: Seeds.
        released: Whether on the clients of the paper's released code.
        departure: Settings other than the table's.
        note: What could not be helped.
        flags: Flags of ``pfl fit`` that make these settings.
    """

    model_config = ConfigDict(extra="forbid")

    decides: str
    hours: float
    table: str
    rows: list[str]
    columns: list[str]
    seeds: list[int]
    released: bool = False
    departure: str = ""
    note: str = ""
    flags: list[str] = []

    @property
    def file(self) -> Path:
        """The table file."""
        return shipped.root() / "configs" / "tables" / f"{self.table}.yaml"

    def overrides(self, table: TableFile) -> list[str]:
        """Return the flags of ``pfl fit`` of the runs."""
        given = ["--config", f"configs/overlays/{overlay_of(table.paper or '')}"]
        return [*(given if self.released else []), *self.flags]

    def runs(self, table: TableFile) -> Iterator[tuple[Cell, int, str]]:
        """Yield each cell and seed, and the name of its folder in the ledger."""
        told = {"paper": table.paper or "", "table": table.table or "", "metric": "", "note": ""}
        told |= {"commit": "", "hardware": "", "partition": "", "departure": self.departure}
        for cell in expand(table, self.rows, self.columns):
            for seed in self.seeds:
                entry = Entry(
                    row=cell.row,
                    column=dict(cell.column),
                    seed=seed,
                    reported=None,
                    spread=None,
                    released=self.released,
                    **told,
                )
                yield cell, seed, entry.key


def wanted() -> dict[str, Wanted]:
    """Return what is wanted, by name, whether the ledger has it or not."""
    file = Path(__file__).with_name("open.yaml")
    return TypeAdapter(dict[str, Wanted]).validate_python(read_yaml(file))


def lacking(folders: Iterable[str]) -> Iterator[tuple[str, Wanted, float]]:
    """Yield what is wanted and not in some folders: its name, itself, and hours."""
    known = set(folders)
    for name, one in wanted().items():
        runs = [folder for _, _, folder in one.runs(read(one.file)) if folder not in known]
        if runs:
            yield name, one, one.hours * len(runs)


def options_of(name: str, note: str, folders: Iterable[str] = ()) -> Namespace:
    """Return what is wanted as the options of ``--keep``, with flags of ``pfl fit``.

    Args:
        name: Its name.
        note: What could not be helped, beside its own note.
        folders: Names of the ledger's folders; rows and seeds whose runs are all there are left
            out.

    Raises:
        UsageError: There is nothing of that name, or all its runs are there.
    """
    wants = wanted()
    if (one := wants.get(name)) is None:
        raise UsageError(f"--run {name}: choose one of {', '.join(wants)}")
    table, known = read(one.file), set(folders)
    open_ = [(cell.row, seed) for cell, seed, folder in one.runs(table) if folder not in known]
    if not open_:
        raise UsageError(f"--run {name}: all its runs are in the ledger")
    rows = [row for row in one.rows if any(row == other for other, _ in open_)]
    seeds = [seed for seed in one.seeds if any(seed == other for _, other in open_)]
    notes = "; ".join(filter(None, [note, one.note]))
    told = {"departure": one.departure, "note": notes, "flags": one.overrides(table)}
    return Namespace(keep=one.file, rows=rows, columns=one.columns, seeds=seeds, **told)
