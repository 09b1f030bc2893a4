"""A self-contained HTML page of tables and pictures."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from pfl.core.sheet import Sheet
from pfl.results.pictures import Picture, draw
from pfl.results.settings import Setting
from pfl.results.sheets import rendered
from pfl.results.style import NARROW, save

# Colours that follow the theme: letters and axes, paper, and the grid.
_THEME = {"#000000": "var(--ink)", "#ffffff": "var(--paper)", "#e5e5e5": "var(--line)"}


@dataclass(frozen=True)
class Text:
    """Preformatted text, for instance a file.

    Attributes:
        text: The text.
        folded: The line that unfolds it; empty to show it at once.
    """

    text: str
    folded: str = ""


@dataclass(frozen=True)
class Rows:
    """Groups of rows of one table.

    Attributes:
        groups: The rows, by their heading; without one, all stand together. The headings of columns
            are those of the first; if they are all empty, there is no line of them.
        folded: The line that unfolds them; empty to show them at once.
        words: Whether cells are text, which may be wrapped, instead of numbers.
    """

    groups: Mapping[str, Sheet]
    folded: str = ""
    words: bool = False


@dataclass(frozen=True)
class Pictures:
    """Pictures beside each other.

    Attributes:
        drawn: Image and caption of each.
    """

    drawn: Sequence[tuple[Markup, str]]


Part: TypeAlias = Text | Rows | Pictures


def page(title: str, under: str, sections: Mapping[str, Sequence[Part]]) -> str:
    """Build the whole page.

    Args:
        title: Its heading.
        under: A line below it.
        sections: The content of each section, by its heading.
    """
    return rendered("page.html", title=title, under=under, sections=sections)


def rows(sheet: Sheet, folded: str = "", *, words: bool = False) -> Rows:
    """Return the rows of one table."""
    return Rows({"": sheet}, folded, words)


def pictures(settings: Sequence[Setting], metric: str) -> Pictures:
    """Draw the pictures that suit some runs, each for a wide and for a narrow screen."""
    wide, narrow = draw(settings, metric=metric), draw(settings, metric=metric, width=NARROW)
    return Pictures(
        [both(one, other) for one, other in zip(wide, narrow, strict=True) if one.figure]
    )


def both(wide: Picture, narrow: Picture) -> tuple[Markup, str]:
    """Return a picture for a wide and for a narrow screen, and its caption."""
    screens = (("wide", wide), ("narrow", narrow))
    drawn = [_svg(one, one.figure, name) for name, one in screens if one.figure is not None]
    return Markup("").join(drawn), wide.caption


def _svg(picture: Picture, figure: Figure, screen: str) -> Markup:
    """Return a picture as inline SVG, with ids that are unique on the page.

    Ink, paper and lines have the colours of the page.
    """
    stream = io.StringIO()
    save(figure, stream, "svg")
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    # Pictures on one page must not share ids.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{screen}-{picture.name}-", svg)
    for colour, variable in _THEME.items():
        svg = re.sub(rf"((?:fill|stroke): ?){colour}\b", rf"\g<1>{variable}", svg, flags=re.I)
    label = escape(picture.caption)
    return Markup(svg.replace("<svg", f'<svg class="{screen}" role="img" aria-label="{label}"', 1))


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
