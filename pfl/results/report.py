"""An HTML report of one run: summary, pictures, clients, configuration."""

from __future__ import annotations

import numpy as np
from rich.filesize import decimal

from pfl.core.sheet import Sheet
from pfl.disk.reading import text
from pfl.federation.summary import KINDS, summarise
from pfl.results import names
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
    config, later = text(run.path / "config.yaml"), _later(run)
    sections: dict[str, Part] = {
        "Results": _scores(run, judged_by),
        **({"Clients that joined later": later} if later.rows else {}),
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
    judged = _group(judged_by)
    # Local rounds of clients that join are in a picture.
    groups = {
        _group(name)
        for name in run.metrics.columns
        if name.startswith("test/") and not name.startswith("test/unseen_joined_")
    }
    main, *others = run.scores
    listed = [main, *(main + ending for ending in names.SUMMARIES), *others]
    metrics = [f"{one}/{name}" for one in (judged, *sorted(groups - {judged})) for name in listed]
    shown = [metric for metric in metrics if metric in run.metrics]
    summary = summarise(run.history(), run.scores)
    kinds = [at for at in KINDS if any(f"{metric}/{at}" in summary for metric in shown)]
    rows: dict[str, list[list[str]]] = {}
    for metric in shown:
        worst = names.parted(metric)[1] == "_worst10"
        own = names.score(metric).removeprefix("test ")
        models = names.model(metric)
        first = models if worst else own
        group = WORST if worst else models
        cells = [_number(metric, summary.get(f"{metric}/{at}", np.nan)) for at in kinds]
        rows.setdefault(group, []).append([first, *cells])
    ordered = sorted(rows, key=lambda group: group == WORST)
    heads = ["test", *(names.rounds(at) for at in kinds)]
    said = sentence(run, judged_by)
    return {
        group: Sheet("", heads, rows[group], [said] if said and group == ordered[-1] else [])
        for group in ordered
    }


def _later(run: RunFolder) -> Sheet:
    """Make a row for each number about clients that joined later, besides their scores."""
    last = run.metrics.iloc[-1]
    shown = [(what, last[name]) for name, what in names.WORDS["gaps"].items() if name in last]
    rows = [[what, NONE if np.isnan(value) else f"{value:.4g}"] for what, value in shown]
    return Sheet("", ["", "last round"], rows)


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
    rounds, counts = run.evaluated()[-1:], run.label_counts
    group, main = _group(judged_by), next(iter(run.scores))
    # The column "uploaded" is left out: aggregation weights show it.
    plain = {"test_samples", "trained", *run.reported}
    if "discarded" in run.clients and (run.clients["discarded"] == 1).any():
        plain.add("discarded")
    shown = [name for name in run.clients.columns if name in plain or _is_listed(name, group, main)]
    values = {name: run.over_rounds(name, rounds).iloc[0] for name in shown}
    labels = [] if counts is None else ["labels", ""]
    # Scores are beside the names, where a narrow screen shows them.
    scores = [name for name in shown if "/" in name]
    others = [name for name in shown if "/" not in name]
    first, last = ([_heading(name, group) for name in some] for some in (scores, others))
    heads = ["client", *first, "training samples", *labels, *last]
    rows = []
    for client, samples in enumerate(run.samples):
        cells = [run.client_names[client], *(_cell(n, values[n][client]) for n in scores)]
        cells.append(_cell("test_samples", samples))
        if counts is not None:
            own = counts[client]
            label = f"samples of each of {len(own)} classes"
            cells += [str((own > 0).sum()), bars(own.tolist(), label)]
        rows.append(cells + [_cell(name, values[name][client]) for name in others])
    known = [n for n, head in enumerate(heads) if {row[n] for row in rows} != {NONE}]
    return Sheet("", [heads[n] for n in known], [[row[n] for n in known] for row in rows])


def _is_listed(column: str, group: str, main: str) -> bool:
    """Return ``True`` for scores of models by which the run is judged, and others' main score."""
    models, _, name = column.rpartition("/")
    between = models.startswith("test/unseen_joined_")
    return models == group or (models.startswith("test/") and name == main and not between)


def _heading(column: str, group: str) -> str:
    if "/" in column and _group(column) != group:
        return names.described(column)
    return "test samples" if column == "test_samples" else names.score(column)


def _cell(column: str, value: float) -> str:
    if np.isnan(value):
        return NONE
    if column in ("trained", "discarded", "unseen"):
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
