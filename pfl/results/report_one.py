"""The report of one run: summary, pictures, clients, configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from rich.filesize import decimal

from pfl.core.sheet import Sheet
from pfl.disk.reading import text
from pfl.federation.summary import KINDS, summarise
from pfl.results import names
from pfl.results.cited import methods
from pfl.results.files import Floats
from pfl.results.find import common_score
from pfl.results.learnt_nothing import sentence
from pfl.results.page import Part, Rows, Text, bars, pictures, rows
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from pfl.results.statistics import NONE

# Costs: name, column, and the formats of the total and of a round.
_SECONDS, _COUNTED = ("{:,.1f} s", "{:,.3f} s"), ("{:,.0f}", "{:,.1f}")
COSTS = (
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
# More rows than these are folded.
_SHOWN = 12


def content(run: RunFolder) -> tuple[str, str, dict[str, Sequence[Part]]]:
    """Return the title, the line below it and the sections of the report of a run.

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
    clients = _clients(run, judged_by)
    many = f"{len(clients.rows)} clients" * (len(clients.rows) > _SHOWN)
    sections: dict[str, Sequence[Part]] = {
        "Results": [*_scores(run, judged_by), *_measured(run)],
        "Pictures": [pictures(group([run])[0], judged_by)],
        f"Clients after round {run.evaluated()[-1]}": [rows(clients, many)],
        "Cost": [rows(_costs(run))],
        **methods([run]),
        "Run": [rows(_facts(run), words=True)],
    }
    if config := text(run.path / "config.yaml"):
        sections["Configuration"] = [Text(config, "The whole of it")]
    return f"{run.method}{data}", ", ".join(about), sections


def _scores(run: RunFolder, judged_by: str) -> list[Part]:
    """Return tables of the score by which the run is judged, of others, and of groups of clients.

    The first has a row for each summary over clients and a column for each choice of rounds, in
    groups of rows for each kind of model. The others are of the last round.
    """
    main = names.of_client(judged_by).rpartition("/")[2]
    models = _models(run, _group(judged_by))
    last = run.metrics.loc[run.evaluated()[-1:]].iloc[0]
    others = {name: _words(name) for name in run.scores if name != main}
    endings = (column.partition("@") for column in last.index if column.startswith(f"{models[0]}/"))
    groups = {f"{main}@{own}": own for name, _, own in endings if own and name.endswith(f"/{main}")}
    found = [
        rows(sheet, f"{len(sheet.rows)} groups of clients" * (len(sheet.rows) > _SHOWN))
        for sheet in (
            _by_model("other scores", others, models, last),
            _by_model(f"{_words(main)} of a group", groups, models, last),
        )
        if sheet.rows
    ]
    judged = _judged(run, judged_by, models)
    return [Rows(judged), *found] if judged else [*found]


def _judged(run: RunFolder, judged_by: str, models: Sequence[str]) -> dict[str, Sheet]:
    """Make groups of rows of the score by which a run is judged."""
    main = names.of_client(judged_by).rpartition("/")[2]
    summary = summarise(run.history(), {main: run.scores.get(main, True), **run.scores})
    listed = [main, *(main + ending for ending in names.SUMMARIES)]
    shown = [f"{one}/{name}" for one in models for name in listed]
    shown = [metric for metric in shown if metric in run.metrics]
    kinds = [at for at in KINDS if any(f"{metric}/{at}" in summary for metric in shown)]
    grouped: dict[str, list[list[str]]] = {}
    for metric in shown:
        heading, first = _place(metric)
        cells = [_number(metric, summary.get(f"{metric}/{at}", np.nan)) for at in kinds]
        grouped.setdefault(heading, []).append([first, *cells])
    heads = ["test", *(names.rounds(at) for at in kinds)]
    ordered = sorted(grouped, key=lambda heading: heading == WORST)
    sheets = {heading: Sheet("", heads, grouped[heading]) for heading in ordered}
    if sheets and (said := sentence(run, judged_by)):
        sheets[ordered[-1]] = replace(sheets[ordered[-1]], notes=[said])
    return sheets


