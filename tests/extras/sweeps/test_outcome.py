"""The table of a sweep's points, from trials by hand."""

from __future__ import annotations

import optuna
import pytest
from optuna.distributions import FloatDistribution

from pfl.extras.sweeps.file import read
from pfl.extras.sweeps.outcome import outcomes, sheet
from pfl.extras.sweeps.pictures import draw
from tests.extras.sweeps.conftest import LR, METRIC, write

# State, value, what was reported after each round, and whether the point failed.
TRIALS = [
    ("COMPLETE", 0.5, {}, False),
    ("PRUNED", None, {1: 0.7, 2: 0.6}, False),
    ("PRUNED", None, {1: 0.9}, True),
    ("FAIL", None, {}, True),
    ("FAIL", None, {}, False),
    ("COMPLETE", 0.8, {}, False),
]


@pytest.mark.parametrize(
    ("goal", "order"), [("maximize", [6, 1, 2, 3, 4, 5]), ("minimize", [1, 6, 2, 3, 4, 5])]
)
def test_points_are_sorted_by_state_and_value(goal, order):
    """One that was stopped has its last value; one that failed, or is to be resumed, has none."""
    sweep = read(
        write({LR: {"min": 0.0, "max": 1.0}}, method="random", metric={**METRIC, "goal": goal})
    )
    trials = [
        optuna.create_trial(
            state=optuna.trial.TrialState[state],
            value=value,
            params={LR: 0.125 * number},
            distributions={LR: FloatDistribution(0.0, 1.0)},
            intermediate_values=reported,
            user_attrs={"point": number, "seconds": 2.6, "failed": failed},
        )
        for number, (state, value, reported, failed) in enumerate(TRIALS)
    ]
    table = outcomes(sweep, trials)
    assert table["point"].tolist() == order
    rows = {row[0]: row[1:] for row in sheet(sweep, table).rows}
    assert rows["1"] == ["0", "0.5000", "3", "done"]
    assert rows["2"] == ["0.125", "0.6000", "3", "stopped"]
    assert rows["3"] == ["0.25", "-", "3", "failed"]
    assert rows["5"] == ["0.5", "-", "3", "waiting"]
    (picture,) = draw(sweep, trials)
    (line,) = picture.figure.axes[0].lines
    assert picture.name == "curve"
    assert line.get_xydata().tolist() == [[0.0, 0.5], [0.125, 0.6], [0.625, 0.8]]
