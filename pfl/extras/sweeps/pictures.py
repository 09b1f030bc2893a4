"""Pictures of a sweep: all points across their parameters, and the importance of each.

A sweep of one parameter has one picture, the points over its values.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import matplotlib
import numpy as np
import optuna
from matplotlib import pyplot
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization.matplotlib import plot_parallel_coordinate

from pfl.extras.sweeps.file import Sweep
from pfl.extras.sweeps.outcome import last_value, outcomes, value_text
from pfl.extras.sweeps.search import failed
from pfl.results import names
from pfl.results.pictures import Picture
from pfl.results.settings import short_names
from pfl.results.style import COLOURS, WIDTH, panels, per_cent, styled, wrapped

# With fewer points, shares of variance are meaningless.
LEAST = 8
# Mean of red, green and blue of the palest line, where 1 is white.
_PALEST = 0.8


def draw(sweep: Sweep, trials: Sequence[FrozenTrial]) -> list[Picture]:
    """Draw the pictures of points' last trials; one that cannot be drawn has the reason."""
    drawn = []
    one = len(sweep.space.varied) == 1
    with styled():
        for picture in (curve,) if one else (parallel_coordinates, importance):
            try:
                drawn.append(Picture(picture.__name__, picture(sweep, trials)))
            except ValueError as error:
                drawn.append(Picture(picture.__name__, refusal=str(error)))
    return drawn


def curve(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Figure:
    """Draw each point over the only parameter; listed values stand side by side.

    Points that were stopped early are drawn with their last value.

    Raises:
        ValueError: No point has a value.
    """
    ((name, drawn),) = sweep.space.varied.items()
    values = _valued(trials)
    figure, (panel,) = panels(1, 0.65 * WIDTH, 2.3)
    if isinstance(drawn, CategoricalDistribution):
        panel.set_xticks(range(len(drawn.choices)), map(value_text, sweep.space.values[name]))
        places = [drawn.choices.index(trial.params[name]) for trial, _ in values]
    else:
        places = [trial.params[name] for trial, _ in values]
        panel.set_xscale("log" if getattr(drawn, "log", False) else "linear")
    pairs = sorted(zip(places, (value for _, value in values), strict=True))
    panel.plot(*zip(*pairs, strict=True), color=COLOURS[0], marker="o")
    panel.set_xlabel(short_names([name])[name])
    panel.set_ylabel(wrapped(names.score(sweep.metric.name), 1.5))
    return figure


def parallel_coordinates(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Figure:
    """Draw each point as a line from the metric across its parameters; darker lines are better.

    Points that were stopped early are drawn with their last value.

    Raises:
        ValueError: No point has a value.
    """
    valued = _valued(trials)
    look: dict[Any, Any] = {
        **{"figure.figsize": (WIDTH, 3), "figure.constrained_layout.use": True},
        **{"axes.grid": False, "axes.spines.right": True},
    }
    with matplotlib.rc_context(look), warnings.catch_warnings():
        # Optuna calls its pictures experimental, and matplotlib dislikes an axis of one value.
        warnings.simplefilter("ignore")
        score = wrapped(names.score(sweep.metric.name), 1.5)
        panel = plot_parallel_coordinate(_study(sweep, valued), target_name=score)
    best = outcomes(sweep, trials).iloc[0]
    if best["state"] == "done":
        panel.set_title(f"best: point {best['point']}")
    for lines in panel.collections:
        # The worst points would be as good as white, and lines at the ends cut in half.
        shades = cast(Any, lines.get_cmap())(np.linspace(0, 1, 256))
        lines.set_cmap(ListedColormap(shades[shades[:, :3].mean(1) < _PALEST]))
        lines.set_clip_on(False)
    figure = cast(Figure, panel.get_figure())
    # Out of pyplot's list, which holds figures until they are closed.
    pyplot.close(figure)
    return figure


def _valued(trials: Sequence[FrozenTrial]) -> list[tuple[FrozenTrial, float]]:
    """Return the trials that have a value, with the last one.

    Raises:
        ValueError: There are none.
    """
    valued = _finite([(trial, last_value(trial)) for trial in trials])
    if not valued:
        raise ValueError("no point has a value yet")
    return valued


def _finite(
    valued: Sequence[tuple[FrozenTrial, float | None]],
) -> list[tuple[FrozenTrial, float]]:
    return [(trial, value) for trial, value in valued if value is not None and np.isfinite(value)]


def _study(sweep: Sweep, valued: Sequence[tuple[FrozenTrial, float]]) -> optuna.Study:
    """Return a study of finished trials with these values, and short names of parameters."""
    short = short_names(list(sweep.space.varied))
    study = optuna.create_study(direction=sweep.metric.goal)
    for trial, value in valued:
        params, drawn = dict[str, Any](), dict[str, Any]()
        for name, distribution in trial.distributions.items():
            params[short[name]], drawn[short[name]] = trial.params[name], distribution
            if isinstance(distribution, CategoricalDistribution):
                # The choices label an axis.
                choices = [*map(_readable, distribution.choices)]
                params[short[name]] = _readable(trial.params[name])
                drawn[short[name]] = CategoricalDistribution(choices)
        study.add_trial(optuna.create_trial(value=value, params=params, distributions=drawn))
    return study


def _readable(choice: Any) -> Any:  # noqa: ANN401
    return float(value_text(choice)) if isinstance(choice, float) else choice


def importance(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Figure:
    """Draw the share of the metric's variance over the search space that each parameter explains.

    The rest, up to 100 %, is explained by interactions of parameters. If points were stopped early,
    all points are compared by their values at the time of the first stop, because the finished
    points alone are too similar.

    The shares are computed by Optuna's functional ANOVA (Hutter, Hoos and Leyton-Brown, "An
    Efficient Approach for Assessing Hyperparameter Importance", ICML 2014), without failed points.

    Raises:
        ValueError: There are too few points, or all values are equal.
    """
    # It imports scikit-learn's forests: half a second.
    from optuna.importance import FanovaImportanceEvaluator

    stopped = [t for t in trials if t.state == TrialState.PRUNED and not failed(t)]
    count = min((trial.last_step or 0 for trial in stopped), default=None)
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    valued = _finite(
        [(trial, trial.value) for trial in done]
        if count is None
        else [(trial, trial.intermediate_values.get(count)) for trial in (*done, *stopped)]
    )
    if len(valued) < LEAST:
        raise ValueError(f"importance needs {LEAST} points with a value, got {len(valued)}")
    if len({value for _, value in valued}) == 1:
        raise ValueError("importance needs different values, but those of all points are equal")
    importances = FanovaImportanceEvaluator(seed=0).evaluate(_study(sweep, valued))
    shares = dict(sorted(importances.items(), key=lambda item: -item[1]))
    figure, (panel,) = panels(1, 0.65 * WIDTH, 0.8 + 0.3 * len(shares))
    bars = panel.barh([*shares], [*shares.values()], 0.6, color=COLOURS[0])
    panel.bar_label(bars, [f"{share:.0%}" for share in shares.values()], padding=3)
    panel.invert_yaxis()
    panel.grid(visible=False, axis="y")
    panel.set_xlim(0, 1)
    per_cent(panel.xaxis)
    score = names.score(sweep.metric.name)
    after = "" if count is None else f" after {count} values"
    caption = (
        f"share of the variance of {score}{after} explained by it alone ({len(valued)} points)"
    )
    panel.set_xlabel(wrapped(caption, 4))
    return figure