def _by_model(
    first: str, found: Mapping[str, str], models: Sequence[str], last: pd.Series[float]
) -> Sheet:
    """Make a row for each name of a score, by its words, and a column for each model."""

    def cell(metric: str) -> str:
        return _number(metric, float(last[metric])) if metric in last else NONE

    cells = [
        [words, *(cell(f"{model}/{name}") for model in models)]
        for name, words in found.items()
        if any(f"{model}/{name}" in last for model in models)
    ]
    return Sheet("", [first, *(names.model(f"{model}/x") for model in models)], cells)


def _words(name: str) -> str:
    return names.score(f"test/personal/{name}").removeprefix("test ")


def _models(run: RunFolder, judged: str) -> list[str]:
    """Return the models that are listed, those by which the run is judged first."""
    tested = {_group(name) for name in run.metrics.columns if name.startswith("test/")}
    return [judged, *sorted(one for one in tested - {judged} if not names.is_drawn(one))]


def _place(metric: str) -> tuple[str, str]:
    """Return the heading of the rows in which a metric stands, and its name among these."""
    models = names.model(metric)
    if names.parted(metric)[1] == "_worst10":
        return WORST, models
    return models, names.score(metric).removeprefix("test ")


def _measured(run: RunFolder) -> list[Part]:
    """Make a row for each number of a further evaluation, besides scores."""
    last, parts = run.metrics.iloc[-1], list[Part]()
    for one in names.shown():
        shown = [(what, last[name]) for name, what in one.facts.items() if name in last]
        cells = [[what, NONE if np.isnan(value) else f"{value:.4g}"] for what, value in shown]
        if cells:
            parts.append(rows(Sheet("", [one.title, "last round"], cells)))
    return parts


def _group(metric: str) -> str:
    return metric.rpartition("/")[0]


def _number(metric: str, value: float) -> str:
    if np.isnan(value):
        return NONE
    scale, digits = names.scale(metric)
    return f"{scale * value:.{digits}f}" + " %" * (scale == 100)


def _costs(run: RunFolder) -> Sheet:
    cells = []
    for what, name, written in COSTS:
        if name == "comm/seconds" and run.simulated is None:
            continue
        total = run.column(name).sum()
        pair = total, total / run.round
        if written is None:
            cells.append([what, *(decimal(int(count)) for count in pair)])
        else:
            cells.append([what, *(f.format(n) for f, n in zip(written, pair, strict=True))])
    return Sheet("", ["", "in all rounds", "a round"], cells)


def _clients(run: RunFolder, judged_by: str) -> Sheet:
    """Make a row for each client, from the last evaluated round."""
    rounds, group = run.evaluated()[-1:], _group(judged_by)
    shown = _columns_of_clients(run, judged_by)
    values = {name: run.over_rounds(name, rounds).iloc[0] for name in shown}
    # Scores are beside the names, where a narrow screen shows them.
    shown.sort(key=lambda name: ("/" not in name, name != names.of_client(judged_by)))
    first = sum("/" in name for name in shown)
    heads = [_heading(name, group) for name in shown]
    labels = [] if run.label_counts is None else ["labels", ""]
    heads = ["client", *heads[:first], "training samples", *labels, *heads[first:]]
    cells_of = []
    for client, samples in enumerate(run.samples):
        cells = [_cell(name, values[name][client]) for name in shown]
        owned = [_cell("test_samples", samples), *_labels(run.label_counts, client)]
        cells_of.append([run.client_names[client], *cells[:first], *owned, *cells[first:]])
    known = [n for n in range(len(heads)) if {row[n] for row in cells_of} != {NONE}]
    return Sheet("", [heads[n] for n in known], [[row[n] for n in known] for row in cells_of])


def _columns_of_clients(run: RunFolder, judged_by: str) -> list[str]:
    """Return the columns of ``clients.csv`` that are shown."""
    group, _, main = names.of_client(judged_by).rpartition("/")
    # The column "uploaded" is left out: aggregation weights show it.
    plain = {"test_samples", "trained", *run.reported}
    if "discarded" in run.clients and (run.clients["discarded"] == 1).any():
        plain.add("discarded")
    columns = run.clients.columns
    return [name for name in columns if name in plain or _is_listed(name, group, main)]


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
    return "test samples" if column == "test_samples" else names.score(column).removeprefix("test ")


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
