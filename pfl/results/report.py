"""An HTML report of one run: summary, pictures, clients, configuration."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.filesize import decimal

from pfl.disk.reading import text
from pfl.federation.summary import KINDS, summarise
from pfl.results import names, page
from pfl.results.files import Floats
from pfl.results.find import common_score
from pfl.results.page import Markup
from pfl.results.pictures import draw
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from pfl.results.words import WORDS


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
    parts = [
        page.section("Results", _scores(run, judged_by)),
        *_gaps(run),
        page.section("Cost", _costs(run)),
        page.section("Pictures", page.side_by_side(_pictures(run))),
        page.section(f"Clients after round {run.evaluated()[-1]:.0f}", _clients(run, judged_by)),
        page.section("Run", _facts(run)),
    ]
    if (config := text(run.path / "config.yaml")) is not None:
        parts.append(page.section("Configuration", page.verbatim(config)))
    return page.page(f"{run.method}{data}", ", ".join(about), parts)


def _scores(run: RunFolder, judged_by: str) -> Markup:
    """Make a row for each metric and a column for each way of choosing rounds."""
    judged = _group(judged_by)
    # Local rounds of clients that join are drawn.
    groups = {
        _group(name)
        for name in run.metrics.columns
        if name.startswith("test/") and not name.startswith("test/unseen_joined_")
    }
    ordered = [judged, *sorted(groups - {judged})]
    main, *others = run.scores
    listed = [main, *(main + ending for ending in names.SUMMARIES), *others]
    metrics = [f"{group}/{name}" for group in ordered for name in listed]
    summary = summarise(run.history(), run.scores)
    rows = [
        [
            names.described(metric),
            *(_number(metric, summary.get(f"{metric}/{at}", np.nan)) for at in KINDS),
        ]
        for metric in metrics
        if metric in run.metrics
    ]
    return page.table(["", *(names.rounds(at) for at in KINDS)], rows)


def _gaps(run: RunFolder) -> Iterator[Markup]:
    """Yield the section on clients that joined later, if there are any."""
    columns = [(what, name) for name, what in WORDS["gaps"].items() if name in run.metrics]
    last = [(what, run.column(name)[-1]) for what, name in columns]
    rows = [[what, "-" if np.isnan(value) else f"{value:.4g}"] for what, value in last]
    if rows:
        yield page.section("Clients that joined later", page.table(["", "last round"], rows))


def _group(metric: str) -> str:
    return metric.rpartition("/")[0]


def _number(metric: str, value: float) -> str:
    if np.isnan(value):
        return "-"
    scale, digits = names.scale(metric)
    return f"{scale * value:.{digits}f}" + " %" * (scale == 100)


def _costs(run: RunFolder) -> Markup:
    seconds = "{:,.1f} s".format, "{:,.3f} s".format
    counted = "{:,.0f}".format, "{:,.1f}".format
    costs = (
        ("sent to clients", "comm/bytes_down", (_bytes, _bytes)),
        ("sent to the server", "comm/bytes_up", (_bytes, _bytes)),
        ("training", "time/train", seconds),
        ("aggregation", "time/aggregate", seconds),
        ("tests", "time/evaluate", seconds),
        ("training samples seen", "train/samples", counted),
        ("optimiser steps", "train/steps", counted),
    )
    simulated = () if run.simulated is None else (("simulated time", "comm/seconds", seconds),)
    rows = []
    for what, name, (in_all, in_a_round) in (*costs, *simulated):
        total = run.column(name).sum()
        rows.append([what, in_all(total), in_a_round(total / run.round)])
    return page.table(["", "in all rounds", "a round"], rows)


def _bytes(count: float) -> str:
    return decimal(int(count))


def _pictures(run: RunFolder) -> Iterator[Markup]:
    settings, _ = group([run])
    for picture in draw(settings):
        if picture.figure is not None:
            yield page.picture(picture.name, picture.figure, picture.caption)


def _clients(run: RunFolder, judged_by: str) -> Markup:
    """Make a row for each client, from the last evaluated round."""
    rounds, counts = run.evaluated()[-1:], run.label_counts
    group, main = _group(judged_by), next(iter(run.scores))
    # The column "uploaded" is left out: aggregation weights show it.
    plain = {"test_samples", "trained", *run.reported}
    # Earlier versions did not record it.
    if "discarded" in run.clients and (run.clients["discarded"] == 1).any():
        plain.add("discarded")
    shown = [name for name in run.clients.columns if name in plain or _is_listed(name, group, main)]
    values = {name: run.over_rounds(name, rounds).iloc[0] for name in shown}
    labels = [] if counts is None else ["labels held", ""]
    heads = ["client", "training samples", *labels, *(_heading(name, group) for name in shown)]
    rows = []
    for client, samples in enumerate(run.samples):
        cells = [run.client_names[client], _cell("test_samples", samples)]
        if counts is not None:
            cells += _labels(counts[client])
        cells += [_cell(name, values[name][client]) for name in shown]
        rows.append(cells)
    return page.table(heads, rows)


def _is_listed(column: str, group: str, main: str) -> bool:
    """Return ``True`` for scores of models that the run is judged by, and others' main score."""
    models, _, name = column.rpartition("/")
    between = models.startswith("test/unseen_joined_")
    return models == group or (models.startswith("test/") and name == main and not between)


def _heading(column: str, group: str) -> str:
    if "/" in column and _group(column) != group:
        return names.described(column)
    return "test samples" if column == "test_samples" else names.score(column)


def _cell(column: str, value: float) -> str:
    if np.isnan(value):
        return "-"
    if column in ("trained", "discarded", "unseen"):
        return "yes" if value else "no"
    if column == "test_samples":
        return f"{value:,.0f}"
    return _number(column, value) if "/" in column else f"{value:.3g}"


def _labels(counts: Floats) -> list[str]:
    held = int((counts > 0).sum())
    return [str(held), page.bars(counts.tolist(), f"samples of each of {len(counts)} classes")]


def _facts(run: RunFolder) -> Markup:
    """List the run's header and its environment."""
    facts = dict(run.environment.get("header", {}))
    facts |= {key: run.environment[key] for key in ("platform", "python") if key in run.environment}
    facts |= run.environment.get("packages", {})
    facts["partition hash"] = run.split_hash
    return page.table(["", ""], [[str(key), str(value)] for key, value in facts.items()])
