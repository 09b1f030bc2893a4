"""The directive ``method-page``: what the code itself says of a method, on the method's page.

Departures from the paper stand in the page's own table; the paragraph on them in the docstring is
for those who read the file, and is left out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from curves import picture
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import lightning_modules
from lightning_modules.base import ClientModule
from pfl.extras.bench.hashed import read_rows
from pfl.testing import normed
from tests.helpers import discovery

ROOT = Path(__file__).parent.parent.parent
CAPTION = (
    "*A run on the [quickstart's digits](../start.md): ten clients, each with few of the classes. "
    "Every method has its defaults; nothing was tuned, and one run is no ranking.*"
)


class MethodPage(SphinxDirective):
    """``{method-page} FedAvg FedAvgP``: the classes that a page is about.

    The paper on the record of the first is cited, under the page's name.
    """

    required_arguments = 1
    final_argument_whitespace = True
    has_content = False

    def run(self) -> list[nodes.Node]:
        """Return citation, picture, what the classes declare, options, and rows of the ledger."""
        kinds = [getattr(lightning_modules, name) for name in self.arguments[0].split()]
        page = self.env.docname.rpartition("/")[2]
        cited = self.parse_text_to_nodes(_citation(kinds[0], page))
        drawn = picture([kind.__name__ for kind in kinds])
        shown = [
            nodes.raw("", f'<div class="run">{drawn}</div>', format="html"),
            *self.parse_text_to_nodes(CAPTION),
        ]
        parts = ["\n".join(_declarations(kinds))]
        for kind in kinds:
            path = f"{kind.__module__}.{kind.__name__}"
            parts.append(f"```{{eval-rst}}\n.. autoclass:: {path}\n   :no-members:\n```")
        parts.append("\n".join(_ledger({kind.__name__.lower() for kind in kinds})))
        return [*cited, *(shown if drawn else ()), *self.parse_text_to_nodes("\n\n".join(parts))]


def _citation(kind: type[ClientModule], page: str) -> str:
    """Return a folded BibTeX entry, with a link if it has one; nothing for a page without paper."""
    paper = None if kind.record is None else kind.record.paper
    if paper is None:
        return ""
    link = f"[The paper]({paper.url}).\n\n" if paper.url else ""
    return f"{link}:::{{dropdown}} Cite\n```bibtex\n{paper.bibtex(page)}\n```\n:::"


def _declarations(kinds: Sequence[type[ClientModule]]) -> Iterator[str]:
    """Yield a table of what the classes declare on a split network of a few units."""
    built = [discovery.build(kind, normed()) for kind in kinds]
    files = [kind.__module__.rpartition(".")[2] for kind in kinds]

    def row(title: str, cells: Sequence[str]) -> str:
        return f"| {title} | {' | '.join(cells)} |"

    yield row("", [f"`{kind.__name__}`" for kind in kinds])
    yield row("---", ["---"] * len(kinds))
    yield row("file", [f"`lightning_modules/{file}.py`" for file in files])
    yield row("configurations", [_quoted(_configurations(file)) for file in files])
    yield row("travels", [_quoted((*one.shared, *one.extra)) for one in built])
    yield row("stays with the client", [_quoted(one.kept) for one in built])
    yield row("tested", [f"`{one.evaluate_at}`" for one in built])
    yield row("tasks", ["classification" if "classes" in one.needs else "any" for one in built])
    yield row("can be stacked", ["yes" if one.vectorizable else "no" for one in built])


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words) or "nothing"


def _configurations(file: str) -> list[str]:
    """Return the names below ``configs`` of a method's configurations and overlays."""
    own = sorted((ROOT / "configs").glob(f"{file}_*.yaml"))
    overlays = sorted((ROOT / "configs").glob(f"baselines/{file}.yaml"))
    return [path.relative_to(ROOT / "configs").as_posix() for path in (*own, *overlays)]


def _ledger(names: set[str]) -> Iterator[str]:
    """Yield a table of the cells that were run at full length, if there are any."""
    _, rows = read_rows(ROOT / "docs" / "ledger.json", "ledger", "cell")
    cells = [cell for cell in rows if _method(cell["cell"]) in names]
    if cells:
        yield "Runs at a paper's own length, per cent ([ledger](../ledger.md)):"
        yield ""
        yield "| paper, table, cell, whose partition | here | reported | verdict |"
        yield "| --- | ---: | ---: | --- |"
    for cell in cells:
        here, reported = (
            "-" if cell[key] is None else f"{100 * cell[key]:.2f}" for key in ("ours", "reported")
        )
        where = f"{cell['paper']}, {cell['table']}, {cell['cell']}, {cell['partition']} partition"
        yield f"| {where} | {here} | {reported} | {cell['verdict'] or '-'} |"


def _method(label: str) -> str:
    """Return the class that a cell's label begins with, in small letters."""
    return label.split(",")[0].split()[0].lower().replace("-", "")


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the directive."""
    app.add_directive("method-page", MethodPage)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
