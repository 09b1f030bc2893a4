"""The pictures of the ledger: scores over rounds beside the reported ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from pfl.ledger.cells import Entry
from pfl.ledger.judge import column_name, natural
from pfl.results.runs import RunFolder
from pfl.results.style import WIDTH, Look, label_rounds, legend_above, panels

Runs = Sequence[tuple[Entry, RunFolder]]


def curves(runs: Runs) -> Iterator[tuple[tuple[str, str], Figure]]:
    """Draw each table's scores over rounds, reported values as lines.

    There is one panel for each column and kind of partition.
    """

    def where(run: tuple[Entry, RunFolder]) -> tuple[str, str]:
        return run[0].paper, run[0].table

    for place, members in groupby(sorted(runs, key=where), key=where):
        yield place, _drawn(list(members))


def _panel(entry: Entry) -> str:
    """Return the title of the panel that a run belongs to."""
    return ", ".join(filter(None, [column_name(entry), "released" if entry.released else ""]))


def _drawn(members: Runs) -> Figure:
    looks = {name: Look.of(n) for n, name in enumerate(sorted({e.row for e, _ in members}))}
    titles = sorted({_panel(entry) for entry, _ in members}, key=natural)
    figure, axes = panels(len(titles), WIDTH, 2.6, sharey=True)
    for row, look in looks.items():
        # The legend is the first panel's, which may lack a method.
        axes[0].plot([], [], label=row, **look.line)
    for panel, title in zip(axes, titles, strict=True):
        inside = [(entry, run) for entry, run in members if _panel(entry) == title]
        for entry, run in inside:
            metric, look = entry.metric.rpartition("/")[0], looks[entry.row]
            tested = run.evaluated(metric)
            panel.plot(tested, run.values(metric, tested), **look.line)
        for row, reported in {entry.row: entry.reported for entry, _ in inside}.items():
            if reported is not None:
                panel.axhline(reported, color=looks[row].color, linewidth=0.6)
        panel.set_title(title)
        label_rounds(panel, "communication rounds")
        panel.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[0].set_ylabel("score; thin lines: reported")
    legend_above(figure, axes[0])
    return figure
