"""The picture of clients that joined later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pfl.extras.newcomers.shown import JOINED, TUNED, ZERO_SHOT
from pfl.results import names
from pfl.results.analyses import Kind
from pfl.results.files import Floats, RunError
from pfl.results.plots import per_cent_of
from pfl.results.runs import At, RunFolder
from pfl.results.settings import Setting
from pfl.results.statistics import Estimate
from pfl.results.style import WIDTH, Look, draw_mean, legend_above, panels


def _have_joined(run: RunFolder) -> bool:
    """Return ``True`` if clients joined after the last round."""
    column = f"test/{TUNED}/{run.main}"
    return column in run.metrics and not np.isnan(run.column(column)[-1])


def _joining(settings: Sequence[Setting], by: str, at: At) -> Figure:
    """Draw the scores of newcomers over their local rounds, and after tuning by SGD.

    Lines are means over clients and seeds, bands one standard error. The short line at the right is
    the mean of the clients that trained.

    Raises:
        RunError: No clients joined in any run.
    """
    shown = [setting for setting in settings if _have_joined(setting.runs[0])]
    if not shown:
        raise RunError("no clients have joined: hold some out with data.unseen")
    figure, (axes,) = panels(1, 0.6 * WIDTH, 2.6)
    metric = f"test/{JOINED}/{shown[0].runs[0].main}"
    for number, setting in enumerate(shown):
        look, runs = Look.of(number), [run for run in setting.runs if _have_joined(run)]
        values = np.concatenate([_curves(run) for run in runs])
        x, tuned = np.arange(values.shape[1] - 1), Estimate.of(values[:, -1])
        draw_mean(axes, x, values[:, :-1], look, label=setting.label)
        style: dict[str, Any] = {"color": look.color, "marker": look.marker, "mfc": "none"}
        axes.errorbar(x[-1] + 1, tuned.mean, tuned.error or 0, **style)
        seen = np.mean([run.column(f"test/personal/{run.main}")[-1] for run in runs])
        axes.plot([x[-1] + 1.6, x[-1] + 2], [seen, seen], color=look.color)
    axes.set_xticks([*x, x[-1] + 1, x[-1] + 1.8], [*map(str, x), "tuned", "seen"])
    axes.set_xlabel("local rounds of the clients that join")
    axes.set_ylabel(names.score(metric))
    per_cent_of(axes.yaxis, metric)
    legend_above(figure, axes)
    return figure


def _curves(run: RunFolder) -> Floats:
    """Return (clients, K + 2) scores: zero-shot, after each local round, tuned."""
    main = run.main
    between, number = list[str](), 1
    while f"test/{JOINED}_{number}/{main}" in run.clients:
        between.append(f"{JOINED}_{number}")
        number += 1
    groups = (ZERO_SHOT, *between, JOINED, TUNED)
    rounds = run.evaluated()[-1:]
    values = np.stack([run.by_client(f"test/{group}/{main}", rounds) for group in groups], 1)
    joined: Floats = values[~np.isnan(values[:, 0])]
    return joined


PICTURES = {
    "newcomers": Kind(
        "Clients that joined later: zero-shot (0), after each local round, and tuned by SGD; at "
        "the right the mean of the clients that trained.",
        _joining,
        _have_joined,
    )
}
