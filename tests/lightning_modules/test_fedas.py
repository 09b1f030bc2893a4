"""FedAS: the invariants in docs/methods, with hand-worked numbers."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_modules.fedas import FedAS, FedASServer
from lightning_modules.nets import SplitNet
from lightning_modules.steps.fisher import fisher_share, fisher_trace
from pfl.core.seeds import generator
from pfl.core.server import ServerState
from pfl.core.state import clone, select
from pfl.core.types import Batch, Broadcast, Upload
from pfl.training import client_round
from tests.helpers import facts
from tests.helpers.federation import SGD, Federation, equal, fit
from tests.helpers.toy import ToyData, blobs, mlp, normed

FACTS = {
    FedAS: facts.Facts(
        travels=("net.backbone.",),
        stays=("net.head.", "previous."),
        extra=("trace",),
        floats=(facts.BODY, facts.BODY + 1),
        variants=[{"align_target": "per_sample", "synchronisation": False}],
        stacks=[
            {"align_target": "per_sample", "fisher_estimator": "per_sample_mean"},
            {"align_target": "class_mean", "fisher_estimator": "full_data"},
        ],
        serves={
            "trace_normaliser": ("normaliser", "min_max"),
            "server_step_scale": ("step_scale", "one_over_m"),
        },
        needs_classes=True,
        needs_parts=True,
        not_private="pass 'targets': it computes statistics of the samples without noise",
    ),
}

ESTIMATORS = ("batch_sum", "per_sample_mean", "full_data")


def make(net, **options):
    return FedAS(net, **{"optimizer": SGD, **options})


def upload(client, samples, trace, *values):
    trace = {"trace": torch.tensor(float(trace))}
    return Upload(client, samples, {"w": torch.tensor(values)}, trace)


def aggregate(uploads, start=(0.0,), **options):
    return FedASServer(**options).aggregate(ServerState({"w": torch.tensor(start)}), uploads)


def weights_of(server, uploads):
    after = server.aggregate(ServerState({"w": torch.tensor((0.0,))}), uploads)
    return torch.tensor([*after.client_report["weight"].values()], dtype=torch.float64)


# The server, Eqs. 7-8.


def test_equal_traces_are_the_plain_mean_whatever_the_sizes():
    """Invariant 1: (1 + 3 + 11) / 3 = 5."""
    after = aggregate([upload(0, 1, 0.7, 1.0), upload(1, 50, 0.7, 3.0), upload(2, 9, 0.7, 11.0)])
    assert after.shared["w"].item() == 5.0


def test_weights_by_hand():
    """Traces 1 and 3: 1/4 * 10 + 3/4 * 2 = 4."""
    after = aggregate([upload(0, 9, 1, 10.0), upload(4, 1, 3, 2.0)])
    assert after.shared["w"].item() == 4.0
    assert after.client_report == {"weight": {0: 0.25, 4: 0.75}, "trace": {0: 1.0, 4: 3.0}}
    assert after.report == {"trace_fallback": 0.0}


@given(
    traces=st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=1, max_size=6).filter(any),
    scale=st.floats(1e-3, 1e3),
    normaliser=st.sampled_from(["sum", "softmax", "min_max"]),
)
def test_weights_are_a_distribution_that_ignores_a_common_factor(traces, scale, normaliser):
    """Invariant 2."""
    server = FedASServer(normaliser=normaliser)
    weights = weights_of(server, [upload(i, 1 + i, t) for i, t in enumerate(traces)])
    assert (weights >= 0).all()
    assert weights.sum().item() == pytest.approx(1)
    if normaliser == "sum":
        scaled = weights_of(server, [upload(i, 1 + i, t * scale) for i, t in enumerate(traces)])
        assert torch.allclose(scaled, weights, rtol=1e-5, atol=1e-6)


def test_softmax_and_min_max_by_hand():
    """Traces 0, log 3: 1/4, 3/4. Traces 2, 3, 6: 0, 1/4, 1 over 5/4 = 0, 1/5, 4/5."""
    pair = [upload(0, 1, 0.0), upload(1, 1, torch.tensor(3.0).log())]
    soft = weights_of(FedASServer(normaliser="softmax"), pair)
    assert soft.tolist() == pytest.approx([0.25, 0.75])
    three = [upload(i, 1, t) for i, t in enumerate((2, 3, 6))]
    assert weights_of(FedASServer(normaliser="min_max"), three).tolist() == [0, 0.2, 0.8]


@pytest.mark.parametrize("normaliser", ["sum", "softmax", "min_max"])
def test_one_participant_gives_its_base_exactly(normaliser):
    """Invariant 3."""
    values = torch.randn(50, generator=generator(0, "base"))
    after = aggregate([upload(2, 7, 0.3, *values)], torch.ones(50).tolist(), normaliser=normaliser)
    assert torch.equal(after.shared["w"], values)


def test_one_over_m_takes_that_part_of_the_step():
    """Invariant 4.

    From 2 to the mean 4 of test_weights_by_hand, half the way: 3. With an upload more, of no
    weight, a third of it."""
    uploads = [upload(0, 9, 1, 10.0), upload(4, 1, 3, 2.0)]
    after = aggregate(uploads, (2.0,), step_scale="one_over_m")
    assert after.shared["w"].item() == 3.0
    third = aggregate([*uploads, upload(5, 1, 0, 7.0)], (2.0,), step_scale="one_over_m")
    assert third.shared["w"].item() == pytest.approx(2 + 2 / 3)


@pytest.mark.parametrize("traces", [(0, 0), (float("nan"), 1), (1, float("inf"))])
def test_traces_that_say_nothing_leave_the_sizes(traces):
    """3/4 * 2 + 1/4 * 10 = 4, and the round says so."""
    for normaliser in ("sum", "softmax", "min_max"):
        uploads = [upload(0, 3, traces[0], 2.0), upload(1, 1, traces[1], 10.0)]
        after = aggregate(uploads, normaliser=normaliser)
        assert after.shared["w"].item() == 4.0
        assert after.report == {"trace_fallback": 1.0}


def test_equal_traces_have_no_range():
    uploads = [upload(0, 3, 5, 2.0), upload(1, 1, 5, 10.0)]
    assert aggregate(uploads, normaliser="min_max").report == {"trace_fallback": 1.0}


def test_a_single_zero_trace_is_legal():
    after = aggregate([upload(0, 3, 0, 2.0), upload(1, 1, 5, 10.0)])
    assert after.shared["w"].item() == 10.0
    assert after.report == {"trace_fallback": 0.0}


# The alignment, Eqs. 2-4.


def line(weight):
    """Build f(x) = weight x, and a head of two classes; all biases start at zero."""
    net = SplitNet(nn.Linear(1, 1), nn.Linear(1, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.backbone.weight.fill_(weight)
    return net


def three_points():
    x, y = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1])
    return ToyData([(x, y)], outputs=2, batch_size=3)


def aligned(received, epochs=0, **options):
    """Align f(x) = received x at a client whose last backbone is f(x) = 2x."""
    module = make(line(2.0), epochs=epochs, align_batch=3, align_lr=0.01, **options)
    federation = Federation(module, three_points())
    shared = {"net.backbone.weight": torch.tensor([[received]])}
    sent = Broadcast({**federation.state.shared, **shared})
    return module, client_round.train(
        federation.context, replace(federation.job(0), broadcast=sent)
    )


def test_alignment_to_class_means_by_hand():
    """Old features 2, 6 | 10 give the targets 4 | 10; the received x has features 1, 3 | 5.

    Loss ((1-4)^2 + (3-4)^2) / 2 + (5-10)^2 = 5 + 25. Slope of the weight
    (2(-3)1 + 2(-1)3) / 2 + 2(-5)5 = -56, of the bias (-6 - 2) / 2 - 10 = -14.
    """
    module, result = aligned(1.0)
    assert module.class_means.tolist() == [[4.0], [10.0]]
    assert result.train["align/mse"] == pytest.approx(30)
    shared = result.upload.shared
    assert shared["net.backbone.weight"].item() == pytest.approx(1.56)
    assert shared["net.backbone.bias"].item() == pytest.approx(0.14)


def test_alignment_to_each_sample_by_hand():
    """Differences x - 2x = -1, -3, -5: loss 35/3, slopes -2 * 35/3 and -2 * 9/3."""
    _, result = aligned(1.0, align_target="per_sample")
    assert result.train["align/mse"] == pytest.approx(35 / 3)
    shared = result.upload.shared
    assert shared["net.backbone.weight"].item() == pytest.approx(1 + 0.01 * 70 / 3)
    assert shared["net.backbone.bias"].item() == pytest.approx(0.06)


def test_own_features_are_no_target_but_class_means_are():
    """Invariant 5.

    Received = last: per sample nothing moves. Class means: variance within classes, 4 | 0.
    """
    _, result = aligned(2.0, align_target="per_sample")
    assert result.train["align/mse"] == 0
    assert result.upload.shared["net.backbone.weight"].item() == 2.0
    _, result = aligned(2.0)
    assert result.train["align/mse"] == pytest.approx(4)
    assert result.upload.shared["net.backbone.weight"].item() != 2.0


def test_the_head_is_trained_on_aligned_features():
    """The weight 1.56 and the bias 0.14 of test_alignment_to_class_means_by_hand give the features
    1.70, 4.82 | 7.94. Of a zero head, softmax is (1/2, 1/2) everywhere, so the backbone has no
    slope and the first class's weight has (-1.70 - 4.82 + 7.94) / 6 = 1.42 / 6; the features that
    arrived, 1, 3 | 5, would give 1 / 6.
    """
    _, result = aligned(1.0, epochs=1)
    first, second = result.kept["net.head.weight"].flatten().tolist()
    assert first == pytest.approx(-0.1 * 1.42 / 6)
    assert second == pytest.approx(0.1 * 1.42 / 6)
    assert result.train["align/mse"] == pytest.approx(30)
    assert result.upload.shared["net.backbone.weight"].item() == pytest.approx(1.56)


def test_the_alignment_has_the_length_the_batches_and_the_rate_it_is_given():
    _, align, *_ = make(mlp(), align_epochs=3, align_batch=5, align_lr=0.7).plan()
    (group,) = align.optimizer([torch.zeros(1)]).param_groups
    assert (align.epochs, align.batch_size, group["lr"]) == (3, 5, 0.7)


def test_alignment_reaches_the_client_that_is_smaller_than_its_batch():
    """The released code does nothing below 16 samples; here the short batch counts."""
    federation = Federation(make(mlp(), epochs=0), blobs(sizes=(3, 9)))
    assert not equal(federation.train(0).upload.shared, federation.state.shared)


def test_alignment_leaves_batch_norm_statistics():
    federation = Federation(make(normed(), epochs=0))
    (running, *_) = (federation.train(0).kept[f"net.backbone.1.{n}"] for n in ("running_mean",))
    assert not running.any()


# The Fisher trace, Eqs. 5-6.


def linear_case(samples=6):
    rng = generator(1, "linear")
    net = nn.Linear(3, 4)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return net, torch.randn(samples, 3, generator=rng), torch.arange(samples) % 4


def trace(net, x, y, estimator="batch_sum", size=1):
    """Add the trace up over batches of ``size``, as a pass does."""
    totals = {}
    for start in range(0, len(y), size):
        batch = Batch(x[start : start + size], y[start : start + size])
        for name, value in fisher_share(net, batch, estimator).items():
            totals[name] = totals.get(name, 0) + value
    return fisher_trace(totals, estimator).item()


def test_trace_of_a_linear_softmax_model():
    """Invariant 8.

    Its slopes are (p - e_y) x^T and p - e_y: sum_j ||p_j - e_{y_j}||^2 (||x_j||^2 + 1).
    """
    net, x, y = linear_case()
    error = net(x).softmax(-1) - torch.eye(4)[y]
    expected = (error.square().sum(-1) * (x.square().sum(-1) + 1)).sum().item()
    assert trace(net, x, y) == pytest.approx(expected, rel=1e-5)
    # With batches of one the two differ by the number of samples.
    assert trace(net, x, y, "per_sample_mean", 4) == pytest.approx(expected / 6, rel=1e-5)
    summed = torch.cat([error, error[:, :, None].mul(x[:, None]).flatten(1)], 1).sum(0)
    full = summed.square().sum().item()
    assert trace(net, x, y, "full_data", 4) == pytest.approx(full, rel=1e-5)


@pytest.mark.parametrize(
    ("estimator", "batch_size", "expected"),
    [
        ("batch_sum", 1, 2 * 4.5),
        ("batch_sum", 2, 4.5),
        ("per_sample_mean", 2, 4.5),
        ("full_data", 1, 4 * 4.5),
        ("full_data", 2, 4 * 4.5),
    ],
)
def test_the_trace_is_of_backbone_and_head_and_of_the_mean_in_a_batch(
    estimator, batch_size, expected
):
    """Twice x = 1 of class 0: the feature is 2, the logits are (2 - 2, 2 - 2), softmax (1/2, 1/2).

    The slopes of the logits are (-1/2, 1/2), of the head's weights twice that: 1/2 (4 + 1) = 2.5.
    That of the feature is -1/2 - 1/2 = -1, and so are those of the backbone's weight and bias: 2.
    """
    net = line(2.0)
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        net.head.bias.copy_(torch.tensor([-2.0, 2.0]))
    x, y = torch.ones(2, 1), torch.zeros(2, dtype=torch.long)
    data = ToyData([(x, y)], outputs=2, batch_size=batch_size)
    module = make(net, epochs=0, alignment=False, fisher_estimator=estimator)
    found = Federation(module, data).train(0).upload.extra["trace"].item()
    assert found == pytest.approx(expected)


def test_every_sample_twice_doubles_the_summed_trace():
    """Invariant 9. Twice the batches, the same samples, twice the likelihood."""
    net, x, y = linear_case()
    twice = (net, x.repeat(2, 1), y.repeat(2))
    for estimator, factor in zip(ESTIMATORS, (2, 1, 4), strict=True):
        once = trace(net, x, y, estimator, 3)
        assert trace(*twice, estimator, 3) == pytest.approx(factor * once, rel=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("net", [mlp, normed])
def test_measuring_the_trace_changes_nothing(net, estimator):
    """Invariant 10. Measured after training, in eval mode: running statistics do not move."""
    with_trace = make(net(), alignment=False, fisher_estimator=estimator)
    without = make(net(), alignment=False, synchronisation=False)
    measured, plain = (Federation(module).train(0) for module in (with_trace, without))
    assert equal(measured.kept, plain.kept)
    assert equal(measured.upload.shared, plain.upload.shared)
    assert measured.upload.extra["trace"] > 0
    assert not plain.upload.extra


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_trace_is_that_of_the_trained_model(estimator):
    federation = Federation(make(mlp(), fisher_estimator=estimator))
    found = federation.train(0).upload.extra["trace"].item()
    split = federation.data.split(0, "train")
    again = trace(federation.module.net.eval(), split.x, split.targets, estimator, 4)
    assert found == pytest.approx(again)


def test_a_fitted_single_class_client_loses_its_weight():
    """Its own trace vanishes as it fits, beside a client that holds labels at random."""
    data = blobs(sizes=(8, 8))
    (x, y), (other, _) = data.splits["train"]
    data.splits["train"] = [(x, torch.zeros_like(y)), (other, torch.arange(8) % 3)]
    run = fit(make(mlp(), epochs=10), data, 5)
    assert 0 < run.server.client_report["weight"][0] < 0.05


# The whole method.


def test_the_tested_model_is_the_client_s_own_base_and_head():
    """As training left it, though the server has moved on; before any training, the initial one."""
    federation = Federation(make(mlp()))
    initial = clone(federation.module.net.state_dict())
    federation.test(1)
    assert equal(federation.module.net.state_dict(), initial)
    after_training = {}
    for client in (0, 1):
        federation.train(client)
        after_training[client] = clone(federation.module.net.state_dict())
    federation.round(0, 1)
    federation.round(0)
    federation.test(1)
    assert equal(federation.module.net.state_dict(), after_training[1])
    assert not equal(select(federation.state.shared, ("*",)), {})
