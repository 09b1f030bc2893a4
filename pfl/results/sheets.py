"""Tables for people: in a terminal, as Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from pfl.disk.writing import csv_text
from pfl.disk.writing import write as write_text

Record = Mapping[str, str | float | int | None]

_LATEX = str.maketrans(
    {
        **{c: rf"\{c}" for c in "&%$#_{}"},
        **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
        **{"±": r"$\pm$", "<": "$<$", ">": "$>$"},
    }
)


@dataclass(frozen=True)
class Sheet:
    """Rows of text under a title, and the unrounded numbers behind them.

    Attributes:
        title: One line.
        columns: Headings; the first column holds names, the others numbers.
        rows: Cells as printed.
        notes: Lines below the table.
        records: One mapping for each row, unrounded, for CSV files.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    records: Sequence[Record] = ()

    def rich(self) -> Table:
        """Return a table for the terminal; what users call "[b]" is text there, no markup."""
        table = Table(
            title=escape(self.title),
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
            caption=escape("\n".join(self.notes)) or None,
            caption_justify="left",
        )
        for number, column in enumerate(self.columns):
            table.add_column(escape(column), justify="right" if number else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table


def markdown(sheets: Sequence[Sheet]) -> str:
    """Write each sheet as a Markdown table, with its title in bold and its notes as text."""
    parts = []
    for sheet in sheets:
        cells = [list(sheet.columns), *map(list, sheet.rows)]
        safe = [[cell.replace("|", r"\|") for cell in row] for row in cells]
        columns = list(zip(*safe, strict=True))
        widths = [max(3, *map(len, column)) for column in columns]
        words = [not number or _is_words(column[1:]) for number, column in enumerate(columns)]
        lines = ["| " + " | ".join(_fill(row, widths, words)) + " |" for row in safe]
        rules = [
            "-" * width if left else "-" * (width - 1) + ":"
            for width, left in zip(widths, words, strict=True)
        ]
        rule = "| " + " | ".join(rules) + " |"
        parts += [f"**{sheet.title}**", "\n".join([lines[0], rule, *lines[1:]]), *sheet.notes]
    return "\n\n".join(parts) + "\n"


def _is_words(cells: Sequence[str]) -> bool:
    """Return ``True`` if some cell begins with a letter, as no number does."""
    return any(cell[:1].isalpha() for cell in cells)


def _fill(row: Sequence[str], widths: Sequence[int], words: Sequence[bool]) -> list[str]:
    """Pad the cells of a row: words on the right, numbers on the left."""
    return [
        cell.ljust(width) if left else cell.rjust(width)
        for cell, width, left in zip(row, widths, words, strict=True)
    ]


def latex(sheets: Sequence[Sheet]) -> str:
    """Write each sheet as a LaTeX ``table``; needs the package ``booktabs``."""
    parts = []
    for sheet in sheets:
        heading, *body = (_tex_row(row) for row in (sheet.columns, *sheet.rows))
        caption = " ".join([f"{sheet.title}.", *sheet.notes])
        lines = [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_tex(caption)}}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(sheet.columns) - 1)}}}",
            r"    \toprule",
            f"    {heading}",
            r"    \midrule",
            *(f"    {line}" for line in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _tex_row(cells: Sequence[str]) -> str:
    row = " & ".join(map(_tex, cells)) + r" \\"
    # The end of the row before would take these for its own options.
    return "{}" + row if row.startswith(("[", "*")) else row


def _tex(text: str) -> str:
    return text.translate(_LATEX)


def comma_separated(sheets: Sequence[Sheet]) -> str:
    """Write the records of all sheets as one CSV table; missing cells are empty."""
    return csv_text([record for sheet in sheets for record in sheet.records])


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
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, FORMATS[path.suffix](sheets))
