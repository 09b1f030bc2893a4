"""Clients that joined later, and each personal model on every client's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pfl.results import names
from pfl.results.files import Floats, RunError, read_table
from pfl.results.matrices import name_clients
from pfl.results.plots import per_cent_of
from pfl.results.runs import RunFolder
from pfl.results.settings import Setting
from pfl.results.statistics import Estimate
from pfl.results.style import HEAT, WIDTH, Look, draw_mean, legend_above, panels, wrapped

CROSS = "cross.csv"
_ZERO_SHOT, _JOINED, _TUNED = "unseen", "unseen_joined", "unseen_tuned"


def have_joined(run: RunFolder) -> bool:
    """Return ``True`` if clients joined after the last round."""
    column = f"test/{_TUNED}/{_main(run)}"
    return column in run.metrics and not np.isnan(run.column(column)[-1])


def columns(run: RunFolder) -> dict[str, str]:
    """Return the columns about clients that joined after the last round, by heading."""
    main = _main(run)
    between = {f"after {k}": f"{_JOINED}_{k}" for k in range(1, 3)}
    groups = {"zero-shot": _ZERO_SHOT, **between, "joined": _JOINED, "tuned": _TUNED}
    wanted = {heading: f"test/{group}/{main}" for heading, group in groups.items()}
    wanted |= {heading: name for name, heading in names.LATER.items()}
    return {heading: name for heading, name in wanted.items() if name in run.metrics}


def joining(settings: Sequence[Setting]) -> Figure:
    """Draw the scores of newcomers over their local rounds, and after tuning by SGD.

    Lines are means over clients and seeds, bands one standard error. The short line at the right is
    the mean of the clients that trained.

    Raises:
        RunError: No clients joined in any run.
    """
    shown = [setting for setting in settings if have_joined(setting.runs[0])]
    if not shown:
        raise RunError("no clients have joined: hold some out with data.unseen")
    figure, (axes,) = panels(1, 0.6 * WIDTH, 2.6)
    metric = f"test/{_JOINED}/{_main(shown[0].runs[0])}"
    for number, setting in enumerate(shown):
        look, runs = Look.of(number), [run for run in setting.runs if have_joined(run)]
        values = np.concatenate([_curves(run) for run in runs])
        x, tuned = np.arange(values.shape[1] - 1), Estimate.of(values[:, -1])
        draw_mean(axes, x, values[:, :-1], look, label=setting.label)
        style: dict[str, Any] = {"color": look.color, "marker": look.marker, "mfc": "none"}
        axes.errorbar(x[-1] + 1, tuned.mean, tuned.error or 0, **style)
        seen = np.mean([run.column(f"test/personal/{_main(run)}")[-1] for run in runs])
        axes.plot([x[-1] + 1.6, x[-1] + 2], [seen, seen], color=look.color)
    axes.set_xticks([*x, x[-1] + 1, x[-1] + 1.8], [*map(str, x), "tuned", "seen"])
    axes.set_xlabel("local rounds of the clients that join")
    axes.set_ylabel(names.score(metric))
    per_cent_of(axes.yaxis, metric)
    legend_above(figure, axes)
    return figure


def cross(settings: Sequence[Setting]) -> Figure:
    """Draw the score of each client's model on each client's test data, of the first run.

    Raises:
        RunError: No run has the file.
    """
    drawn = [(s.label, s.runs[0]) for s in settings if (s.runs[0].path / CROSS).is_file()]
    if not drawn:
        raise RunError(f"no run has a file {CROSS}: write it with pfl test --cross")
    figure, axes = panels(len(drawn), WIDTH * min(1, 0.5 * len(drawn)), 3.0)
    for panel, (label, run) in zip(axes, drawn, strict=True):
        table = read_table(run.path / CROSS, ("model", "client", "score"))
        matrix = table.pivot(index="model", columns="client", values="score")
        image = panel.imshow(matrix, cmap=HEAT, aspect="auto")
        figure.colorbar(image, ax=panel, label=f"test {_main(run)}", shrink=0.8)
        panel.set_title(wrapped(label, WIDTH / len(drawn)))
        panel.set_xlabel("test data of")
        panel.set_ylabel("model of")
        name_clients(panel, run, matrix.index.to_numpy(), matrix.columns.to_numpy())
    return figure


def _curves(run: RunFolder) -> Floats:
    """Return (clients, K + 2) scores: zero-shot, after each local round, tuned."""
    main = _main(run)
    between, number = list[str](), 1
    while f"test/{_JOINED}_{number}/{main}" in run.clients:
        between.append(f"{_JOINED}_{number}")
        number += 1
    groups = (_ZERO_SHOT, *between, _JOINED, _TUNED)
    rounds = run.evaluated()[-1:]
    values = np.stack([run.by_client(f"test/{group}/{main}", rounds) for group in groups], 1)
    joined: Floats = values[~np.isnan(values[:, 0])]
    return joined


def _main(run: RunFolder) -> str:
    return next(iter(run.scores))
