"""The picture on a method's page: its run on the digits, beside FedAvg's and Local's.

``python docs/_ext/curves.py runs/tables`` writes ``docs/methods/curves.csv`` from the runs of
``pfl table configs/tables/digits.yaml``, with no other runs below the folder; ``python -m
docs.derive --runs`` adds methods that are not in it.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

FILE = Path(__file__).parent.parent / "methods" / "curves.csv"
COLUMNS = {
    "mean over clients": "test/personal/acc",
    "worst tenth of clients": "test/personal/acc_worst10",
}
# Of further lines, by name. They are seen on light and dark pages, and differ in dash too.
BESIDE = {"FedAvg": ("#2E8BC0", (0, (5, 2))), "Local": ("#8A8A8A", (0, (1, 1.2)))}
OWN = (("#D55E00", "-"), ("#CC79A7", (0, (5, 1.5, 1, 1.5))))
_TOLD = ("Creator", "Date", "Format", "Type")
# Stands for the colour of the page's text.
_TEXT = "#010203"
_STYLE = {
    **{"svg.fonttype": "none", "svg.hashsalt": "pfl", "font.family": "sans-serif", "font.size": 9},
    **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False},
    **{f"{part}.color": _TEXT for part in ("text", "xtick", "ytick")},
    **{"axes.edgecolor": _TEXT, "axes.labelcolor": _TEXT, "axes.facecolor": "none"},
}


def picture(names: Sequence[str]) -> str:
    """Return an SVG element with the curves of some methods; empty if none of them was run.

    Args:
        names: Names of classes of methods.
    """
    scores = _scores()
    own = [name for name in names if name in scores and name not in BESIDE]
    shown = [name for name in names if name in scores]
    if not shown:
        return ""
    lines = {**dict(zip(own, OWN, strict=False)), **BESIDE}
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 2.3), layout="constrained", facecolor="none")
        for panel, column in zip(figure.subplots(1, 2, sharey=True), COLUMNS, strict=True):
            for name, (colour, dash) in lines.items():
                values = [100 * value for value in scores[name][column]]
                width = 2.2 if name in shown else 1.4
                rounds = range(1, len(values) + 1)
                panel.plot(rounds, values, color=colour, ls=dash, lw=width, label=name)
            panel.set(title=column, xlabel="round", ylim=(0, 101))
            panel.set_xticks([1, 5, 10, 15, 20])
        figure.axes[0].set_ylabel("test accuracy (%)")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata=dict.fromkeys(_TOLD))
    what = f"Accuracy of {', '.join(lines)} after each of twenty rounds on the digits"
    svg = written.getvalue().partition("<svg ")[2].replace(_TEXT, "currentColor")
    # A style would hold for the whole page.
    svg = re.sub(r"<defs>\s*<style.*?</defs>", "", svg, flags=re.S)
    return f'<svg role="img" aria-label="{what}" {svg}'


def _scores() -> dict[str, dict[str, list[float]]]:
    """Return the scores after each round, by method and column."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with FILE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for column in COLUMNS:
                found[row["method"]][column].append(float(row[column]))
    return found


def collect(folder: Path, add: bool = False) -> None:
    """Write the file of scores from the runs below a folder.

    Args:
        folder: The folder.
        add: Whether scores of other methods stay in the file.
    """
    from pfl.results.find import find_runs

    rows = list[list[str | int]]()
    runs = {run.environment["header"]["method"]: run for run in find_runs([folder])}
    if add:
        with FILE.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row[0] not in {"method", *runs}]
    for method, run in runs.items():
        rounds = run.evaluated("test/personal/acc")
        values = [run.values(metric, rounds) for metric in COLUMNS.values()]
        rows += [
            [method, int(round), *(f"{value:.4f}" for value in line)]
            for round, *line in zip(rounds, *values, strict=True)
        ]
    with FILE.open("w", newline="", encoding="utf-8") as file:
        written = csv.writer(file, lineterminator="\n")
        written.writerow(["method", "round", *COLUMNS])
        # Stable, so that rounds stay in order.
        written.writerows(sorted(rows, key=lambda row: row[0]))


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
