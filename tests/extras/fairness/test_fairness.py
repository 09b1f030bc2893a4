"""Fairness over clients, with numbers worked out by hand."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from lightning_modules import FedAvg, FedPer
from pfl.core.task import Regression
from pfl.extras.fairness import Fairness, gini, jain
from pfl.results.compare import compare
from pfl.results.compare_sheets import sheets
from pfl.results.report import report
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from pfl.testing.federation import fit
from pfl.testing.toy import blobs, mlp

SGD = partial(torch.optim.SGD, lr=0.1)


@pytest.mark.parametrize(
    ("scores", "of_gini", "of_jain"),
    [
        # All the same, even if nobody has anything.
        ((1, 1, 1, 1), 0, 1),
        ((0, 0), 0, 1),
        ((0.7,), 0, 1),
        # One has all: 1 - 1/N and 1/N.
        ((1, 0, 0, 0), 3 / 4, 1 / 4),
        # The pairs differ by 1, 2 and 1, in both orders: 8/9 by twice the mean of 2; 6^2 / (3 14).
        ((3, 1, 2), 2 / 9, 36 / 42),
        # Half as much for all changes nothing.
        ((1.5, 0.5, 1), 2 / 9, 36 / 42),
    ],
)
def test_gini_and_jain_by_hand(scores, of_gini, of_jain):
    assert gini(scores) == pytest.approx(of_gini, abs=1e-15)
    assert jain(scores) == pytest.approx(of_jain, abs=1e-15)


@pytest.mark.parametrize("scores", [(0.5, math.nan), (math.nan, 0.5), (1, -1)])
def test_what_is_not_a_share_has_no_index(scores):
    assert math.isnan(gini(scores))
    assert math.isnan(jain(scores))


def test_a_round_has_the_columns_and_nothing_else_changes(tmp_path):
    options = {"evaluate_every": 2, "rounds": 3}
    run = fit(FedPer(mlp(), optimizer=SGD), evaluations=[Fairness()], **options)
    plain = fit(FedPer(mlp(), optimizer=SGD), **options)
    assert run.fingerprint == plain.fingerprint
    columns = {"fairness/worst", "fairness/gini", "fairness/jain"}
    assert [columns <= row.keys() for row in run.history] == [False, True, True]
    for one, other in zip(run.history, plain.history, strict=True):
        assert one.keys() - other.keys() in (columns, set())
    scores = [row["test/personal/acc"] for row in run.latest.clients]
    assert run.history[-1]["fairness/worst"] == min(scores)
    assert run.history[-1]["fairness/gini"] == gini(scores)
    assert run.history[-1]["fairness/jain"] == jain(scores)


def test_the_worst_client_has_the_largest_loss():
    data = blobs(task=Regression())
    run = fit(FedAvg(mlp(), optimizer=SGD, task=Regression()), data, evaluations=[Fairness()])
    losses = [row["test/personal/loss"] for row in run.latest.clients]
    assert run.history[-1]["fairness/worst"] == max(losses)


def test_comparisons_and_reports_show_them(tmp_path):
    folder = {"evaluations": [Fairness()], "default_root_dir": str(tmp_path)}
    read = RunFolder.read(fit(FedPer(mlp(), optimizer=SGD), **folder).folder)
    last = read.metrics.iloc[-1]
    (sheet,) = [one for one in sheets(compare(group([read])[0])) if one.title.startswith("Fair")]
    assert list(sheet.columns) == ["setting", "worst client (%)", "Gini", "Jain"]
    scales = (("worst", 100, 2), ("gini", 1, 4), ("jain", 1, 4))
    expected = [f"{scale * last[f'fairness/{name}']:.{digits}f}" for name, scale, digits in scales]
    assert list(sheet.rows[0][1:]) == expected
    page = report(group([read])[0])
    assert f"{last['fairness/gini']:.4g}" in page
    assert "Jain" in page
