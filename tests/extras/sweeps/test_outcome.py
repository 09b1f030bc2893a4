"""The table of a sweep's points, from trials by hand."""

from __future__ import annotations

import math

import optuna
import pytest
from optuna.distributions import FloatDistribution

from pfl.extras.sweeps.file import read
from pfl.extras.sweeps.points import Points
from pfl.extras.sweeps.report import outcomes, sheet
from tests.extras.sweeps.conftest import LR, METRIC, write

# State, of the trial and as told, value, and what was reported after each round.
TRIALS = [
    ("COMPLETE", "done", 0.5, {}),
    ("PRUNED", "stopped", 0.6, {1: 0.7, 2: 0.6}),
    ("COMPLETE", "failed", math.inf, {1: 0.9}),
    ("RUNNING", None, None, {1: 0.3}),
    ("COMPLETE", "done", 0.8, {}),
]


@pytest.mark.parametrize(
    ("goal", "order"), [("maximize", [5, 1, 2, 3, 4]), ("minimize", [1, 5, 2, 3, 4])]
)
def test_points_are_sorted_by_state_and_value(goal, order):
    """One that was stopped has its last value; one that failed, or is under way, has none."""
    sweep = read(
        write({LR: {"min": 0.0, "max": 1.0}}, method="random", metric={**METRIC, "goal": goal})
    )
    points = Points(sweep, optuna.create_study(), None, None, (), 0, 5)
    for number, (state, told, value, reported) in enumerate(TRIALS):
        told = {} if told is None else {"state": told}
        trial = optuna.create_trial(
            state=optuna.trial.TrialState[state],
            value=value,
            params={"lr": 0.125 * number},
            distributions={"lr": FloatDistribution(0.0, 1.0)},
            intermediate_values=reported,
            user_attrs={"point": number, "seconds": 2.6, **told},
        )
        points.study.add_trial(trial)
    records = outcomes(points)
    assert [one["point"] for one in records] == order
    rows = {row[0]: row[1:] for row in sheet(points, records).rows}
    assert rows["1"] == ["0", "0.5", "2.6", "done"]
    assert rows["2"] == ["0.125", "0.6", "2.6", "stopped"]
    assert rows["3"] == ["0.25", "-", "2.6", "failed"]
    assert rows["4"] == ["0.375", "-", "2.6", "running"]
