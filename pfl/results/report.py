"""An HTML report of one run: summary, pictures, clients, configuration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from rich.filesize import decimal

from pfl.core.sheet import Sheet
from pfl.disk.reading import text
from pfl.federation.summary import KINDS, summarise
from pfl.results import names
from pfl.results.files import Floats
from pfl.results.find import common_score
from pfl.results.learnt_nothing import sentence
from pfl.results.page import Part, bars, page
from pfl.results.pictures import draw
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from pfl.results.statistics import NONE

# Costs: name, column, and the formats of the total and of a round.
_SECONDS, _COUNTED = ("{:,.1f} s", "{:,.3f} s"), ("{:,.0f}", "{:,.1f}")
_COSTS = (
    ("sent to clients", "comm/bytes_down", None),
    ("sent to the server", "comm/bytes_up", None),
    ("training", "time/train", _SECONDS),
    ("aggregation", "time/aggregate", _SECONDS),
    ("tests", "time/evaluate", _SECONDS),
    ("training samples seen", "train/samples", _COUNTED),
    ("optimiser steps", "train/steps", _COUNTED),
    ("simulated time", "comm/seconds", _SECONDS),
)
# Heading of the rows about these clients.
WORST = "worst tenth of the clients"


def report(run: RunFolder) -> str:
    """Return the HTML report of a run.

    Raises:
        RunError: The run was never tested, or its files are damaged.
    """
    judged_by = common_score([run])
    data = f" on {run.partition['data']}" if "data" in run.partition else ""
    planned = run.environment.get("rounds")
    count = "1 round" if run.round == 1 else f"{run.round} rounds"
    state = count if run.finished else f"unfinished: round {run.round} of {planned}"
    about = [run.path.resolve().name, state]
    about += [] if run.seed is None else [f"seed {run.seed}"]
    about += [f"judged by {names.described(judged_by)}"]
    ended = run.finished and "fingerprint" in run.summary
    about += [f"fingerprint {run.summary['fingerprint']}"] if ended else []
    config = text(run.path / "config.yaml")
    sections: dict[str, Part] = {
        "Results": _scores(run, judged_by),
        **_measured(run),
        "Cost": _costs(run),
        "Pictures": draw(group([run])[0]),
        f"Clients after round {run.evaluated()[-1]}": _clients(run, judged_by),
        "Run": _facts(run),
        **({} if config is None else {"Configuration": config}),
    }
    return page(f"{run.method}{data}", ", ".join(about), sections)


def _scores(run: RunFolder, judged_by: str) -> dict[str, Sheet]:
    """Make a row for each metric and a column for each choice of rounds, in groups of rows.

    There is a group for each kind of model, and one for the worst tenth of the clients.
    """
    shown = _metrics(run, _group(judged_by))
    summary = summarise(run.history(), run.scores)
    kinds = [at for at in KINDS if any(f"{metric}/{at}" in summary for metric in shown)]
    rows: dict[str, list[list[str]]] = {}
    for metric in shown:
        heading, first = _place(metric)
        cells = [_number(metric, summary.get(f"{metric}/{at}", np.nan)) for at in kinds]
        rows.setdefault(heading, []).append([first, *cells])
    heads = ["test", *(names.rounds(at) for at in kinds)]
    ordered = sorted(rows, key=lambda heading: heading == WORST)
    sheets = {heading: Sheet("", heads, rows[heading]) for heading in ordered}
    if sheets and (said := sentence(run, judged_by)):
        sheets[ordered[-1]] = replace(sheets[ordered[-1]], notes=[said])
    return sheets


def _metrics(run: RunFolder, judged: str) -> list[str]:
    """Return the scores that are listed, those of the models by which the run is judged first."""
    tested = {_group(name) for name in run.metrics.columns if name.startswith("test/")}
    groups = [judged, *sorted(one for one in tested - {judged} if not names.is_drawn(one))]
    main, *others = run.scores
    listed = [main, *(main + ending for ending in names.SUMMARIES), *others]
    metrics = (f"{one}/{name}" for one in groups for name in listed)
    return [metric for metric in metrics if metric in run.metrics]


def _place(metric: str) -> tuple[str, str]:
    """Return the heading of the rows in which a metric stands, and its name among these."""
    models = names.model(metric)
    if names.parted(metric)[1] == "_worst10":
        return WORST, models
    return models, names.score(metric).removeprefix("test ")


def _measured(run: RunFolder) -> dict[str, Sheet]:
    """Make a row for each number of a further evaluation, besides scores."""
    last = run.metrics.iloc[-1]
    sheets = {}
    for one in names.shown():
        shown = [(what, last[name]) for name, what in one.facts.items() if name in last]
        rows = [[what, NONE if np.isnan(value) else f"{value:.4g}"] for what, value in shown]
        if rows:
            sheets[one.title] = Sheet("", ["", "last round"], rows)
    return sheets


def _group(metric: str) -> str:
    return metric.rpartition("/")[0]


def _number(metric: str, value: float) -> str:
    if np.isnan(value):
        return NONE
    scale, digits = names.scale(metric)
    return f"{scale * value:.{digits}f}" + " %" * (scale == 100)


def _costs(run: RunFolder) -> Sheet:
    rows = []
    for what, name, written in _COSTS:
        if name == "comm/seconds" and run.simulated is None:
            continue
        total = run.column(name).sum()
        pair = total, total / run.round
        if written is None:
            rows.append([what, *(decimal(int(count)) for count in pair)])
        else:
            rows.append([what, *(f.format(n) for f, n in zip(written, pair, strict=True))])
    return Sheet("", ["", "in all rounds", "a round"], rows)


def _clients(run: RunFolder, judged_by: str) -> Sheet:
    """Make a row for each client, from the last evaluated round."""
    rounds, group = run.evaluated()[-1:], _group(judged_by)
    shown = _columns_of_clients(run, group)
    values = {name: run.over_rounds(name, rounds).iloc[0] for name in shown}
    # Scores are beside the names, where a narrow screen shows them.
    shown.sort(key=lambda name: "/" not in name)
    first = sum("/" in name for name in shown)
    heads = [_heading(name, group) for name in shown]
    labels = [] if run.label_counts is None else ["labels", ""]
    heads = ["client", *heads[:first], "training samples", *labels, *heads[first:]]
    rows = []
    for client, samples in enumerate(run.samples):
        cells = [_cell(name, values[name][client]) for name in shown]
        owned = [_cell("test_samples", samples), *_labels(run.label_counts, client)]
        rows.append([run.client_names[client], *cells[:first], *owned, *cells[first:]])
    known = [n for n in range(len(heads)) if {row[n] for row in rows} != {NONE}]
    return Sheet("", [heads[n] for n in known], [[row[n] for n in known] for row in rows])


def _columns_of_clients(run: RunFolder, group: str) -> list[str]:
    """Return the columns of ``clients.csv`` that are shown."""
    # The column "uploaded" is left out: aggregation weights show it.
    plain = {"test_samples", "trained", *run.reported}
    if "discarded" in run.clients and (run.clients["discarded"] == 1).any():
        plain.add("discarded")
    columns = run.clients.columns
    return [name for name in columns if name in plain or _is_listed(name, group, run.main)]


def _labels(counts: Floats | None, client: int) -> list[str]:
    """Return the cells about a client's labels: how many, and bars of their counts."""
    if counts is None:
        return []
    own = counts[client]
    label = f"samples of each of {len(own)} classes"
    return [str((own > 0).sum()), bars(own.tolist(), label)]


def _is_listed(column: str, group: str, main: str) -> bool:
    """Return ``True`` for scores of models by which the run is judged, and others' main score."""
    models, _, name = column.rpartition("/")
    other = models.startswith("test/") and name == main and not names.is_drawn(models)
    return models == group or other


def _heading(column: str, group: str) -> str:
    if "/" in column and _group(column) != group:
        return names.described(column)
    return "test samples" if column == "test_samples" else names.score(column)


def _cell(column: str, value: float) -> str:
    if np.isnan(value):
        return NONE
    if column in ("trained", "discarded"):
        return "yes" if value else "no"
    if column == "test_samples":
        return f"{value:,.0f}"
    return _number(column, value) if "/" in column else f"{value:.3g}"


def _facts(run: RunFolder) -> Sheet:
    """List the run's header and its environment."""
    facts = dict(run.environment.get("header", {}))
    facts |= {key: run.environment[key] for key in ("platform", "python") if key in run.environment}
    facts |= run.environment.get("packages", {})
    facts["partition hash"] = run.split_hash
    return Sheet("", ["", ""], [[str(key), str(value)] for key, value in facts.items()])
