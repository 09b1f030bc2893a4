"""Printing tables: in a terminal, as Markdown, LaTeX, HTML and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pfl.core.sheet import Sheet

if TYPE_CHECKING:
    from jinja2 import Environment

# Characters between two columns, and the minimum width of columns of words.
_GAP, _WORDS = 2, 24
_LATEX = str.maketrans(
    {
        **{c: rf"\{c}" for c in "&%$#_{}"},
        **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
        **{"±": r"$\pm$", "<": "$<$", ">": "$>$"},
    }
)


def show(sheets: Iterable[Sheet], console: Console | None = None) -> None:
    """Print tables in a terminal, each as wide as it allows; numbers are never wrapped.

    A table that is too wide is printed without its optional columns. If it is still too wide, it is
    divided into blocks, one below the other, each with the names of the rows. Names that are too
    long are shortened, if they still differ.
    """
    console = Console() if console is None else console
    for sheet in sheets:
        blocks, left_out = _fitted(sheet, console.width)
        if sheet.title:
            console.print(Text(sheet.title, style="bold"))
        for columns in blocks:
            console.print(_table(sheet, columns, console.width), "", sep="\n")
        for note in sheet.notes:
            console.print(Text(note))
        if left_out:
            what = f"Left out to fit {console.width} columns: {', '.join(left_out)}"
            console.print(Text(f"{what}; a wider terminal and written files show them."))
        if sheet.notes or left_out:
            console.print()


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _fitted(sheet: Sheet, width: int) -> tuple[list[list[int]], list[str]]:
    """Return blocks of numbers of columns, each with the first one, and headings left out."""
    needs = [_need(sheet, number) + _GAP for number in range(len(sheet.columns))]
    shown, left_out = [*range(1, len(needs))], list[str]()
    for heading in sheet.optional:
        if needs[0] + sum(needs[number] for number in shown) <= width + _GAP:
            break
        if heading in sheet.columns:
            shown.remove(sheet.columns.index(heading))
            left_out.append(heading)
    blocks = [[0]]
    for number in shown:
        if len(blocks[-1]) > 1 and sum(needs[n] for n in (*blocks[-1], number)) > width + _GAP:
            blocks.append([0])
        blocks[-1].append(number)
    return blocks, left_out


def _need(sheet: Sheet, number: int) -> int:
    """Return the width that a column needs; headings and words can be wrapped."""
    heading = max(map(cell_len, sheet.columns[number].split()), default=0)
    cells = max((cell_len(row[number]) for row in sheet.rows), default=0)
    return max(heading, min(cells, _WORDS) if sheet.are_words[number] else cells)


def _whole(sheet: Sheet, number: int) -> int:
    """Return the width of a column of which nothing is wrapped."""
    return max(map(cell_len, (sheet.columns[number], *(row[number] for row in sheet.rows))))


def _shortened(name: str, names: Sequence[str], width: int) -> str:
    """Return the first parts of a name, or its end, if that fits and no other name has it."""
    if cell_len(name) <= width:
        return name
    parts = name.split(", ")
    for count in range(len(parts) - 1, 0, -1):
        start = ", ".join(parts[:count])
        if cell_len(start) + 3 <= width and sum(one.startswith(start) for one in names) == 1:
            return f"{start}, …"
    end = name[1 - width :]
    return f"…{end}" if sum(one.endswith(end) for one in names) == 1 else name


def _table(sheet: Sheet, columns: Sequence[int], width: int) -> Table:
    """Return columns for the terminal; a user's name such as "[b]" is text there, not markup."""
    table = Table(
        box=SIMPLE_HEAD,
        show_header=any(sheet.columns),
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    words, names = sheet.are_words, [row[0] for row in sheet.rows]
    needs = [_need(sheet, number) for number in columns]
    room = max(needs[0], width - sum(need + _GAP for need in needs[1:]))
    shown = [_shortened(name, names, room) for name in names]
    needs[0] = min(room, _whole(sheet, 0))
    spare = width + _GAP - sum(need + _GAP for need in needs)
    for number, need in zip(columns, needs, strict=True):
        more = 0 if words[number] else max(0, min(spare, _whole(sheet, number) - need))
        spare -= more
        table.add_column(
            Text(sheet.columns[number]),
            justify="left" if words[number] else "right",
            overflow="fold",
            # Rich would fold names and numbers rather than headings; other words share the rest.
            width=None if number and words[number] else need + more,
        )
    for name, row in zip(shown, sheet.rows, strict=True):
        table.add_row(Text(name), *(Text(row[number]) for number in columns[1:]))
    return table


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=PackageLoader("pfl.results"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"padded": _padded, "tex": _tex}
    return made


def rendered(template: str, **values: Any) -> str:
    """Return the text of one of the templates beside this file."""
    return _templates().get_template(template).render(values)


def markdown(sheets: Sequence[Sheet]) -> str:
    """Write each sheet as a Markdown table, with its title in bold and its notes as text."""
    return rendered("sheets.md", sheets=sheets)


def latex(sheets: Sequence[Sheet]) -> str:
    """Write each sheet as a LaTeX ``table``; needs the package ``booktabs``."""
    return rendered("sheets.tex", sheets=sheets)


def comma_separated(sheets: Sequence[Sheet]) -> str:
    """Write the records of all sheets as one CSV table; missing cells are empty."""
    from pfl.disk.writing import csv_text

    return csv_text([record for sheet in sheets for record in sheet.records])


def _padded(sheet: Sheet) -> list[str]:
    """Return the lines of a Markdown table: words are padded on the right, numbers on the left."""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (sheet.columns, *sheet.rows)]
    columns = []
    for column, words in zip(zip(*cells, strict=True), sheet.are_words, strict=True):
        width = max(3, *map(len, column))
        rule = "-" * width if words else "-" * (width - 1) + ":"
        padded = [cell.ljust(width) if words else cell.rjust(width) for cell in column]
        columns.append([padded[0], rule, *padded[1:]])
    return [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]


def _tex(text: str) -> str:
    return text.translate(_LATEX)


FORMATS: Mapping[str, Callable[[Sequence[Sheet]], str]] = {
    ".md": markdown,
    ".tex": latex,
    ".csv": comma_separated,
}


def write(sheets: Sequence[Sheet], path: Path) -> None:
    """Write tables to a file, in the format of its suffix.

    Raises:
        ValueError: The suffix is not a known format.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: use one of {', '.join(FORMATS)} for a table")
    from pfl.disk.writing import write as write_text

    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, FORMATS[path.suffix](sheets))
