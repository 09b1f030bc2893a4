"""The pages of the ledger, its JSON file and picture, and its numbers on other pages."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.ledger.judge import HERE, Ledger, Record, counts, hangs_on, ranges
from benchmarks.ledger.numbers import pct, signed
from benchmarks.ledger.picture import THEMES, forest
from benchmarks.ledger.report import report
from benchmarks.ledger.wanted import lacking
from pfl.disk.writing import write as write_text
from pfl.disk.writing import written
from pfl.extras.bench.hashed import hashed, write_rows
from pfl.results.style import save, styled

# Where the ledger fills in a part of another page.
_PART = re.compile(r"(<!-- ledger: ([\w-]+) -->\n).*?(<!-- end of ledger -->)", re.DOTALL)


def write(ledger: Ledger, out: Path) -> None:
    """Write the pages, the JSON file and the pictures into a folder.

    If it is the documentation's, with pages of methods, fill in the parts of its pages and of the
    README beside it that stand between ``<!-- ledger: NAME -->`` and ``<!-- end of ledger -->``.

    Raises:
        OSError: A file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    # Six digits are the same on every processor.
    rows = [{**row, "readings": [*map(_told, row["readings"])]} for row in ledger.rows]
    rows = json.loads(pd.DataFrame(rows).to_json(orient="records", double_precision=6))
    write_rows(out / "ledger.json", "ledger", {"name": "ledger"}, map(hashed, rows))
    with styled():
        for name, theme in THEMES.items():
            with written(out / f"ledger_{name}.svg") as file:
                save(forest(ledger.judged, theme), file, "svg")
    write_text(out / "ledger.md", text(ledger, "page"))
    write_text(out / "ledger.html", report(ledger))
    pages = [*out.glob("**/*.md"), out.parent / "README.md"] if (out / "methods").is_dir() else []
    for page in pages:
        before = page.read_text(encoding="utf-8")
        after = _PART.sub(lambda part: part[1] + text(ledger, part[2]) + part[3], before)
        if after != before:
            write_text(page, after)


def _told(judged: Record) -> Record:
    return {**judged, "reading": judged["reading"].name}


def text(ledger: Ledger, name: str) -> str:
    """Return the ``page``, its ``headline``, or what a paper's page says of it, in Markdown."""
    known = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    known.filters |= {"pct": pct, "signed": signed, "counts": counts}
    known.filters |= {"ranges": ranges, "span": span, "hangs_on": hangs_on}
    known.globals |= {"lacking": lacking}
    known.tests["known"] = math.isfinite
    template = name if name in ("page", "headline") else "method"
    return known.get_template(f"{template}.md.j2").render(ledger=ledger, paper=name).rstrip() + "\n"


def span(numbers: tuple[int, int]) -> str:
    """Return a range in words."""
    low, high = numbers
    return f"{low}" if low == high else f"{low} to {high}"
