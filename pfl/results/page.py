"""A self-contained HTML page of tables and pictures."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from pfl.core.sheet import Sheet
from pfl.results.pictures import Picture
from pfl.results.sheets import rendered
from pfl.results.style import save

Part: TypeAlias = Sheet | dict[str, Sheet] | list[Picture] | str


def page(title: str, under: str, sections: Mapping[str, Part]) -> str:
    """Build the whole page.

    Args:
        title: Its heading.
        under: A line below it.
        sections: The content of each section, by its heading: a table (without headings, all cells
            are text); groups of rows of one table, by their headings; pictures side by side,
            without those that could not be drawn; or preformatted text, for instance a file.
    """
    parts = {
        heading: [(_svg(p, p.figure), p.caption) for p in part if p.figure]
        if isinstance(part, list)
        else {"": part}
        if isinstance(part, Sheet)
        else part
        for heading, part in sections.items()
    }
    return rendered("page.html", title=title, under=under, sections=parts)


def _svg(picture: Picture, figure: Figure) -> Markup:
    """Return a picture as inline SVG, with ids that are unique on the page."""
    stream = io.StringIO()
    save(figure, stream, "svg")
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    # Pictures on one page must not share ids.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{picture.name}-", svg)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(picture.caption)}"', 1))


def bars(values: Sequence[float], label: str, width: float = 90, height: float = 16) -> Markup:
    """Build a small bar chart for a cell of a table; the tallest bar fills the height."""
    top, step = max(values, default=0) or 1, width / max(1, len(values))
    path = "".join(
        f"M{number * step:.1f} {height}v{-height * value / top:.1f}h{0.85 * step:.1f}V{height}z"
        for number, value in enumerate(values)
        if value > 0
    )
    return Markup(
        f'<svg width="{width:g}" height="{height:g}" role="img" aria-label="{escape(label)}">'
        f'<title>{escape(label)}</title><path d="{path}" fill="#0072B2"/></svg>'
    )
