"""Outputs of a test are not held beyond a bound, and scores keep their bits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from datamodules import Segmentation, Survival
from pfl.core.seeds import generator
from pfl.core.task import Binary, Classification, MultiLabel, Regression, Task
from pfl.training import metrics
from pfl.training.metrics import Collector, Rows, Scorer


def collected(scorer, batches):
    collector = Collector(scorer)
    for batch in batches:
        collector.add(*batch)
    return collector.answer()


def batches_of(task, classes, seed=0):
    rng, size = generator(seed, "rows"), (8, 8) if isinstance(task, Segmentation) else ()
    for samples in (7, 1, 12, 5):
        y = torch.randint(classes, (samples, *size), generator=rng)
        if isinstance(task, Survival):
            yield (
                torch.randn(samples, 1, generator=rng),
                torch.rand(samples, 2, generator=rng).round(),
            )
        else:
            yield torch.randn(samples, classes, *size, generator=rng), y


@pytest.mark.parametrize(
    ("task", "classes", "added"),
    [
        (Classification(), 5, ()),
        (Classification(), 5, ["torchmetrics.AUROC", "torchmetrics.CohenKappa"]),
        (Segmentation(3), 3, ["torchmetrics.JaccardIndex", "torchmetrics.MatthewsCorrCoef"]),
        (Survival(), 2, ()),
    ],
)
def test_scores_of_rows_have_the_bits_of_scores_of_outputs(monkeypatch, task, classes, added):
    scorer = Scorer(task, task.outputs(classes), added)
    whole = collected(scorer, batches_of(task, classes))
    monkeypatch.setattr(metrics, "HELD_NUMBERS", 20)
    rows = collected(scorer, batches_of(task, classes))
    assert isinstance(rows, Rows)
    assert not isinstance(whole, Rows)
    assert scorer.scores([rows]) == scorer.scores([whole])


SPREAD = (Regression(), Regression(quantiles=(0.1, 0.5, 0.9)), MultiLabel())


def numbers_of(task, targets=3, seed=0):
    rng = generator(seed, "sums")
    for samples in (7, 1, 12, 5):
        y = 1e3 + torch.randn(samples, targets, generator=rng, dtype=torch.float64)
        if isinstance(task, MultiLabel):
            y = (y > 1e3).float()
        else:
            # One that never varies, and has a mean that is rounded.
            y[:, 0] = 0.1
        outputs = torch.randn(samples, task.outputs(targets), generator=rng, dtype=torch.float64)
        yield outputs + (0 if isinstance(task, MultiLabel) else 1e3), y


@pytest.mark.parametrize("task", SPREAD, ids=str)
@pytest.mark.parametrize("added", [(), ("torchmetrics.MeanSquaredError",)])
def test_scores_of_sums_are_those_of_outputs(monkeypatch, task, added):
    if isinstance(task, MultiLabel):
        added = [path.replace("MeanSquaredError", "AUROC") for path in added]
    scorer = Scorer(task, task.outputs(3), added)
    (right,) = scorer.scores([collected(scorer, numbers_of(task))])
    monkeypatch.setattr(metrics, "HELD_NUMBERS", 20)
    answer = collected(scorer, numbers_of(task))
    assert isinstance(answer, Rows)
    assert answer.rows.dim() == 1
    (found,) = scorer.scores([answer])
    assert found.keys() == right.keys()
    assert found == pytest.approx(right, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("task", SPREAD, ids=str)
def test_sums_lack_what_scores_of_outputs_lack_and_see_what_is_no_number(monkeypatch, task):
    monkeypatch.setattr(metrics, "HELD_NUMBERS", 2)
    scorer, y = Scorer(task, task.outputs(2)), torch.zeros(6, 2)
    outputs = torch.full((6, task.outputs(2)), -1.0)
    batches = [(outputs[:3], y[:3]), (outputs[3:], y[3:])]
    (lacks,) = scorer.scores([collected(scorer, batches)])
    assert {*lacks} == {*task.scores_better} - {*task.may_lack}
    assert lacks == pytest.approx(scorer.scores([(outputs, y)])[0])
    outputs[1, 0] = torch.nan
    (broken,) = scorer.scores([collected(scorer, batches)])
    assert {*broken} == {*scorer.better}
    assert all(value != value for value in broken.values())


def test_a_class_with_scores_of_its_own_has_no_rows_and_sums_of_its_base():
    @dataclass(frozen=True, repr=False)
    class Worst(Regression):
        def scores(self, outputs, y):
            return super().scores(outputs, y).flip(0)

    assert not Scorer(Worst(), 1).has_sums
    assert Scorer(Regression(), 1).has_sums


def test_a_model_with_one_output_that_is_no_number_has_no_score(monkeypatch):
    monkeypatch.setattr(metrics, "HELD_NUMBERS", 20)
    scorer = Scorer(Segmentation(3), 3, ["torchmetrics.JaccardIndex"])
    (outputs, y), *rest = batches_of(Segmentation(3), 3)
    outputs[0, 0, 0, 0] = torch.nan
    for answer in (collected(scorer, [(outputs, y), *rest]), (outputs, y)):
        (scores,) = scorer.scores([answer])
        assert {*scores} == {*scorer.better}
        assert all(value != value for value in scores.values())


def test_a_task_all_of_whose_scores_are_undefined_lacks_them_unless_an_output_is_none():
    scorer = Scorer(Survival(), 1)
    y = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    assert scorer.scores([(torch.zeros(2, 1), y)]) == [{}]
    (broken,) = scorer.scores([(torch.tensor([[0.0], [torch.nan]]), y)])
    assert {*broken} == {"cindex", "loss"}


@dataclass(frozen=True, repr=False)
class Watched(Task):
    """A dense task that counts how many outputs are alive."""

    scores_better = {"error": False}  # noqa: RUF012
    loss_name = "error"

    def rows(self, outputs, y):
        return (outputs - y).abs().flatten(1).mean(1, keepdim=True)


def test_what_is_held_does_not_grow_with_the_number_of_samples():
    """Of 100 MB of outputs at most 4 MB x 4 bytes and a batch are alive at a time."""
    scorer, alive, most = Scorer(Watched(), 1), [], 0
    collector = Collector(scorer)
    for _ in range(100):
        outputs = torch.zeros(4, 1, 256, 256)
        alive.append(torch.multiprocessing.reductions.StorageWeakRef(outputs.untyped_storage()))
        collector.add(outputs, outputs)
        del outputs
        alive = [one for one in alive if not one.expired()]
        most = max(most, len(alive))
    assert most * 4 * 256 * 256 <= metrics.HELD_NUMBERS + 4 * 256 * 256
    assert scorer.scores([collector.answer()]) == [{"error": 0.0}]


def test_binary_holds_the_outputs_that_its_metrics_need():
    answer = collected(Scorer(Binary(), 2), [(torch.randn(9, 2), torch.arange(9) % 2)] * 2)
    assert not isinstance(answer, Rows)
    assert len(answer[0]) == 18
