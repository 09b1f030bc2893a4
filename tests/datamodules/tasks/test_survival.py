"""Cox's likelihood and concordance: by hand, and as lifelines has them."""

from __future__ import annotations

import math

import pytest
import torch

from datamodules import IID, Survival, TensorData
from datamodules.tasks.survival import concordance
from lightning_modules import FedAvg
from pfl.core.seeds import generator
from tests.helpers.federation import fit, sgd


def drawn(samples=80, ties=True, seed=0):
    rng = generator(seed, "survival")
    x = torch.randn(samples, 3, generator=rng, dtype=torch.float64)
    time = torch.rand(samples, generator=rng, dtype=torch.float64) * 9 + 1
    event = (torch.rand(samples, generator=rng) < 0.6).double()
    return x, time.round() if ties else time, event


def test_the_likelihood_by_hand():
    """Risks e^0, e^ln2, e^ln3; events at times 1 and 1, the third is censored at 2.

    Breslow: both events divide by 1 + 2 + 3. Efron: the second divides by 6 - (1 + 2) / 2.
    """
    risk = torch.tensor([[0.0], [math.log(2)], [math.log(3)]])
    y = torch.tensor([[1.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
    breslow = 2 * math.log(6) - math.log(2)
    assert float(Survival().loss(risk, y)) == pytest.approx(breslow / 2)
    efron = math.log(6) + math.log(4.5) - math.log(2)
    assert float(Survival("efron").loss(risk, y)) == pytest.approx(efron / 2)


def test_a_batch_without_an_event_has_no_loss_and_a_padded_sample_does_not_count():
    risk, y = torch.randn(4, 1), torch.tensor([[3.0, 0.0], [1.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    assert float(Survival().loss(risk, y * torch.tensor([1.0, 0.0]))) == 0
    for ties in ("breslow", "efron"):
        padded = Survival(ties).loss(risk, y, torch.tensor([1.0, 1.0, 1.0, 0.0]))
        assert float(padded) == pytest.approx(float(Survival(ties).loss(risk[:3], y[:3])))


def test_large_risks_do_not_overflow():
    risk, y = torch.tensor([[900.0], [-900.0]]), torch.tensor([[2.0, 1.0], [1.0, 1.0]])
    assert Survival().loss(risk, y).isfinite()


@pytest.mark.parametrize("ties", [True, False])
def test_the_likelihood_is_that_of_lifelines(ties):
    """Their ties are Efron's; without tied events Breslow's is the same number."""
    lifelines = pytest.importorskip("lifelines")
    pandas = pytest.importorskip("pandas")
    x, time, event = drawn(ties=ties)
    frame = pandas.DataFrame({**{f"x{i}": x[:, i] for i in range(3)}, "t": time, "e": event})
    fitted = lifelines.CoxPHFitter().fit(frame, "t", "e", fit_options={"precision": 1e-12})
    risk = x @ torch.tensor(fitted.params_.to_numpy())
    y = torch.stack([time, event], 1)
    for kind in ("efron",) if ties else ("efron", "breslow"):
        total = float(Survival(kind).loss(risk[:, None], y)) * float(event.sum())
        assert total == pytest.approx(-fitted.log_likelihood_, rel=1e-9)


def test_concordance_is_that_of_lifelines_with_ties_of_times_and_of_risks():
    utils = pytest.importorskip("lifelines.utils")
    for seed in range(20):
        x, time, event = drawn(30, seed=seed)
        risk = x[:, 0].round()
        expected = utils.concordance_index(time, -risk, event)
        assert float(concordance(risk, time, event)) == pytest.approx(expected, abs=1e-12)


def test_concordance_by_hand():
    """Pairs (1, 2), (1, 3), (2, 3) by time; the second is censored, so only two are comparable."""
    time, event = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 1.0])
    assert float(concordance(torch.tensor([2.0, 3.0, 2.0]), time, event)) == 0.25


def test_a_client_without_an_event_lacks_its_scores():
    x, time, event = drawn(60)
    client = torch.arange(60) % 3
    event[client == 2] = 0
    y = torch.stack([time, event], 1)
    data = TensorData({"x": x, "y": y, "client": client}, task="survival", batch_size=64)
    run = fit(FedAvg(torch.nn.Linear(3, 1), optimizer=sgd(0.5)), data, rounds=4)
    row = run.history[-1]
    assert row["test/personal/cindex_clients"] == 2
    assert 0 <= row["test/personal/cindex"] <= 1
    assert row["train/local/cox"] < run.history[0]["train/local/cox"]


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.zeros(4), r"needs \(n, 2\) targets"),
        (torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), "sample 1 has the time -1.0"),
        (torch.tensor([[1.0, 0.0], [1.0, 2.0]]), "sample 1 has the event 2.0"),
    ],
)
def test_what_is_no_survival_is_refused(y, words):
    with pytest.raises(ValueError, match=words):
        Survival().of_targets(y)


def test_outputs_of_another_form_are_refused():
    x, time, event = drawn(20)
    data = TensorData({"x": x, "y": torch.stack([time, event], 1)}, 2, IID(), task="survival")
    with pytest.raises(ValueError, match=r"needs outputs of shape \(n, 1\)"):
        fit(FedAvg(torch.nn.Linear(3, 2)), data)
