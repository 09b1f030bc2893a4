"""Building blocks of a self-contained HTML page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from matplotlib.figure import Figure

from pfl.results.style import save


class Markup(str):
    """Text that is already HTML and must not be escaped."""

    __slots__ = ()


def page(title: str, under: str, parts: Iterable[Markup]) -> str:
    """Build the whole page."""
    home = resources.files("pfl.results")
    style = home.joinpath("templates", "page.css").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="under">{escape(under)}</p>\n'
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: Markup) -> Markup:
    """Build a section with a heading."""
    return Markup(f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Build a table of names and numbers; a table without headings holds text."""
    text = "" if any(columns) else ' class="text"'
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td{text}>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    heading = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    return Markup(f'<div class="wide"><table>{heading}<tbody>\n{body}\n</tbody></table></div>')


def _safe(cell: str) -> str:
    return cell if isinstance(cell, Markup) else escape(cell)


def side_by_side(parts: Iterable[Markup]) -> Markup:
    """Build a row of pictures, which wraps where the page ends."""
    return Markup('<div class="pictures">\n' + "\n".join(parts) + "\n</div>")


def verbatim(text: str) -> Markup:
    """Build a block of preformatted text, for instance a file."""
    return Markup(f"<pre>{escape(text)}</pre>")


def picture(name: str, figure: Figure, caption: str) -> Markup:
    """Build a picture as inline SVG, with ids that are unique on the page."""
    stream = io.StringIO()
    save(figure, stream, "svg")
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    # Pictures on one page must not share ids.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
    return Markup(f"<figure>\n{svg}<figcaption>{escape(caption)}</figcaption>\n</figure>")


def bars(values: Sequence[float], label: str, width: float = 90, height: float = 16) -> Markup:
    """Build a small bar chart for a line of text; the tallest bar fills the height."""
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
