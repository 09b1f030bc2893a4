"""Steps that keep single samples private: by hand, by Opacus, in a stack, and what bounds them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from lightning_modules import MOON, Ditto, FedAvg, FedPer, FedProx, FedRep
from pfl.core.seeds import derive
from pfl.core.task import Regression
from pfl.engines.stack import round as stack_round
from pfl.extras.privacy.sample_level import PrivateSamples, PrivateSteps, steps_of
from pfl.testing.federation import ToyFederation
from pfl.testing.toy import ToyData, ToyNet, ToySplit, blobs, mlp
from pfl.training import batching, client_round
from pfl.training.phases import prepared
from tests.extras.privacy.opacus_numbers import CASES, FILE, example
from tests.helpers.federation import steps as steps_of_phase

EXACT = PrivateSamples(float("inf"), 0.0)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def trained(federation, level, client=0):
    job = replace(federation.job(client), steps=(level,) if level else ())
    return client_round.train(federation.context, job)


@pytest.mark.parametrize("name", CASES)
def test_opacus_takes_the_same_steps(name):
    """Twelve steps, one of them without a sample; Opacus adds 1e-6 to each norm."""
    level, convolutions = CASES[name]
    result = trained(example(convolutions), level)
    recorded = json.loads(FILE.read_text(encoding="utf-8"))[name]
    assert (result.steps, result.samples) == (12, 33)
    for entry, values in recorded.items():
        expected = torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(
            result.upload.shared[f"net.{entry}"], expected, rtol=0, atol=1e-5
        )


def line(x, y, batch_size, precision="64-true", lr=0.1, **options):
    """One weight w, from zero: outputs w x, and gradients 2 x (w x - y)."""
    net = ToyNet(nn.Identity(), nn.Linear(1, 1, bias=False))
    nn.init.zeros_(net.head.weight)
    method = FedAvg(net, optimizer=partial(torch.optim.SGD, lr=lr), task=Regression(), **options)
    samples = torch.tensor(x)[:, None], torch.tensor(y)[:, None]
    data = ToyData([samples], outputs=1, batch_size=batch_size, task=Regression())
    return ToyFederation(method, data, precision=precision)


def weight(result):
    return result.upload.shared["net.head.weight"].item()


def test_a_step_by_hand():
    """Gradients -2 and -18 are clipped to -2 and -3, and divided by both samples: w = 0.1 * 2.5."""
    federation = line([1.0, 3.0], [1.0, 3.0], batch_size=2)
    assert weight(trained(federation, PrivateSamples(3.0, 0.0))) == pytest.approx(0.25, abs=1e-15)


def test_the_divisor_is_the_mean_size_of_a_batch():
    """Of three samples in two steps, a batch has 1.5 in the mean, whoever is drawn."""
    federation = line([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], batch_size=2)
    result = trained(federation, PrivateSamples(1.0, 0.0))
    assert weight(result) == pytest.approx(0.1 * result.samples / 1.5, abs=1e-15)


def test_a_batch_without_samples_changes_nothing_but_by_noise():
    federation = line([1.0], [1.0], batch_size=1, epochs=1)
    context, job = federation.context, federation.job(0)
    phase = context.plan[0]
    private = replace(job, steps=(PrivateSamples(1.0, 2.0),))
    with prepared(context, phase), context.fabric.autocast():
        steps = private.steps[0].gradients(context, phase, [private], 1)
        batch = context.data.split(0, "train").batch(torch.zeros(1).long())
        empty, full = (steps.alone(batch, 0, what)[1]["net.head.weight"] for what in (True, False))
    assert (empty - full).item() == pytest.approx(1.0, abs=1e-6)
    assert empty.item() != 0


def test_in_half_precision_gradients_are_summed_as_their_parameters_are():
    """Autocast would sum them in half precision, and torch takes no such gradient."""
    federation = ToyFederation(FedAvg(mlp(), optimizer=SGD), blobs(), precision="bf16-mixed")
    result = trained(federation, PrivateSamples(1.0, 1.0))
    assert result.finite
    assert {value.dtype for value in result.upload.shared.values()} == {torch.float32}


@pytest.mark.parametrize("method", [FedAvg, FedProx, FedPer, Ditto, FedRep, MOON])
def test_without_clip_and_noise_steps_are_ordinary(method):
    """All samples in each batch: q = 1."""
    results = []
    for level in (None, EXACT):
        federation = ToyFederation(
            method(mlp(), optimizer=SGD, epochs=2), blobs(batch_size=9), precision="64-true"
        )
        federation.round()
        results.append(trained(federation, level))
    plain, private = results
    assert private.samples == plain.samples
    for name, value in plain.upload.shared.items():
        torch.testing.assert_close(private.upload.shared[name], value, rtol=0, atol=1e-13)
    assert private.train == pytest.approx(plain.train, abs=1e-13)


@pytest.mark.parametrize("method", [FedAvg, FedPer, Ditto, FedProx, MOON])
@pytest.mark.parametrize(("batch_size", "held"), [(1, True), (1, False), (4, True)])
def test_a_stack_takes_the_same_steps(method, batch_size, held, monkeypatch):
    """With batches of one sample in the mean, a third is empty; held or read in each step."""
    monkeypatch.setattr(ToySplit, "augmented", not held)
    federation = ToyFederation(
        method(mlp(), optimizer=SGD, epochs=2), blobs(batch_size=batch_size), precision="64-true"
    )
    federation.round()
    jobs = [replace(job, steps=(PrivateSamples(0.5, 1.0),)) for job in federation.jobs()]
    alone = [client_round.train(federation.context, job) for job in jobs]
    together = stack_round.train(federation.context, jobs)
    for one, other in zip(alone, together, strict=True):
        assert (one.steps, one.samples) == (other.steps, other.samples)
        assert other.train == pytest.approx(one.train, abs=1e-12)
        for name, value in {**one.upload.shared, **one.kept}.items():
            found = {**other.upload.shared, **other.kept}[name]
            if value.is_floating_point():
                torch.testing.assert_close(found, value, rtol=0, atol=1e-12)


def test_the_noise_has_the_deviation_sigma_times_c():
    """The step of 45,003 weights, with noise minus without: the deviation is known to 0.4 %."""
    uploads = []
    for sigma in (0.0, 2.0):
        federation = ToyFederation(
            FedAvg(mlp(hidden=5000), optimizer=partial(torch.optim.SGD, lr=1.0)),
            blobs(batch_size=9),
        )
        uploads.append(trained(federation, PrivateSamples(0.5, sigma)).upload.shared.values())
    noise = torch.cat([(b - a).flatten() for a, b in zip(*uploads, strict=True)])
    assert 9 * noise.std().item() == pytest.approx(2.0 * 0.5, rel=0.01)
    assert abs(noise.mean().item()) < 5 * noise.std().item() / len(noise) ** 0.5


def test_no_sample_moves_the_sum_by_more_than_the_clip():
    federation = ToyFederation(FedAvg(mlp()), precision="64-true")
    context, job, clip = federation.context, federation.job(0), 0.05
    phase = context.plan[0]
    private = replace(job, steps=(PrivateSamples(clip, 0.0),))
    with prepared(context, phase), context.fabric.autocast(), torch.no_grad():
        steps = private.steps[0].gradients(context, phase, [private], 1)
        batch = context.data.split(0, "train").batch(torch.arange(9))
        whole = steps.sums(batch)
        for left_out in range(9):
            weights = torch.ones(9).index_fill(0, torch.tensor(left_out), 0)
            part = steps.sums(batch._replace(weight=weights))
            moved = [(whole[key] - part[key]).flatten() for key in whole if key[0] == "gradients"]
            # All are clipped here, so the bound is reached.
            assert torch.cat(moved).norm().item() == pytest.approx(clip, rel=1e-12)


def test_each_sample_is_drawn_by_itself_with_the_accounted_probability():
    """In 400 epochs of 3 steps, a sample comes 400 times, with a deviation of 16.3."""
    federation = ToyFederation(FedAvg(mlp(), epochs=400), blobs(batch_size=3))
    context, job = federation.context, replace(federation.job(0), steps=(EXACT,))
    phase = context.plan[0]
    assert batching.epoch_steps(context, phase, 9) == 3
    steps = steps_of_phase(context, job, phase, batching.Length(400), 9)
    assert len(steps) == 1200
    drawn = torch.zeros(1200, 9)
    for number, step in enumerate(steps):
        drawn[number, step.positions[: step.samples]] = 1
    assert ((drawn.sum(0) - 400).abs() < 5 * 16.4).all()
    # Sizes of independent draws have the variance 9 * 1/3 * 2/3 = 2; with fixed sizes it were 0.
    assert drawn.sum(1).var().item() == pytest.approx(2, abs=0.4)
    assert drawn.sum(1).min() == 0


def test_steps_of_a_round_are_counted_by_the_steps_of_an_epoch():
    """Head and body take five epochs together."""
    method = FedRep(mlp(), head_epochs=3, body_epochs=2)
    federation = ToyFederation(method, blobs((6, 9, 3), batch_size=3))
    counts = [steps_of(federation.context, info) for info in federation.infos]
    assert counts == [((2, 10),), ((3, 15),), ((1, 5),)]


def sums(*values):
    """Return the sum of clipped gradients of samples (x, y) at w = 0: each has -2 x y."""
    x, y = (list(column) for column in zip(*values, strict=True))
    federation = line(x, y, batch_size=len(x), precision="32-true")
    context, phase = federation.context, federation.context.plan[0]
    private = replace(federation.job(0), steps=(PrivateSamples(1.0, 0.0),))
    with prepared(context, phase), context.fabric.autocast():
        steps = private.steps[0].gradients(context, phase, [private], 1)
        batch = context.data.split(0, "train").batch(torch.arange(len(x)))
        return steps.sums(batch)["gradients", "net.head.weight"].item()


def test_the_norm_of_a_large_gradient_is_finite():
    """The square of 2e30 is infinite in float32, so that the sample would count as nothing."""
    assert sums((1e15, 1e15)) == -1.0
    assert sums((1e15, 1e15), (1.0, 0.25)) == -1.5


@pytest.mark.parametrize("wrong", [math.inf, math.nan, -math.inf])
def test_a_gradient_that_is_not_finite_counts_as_zero(wrong):
    assert sums((wrong, 1.0), (1.0, 0.25)) == -0.5


def secretly(*samples, deviation=2.0, **options):
    """Return the context, a job with noise of the system, and the result of its round."""
    x, y = (list(column) for column in zip(*samples, strict=True))
    federation = line(x, y, batch_size=len(x), precision="32-true", **options)
    job = replace(federation.job(0), steps=(PrivateSamples(1.0, deviation, system=True),))
    return federation.context, job, client_round.train(federation.context, job)


def test_a_loss_that_is_not_finite_tells_nothing():
    *_, result = secretly((math.inf, 1.0), (1.0, 0.25))
    assert result.finite
    assert not math.isfinite(result.train["local/mse"])


def test_a_sum_with_noise_of_the_system_lies_on_a_grid():
    """Of 2^-15, as sigma is 2: also where the sum without noise does not."""
    for value in (0.0, 0.1234567):
        *_, result = secretly((1.0, value), lr=1.0)
        steps = weight(result) * 2**15
        assert steps == round(steps)


def test_the_draw_of_a_batch_is_not_reported():
    """Of five samples in two batches an epoch, five are reported, however many were drawn."""
    federation = line([1.0] * 5, [1.0] * 5, batch_size=3, epochs=3)
    level = PrivateSamples(1.0, 1.0, system=True)
    assert {trained(federation, level).samples for _ in range(20)} == {15}


def test_with_noise_of_the_system_batches_have_one_size_and_samples_secret_places(monkeypatch):
    """So that no rounding tells how many samples were drawn, or which."""
    seen, inner = [], PrivateSteps.sums

    def watched(self, batch):
        seen.append(batch)
        return inner(self, batch)

    monkeypatch.setattr(PrivateSteps, "sums", watched)
    federation = line([1.0, 2.0, 3.0, 4.0], [1.0] * 4, batch_size=2, epochs=80)
    trained(federation, PrivateSamples(1.0, 1.0, system=True))
    assert len(seen) == 160
    assert {len(batch.y) for batch in seen} == {4}
    assert len({int(batch.weight.sum()) for batch in seen}) > 2
    for batch in seen:
        assert torch.equal(batch.x[:, 0] > 0, batch.weight > 0) or not batch.weight.sum()
    # One place is missed by all batches with a probability of 4 (7 / 8) ** 160, 2e-9.
    assert {tuple(torch.nonzero(batch.x[:, 0] == 2.0).flatten().tolist()) for batch in seen} >= {
        (place,) for place in range(4)
    }


def test_more_samples_than_places_are_taken_in_parts(monkeypatch):
    *_, whole = secretly((1.0, 0.5), (1.0, 0.25), (1.0, 0.125), deviation=1e-9)
    monkeypatch.setattr(math, "ceil", lambda value: 2)
    *_, parted = secretly((1.0, 0.5), (1.0, 0.25), (1.0, 0.125), deviation=1e-9)
    for one in (whole, parted):
        assert weight(one) == pytest.approx(0.1 * 1.75 / 3, abs=1e-6)


def test_a_sample_without_a_gradient_changes_no_other_and_is_not_told(monkeypatch):
    def fails(self, batch):
        if (batch.y == 7.0).any():
            raise IndexError("index 7 is out of range")
        return inner(self, batch)

    inner = PrivateSteps.sums
    monkeypatch.setattr(PrivateSteps, "sums", fails)
    with pytest.warns(UserWarning, match=r"a sample .* counts as zero: .*index 7 is out of range"):
        *_, result = secretly((1.0, 0.5), (1.0, 7.0), (1.0, 0.5), deviation=1e-9)
    # The gradients -1 and -1, of three samples, with hardly any noise.
    assert weight(result) == pytest.approx(0.1 * 2 / 3, abs=1e-6)
    with pytest.warns(UserWarning, match="a sample without a gradient counts as zero"):
        *_, result = secretly((1.0, 7.0), deviation=1e-9)
    assert (result.steps, result.finite) == (1, True)
    assert weight(result) == pytest.approx(0.0, abs=1e-6)


def test_who_knows_the_seed_does_not_know_what_the_system_draws():
    _, job, _ = secretly((1.0, 1.0))
    plain = replace(job, steps=(PrivateSamples(1.0, 2.0),))
    assert plain.seed_of("dropout") == plain.seed_of("dropout") == derive(job.seed, "dropout")
    assert job.seed_of("dropout") != job.seed_of("dropout")


@pytest.mark.parametrize(
    ("clip", "sigma"), [(1e-13, 1.0), (math.nan, 1.0), (1.0, -1.0), (1.0, math.inf), (1e300, 1e10)]
)
def test_noise_and_clip_have_ranges(clip, sigma):
    with pytest.raises(ValueError, match=r"greater than or equal to|unbounded noise"):
        PrivateSamples(clip, sigma)
