"""MR-MTL: the invariants in docs/methods."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from lightning_modules.fedprox import FedProx
from lightning_modules.mr_mtl import MRMTL, MeanServer
from pfl import FederatedLoop
from pfl.core.task import Regression
from pfl.core.types import ClientInfo, Upload
from pfl.federation.sampling import UniformSampler
from pfl.testing.federation import ToyFederation
from pfl.testing.toy import ToyNet
from pfl.training import client_round
from tests.helpers import by_hand, facts
from tests.helpers.federation import HEAVY, SGD, Federation, equal, fit
from tests.helpers.toy import Line, ToyData, blobs, mlp

FACTS = {
    MRMTL: facts.Facts(
        travels=("net.",),
        stays=("net.",),
        floats=facts.NET,
        variants=[
            {"aggregate": "delta"},
            {"aggregate": "all", "start": "own"},
            {"pull": "outside"},
        ],
        stacks=[{"aggregate": "delta"}],
    ),
}


class Parabola(MRMTL):
    """MR-MTL on ``(v - c)^2 / 2``, where c is the mean of the inputs."""

    def losses(self, batch):
        return {**super().losses(batch), "ce": (self.net.w - batch.x).square().mean() / 2}


def parabolas(weighting, rounds):
    """Return vbar, and v of two clients with c = 0 and 4, after rounds of one step of rate 0.1."""
    module = Parabola(
        Line(0.0),
        proximity=1.0,
        weighting=weighting,
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    sizes = {0.0: 1, 4.0: 3}
    data = ToyData([(torch.full((n, 1), c), torch.zeros(n).long()) for c, n in sizes.items()])
    run = fit(module, data, rounds)
    return run.server.shared["net.w"].item(), [run.kept[c]["net.w"].item() for c in range(2)]


def test_two_rounds_and_the_limit_by_hand():
    """Invariant 3: round 1 v = (0, 0.4), vbar 0.2; round 2: gradients (-0.2, -3.6 + 0.2).

    In the limit v_i = (c_i + lambda vbar) / (1 + lambda), with vbar the mean of c.
    """
    for rounds, mean, own in ((1, 0.2, [0, 0.4]), (2, 0.38, [0.02, 0.74]), (200, 2, [1, 3])):
        assert parabolas("uniform", rounds) == (pytest.approx(mean), pytest.approx(own, abs=1e-6))
    assert parabolas("samples", 200) == (pytest.approx(3), pytest.approx([1.5, 3.5]))


@pytest.mark.parametrize("rule", [HEAVY, partial(torch.optim.Adam, lr=0.01)])
def test_without_clipping_a_pull_outside_is_one_inside(rule):
    """Momentum, weight decay and Adam see it, as the gradient has it in both ways."""
    runs = [
        fit(MRMTL(mlp(), proximity=0.5, pull=pull, optimizer=rule), blobs(), 3, precision="64-true")
        for pull in ("inside", "outside")
    ]
    for name, value in runs[0].server.shared.items():
        assert torch.allclose(runs[1].server.shared[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("pull", "v"), [("inside", 0.02), ("outside", 0.019)])
def test_a_pull_outside_is_not_clipped(pull, v):
    """Two steps of rate 0.1 from v = vbar = 0 towards c = 4, with gradients clipped to 0.1.

    v = 0.01 after the first; then -3.99 is clipped to -0.1, and lambda (v - vbar) = 0.01 is added
    after that, or before it.
    """
    module = Parabola(
        Line(0.0), proximity=1.0, pull=pull, epochs=2, optimizer=partial(torch.optim.SGD, lr=0.1)
    )
    data = ToyData([(torch.full((3, 1), 4.0), torch.zeros(3).long())])
    loop = FederatedLoop(1, gradient_clip_val=0.1, progress=False, engine="sequential")
    assert loop.fit(module, data).kept[0]["net.w"].item() == pytest.approx(v)


@pytest.mark.parametrize(("pull", "v"), [("inside", 0.2), ("outside", 0.19)])
def test_a_pull_outside_is_no_part_of_what_is_private(pull, v):
    """Two steps of rate 0.1 on samples of gradient 2 (v - 4), each clipped to 1.

    v = 0.1 after the first; then lambda (v - vbar) = 0.1 is added before the clip, or after it.
    """
    from pfl.extras.privacy import separable
    from pfl.extras.privacy.sample_level import PrivateSamples

    net = ToyNet(nn.Identity(), nn.Linear(1, 1, bias=False))
    nn.init.zeros_(net.head.weight)
    module = MRMTL(
        net,
        proximity=1.0,
        pull=pull,
        epochs=2,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        task=Regression(),
    )
    samples = torch.ones(2, 1), torch.full((2, 1), 4.0)
    data = ToyData([samples], outputs=1, batch_size=2, task=Regression())
    federation = ToyFederation(module, data, precision="64-true")
    job = federation.job(0)
    assert separable.unsupported_reason(federation.context, job) is None
    job = replace(job, steps=(PrivateSamples(1.0, 0.0),))
    kept = client_round.train(federation.context, job).kept
    assert kept["net.head.weight"].item() == pytest.approx(v)


def test_what_is_sent_by_hand():
    """Samples 1, 3 and 4; v of the first two moves by 2 and 6 from vbar = 1 and from elsewhere.

    The mean change is 5. It counts whole (``delta``), or for the half of the samples (``all``).
    """
    infos = [ClientInfo(i, n, None) for i, n in enumerate((1, 3, 4))]
    sent = [Upload(0, 1, {"w": torch.tensor(3.0)}), Upload(1, 3, {"w": torch.tensor(7.0)})]
    for aggregate, mean in (("mean", 6.0), ("delta", 6.0), ("all", 3.5)):
        server = MeanServer(rule=aggregate)
        state = server.init({"w": torch.tensor(1.0)}, infos)
        assert server.aggregate(state, sent).shared["w"] == mean
    alone = MeanServer("uniform", "all").init({"w": torch.tensor(1.0)}, infos)
    assert MeanServer("uniform", "all").aggregate(alone, sent).shared["w"] == 1 + 2 / 3 * 4


def test_a_model_that_starts_at_the_mean_is_another_method():
    """Invariant 2: FedProx loads the received model; the two agree in the first round alone."""
    options = {"optimizer": SGD, "epochs": 2}
    for rounds in (1, 2):
        run = fit(MRMTL(mlp(), proximity=0.5, **options), blobs(), rounds)
        other = fit(FedProx(mlp(), mu=0.5, **options), blobs(), rounds)
        assert equal(run.server.shared, other.server.shared) == (rounds == 1)


def test_all_is_the_mean_of_all_own_networks():
    sampler = UniformSampler(0.7)
    run = fit(MRMTL(mlp(), aggregate="all", optimizer=SGD), blobs(), 4, sampler=sampler)
    sizes = [len(blobs().split(c, "train")) for c in range(3)]
    start = {f"net.{n}": v for n, v in mlp().state_dict().items()}
    own = [run.kept.get(c) or start for c in range(3)]
    mean = by_hand.averaged(own, sizes)
    for name, value in run.server.shared.items():
        assert torch.allclose(mean[name], value, atol=1e-6)


def test_a_newcomer_starts_at_the_mean():
    fed = Federation(MRMTL(mlp(), optimizer=SGD), blobs(), rounds=3)
    fed.round(0, 1)
    message, kept = fed.server.welcome(fed.state, ClientInfo(9, 4, None, 1), [])
    assert equal(message.shared, fed.state.shared)
    assert equal(kept, message.shared)


def test_a_newcomer_draws_no_network_in_place_of_the_mean():
    """Where clients start at draws of their own, too."""
    fed = Federation(MRMTL(mlp(), start="own", optimizer=SGD), blobs(), rounds=3)
    fed.round(0, 1)
    message, fed.kept[2] = fed.server.welcome(fed.state, ClientInfo(9, 4, None, 1), [])
    assert equal(by_hand.of(fed.start(2).state_dict(), "net."), by_hand.of(message.shared, "net."))


def test_own_starts_differ_and_are_drawn_once():
    fed = Federation(MRMTL(mlp(), start="own", optimizer=SGD, epochs=0), blobs(), rounds=3)
    fed.round(0, 1)
    drawn = [fed.kept[c]["net.head.weight"] for c in range(2)]
    assert not torch.equal(*drawn)
    fed.round(0, 1)
    assert all(torch.equal(drawn[c], fed.kept[c]["net.head.weight"]) for c in range(2))


@pytest.mark.parametrize("aggregate", ["mean", "delta", "all"])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, aggregate):
    fed = by_hand.federation(MRMTL, proximity=0.3, aggregate=aggregate)
    mean, own = by_hand.initial(), {c: by_hand.initial() for c in range(4)}

    def loss(v, x, y):
        apart = (by_hand.vector(v) - by_hand.vector(mean)).square().sum()
        return by_hand.cross_entropy_of(v, x, y) + 0.3 / 2 * apart

    for clients in cohorts:
        new = {c: by_hand.descended(own[c], loss, by_hand.batches(fed, c)) for c in clients}
        sizes = [by_hand.SIZES[c] for c in clients]
        if aggregate == "mean":
            mean = by_hand.averaged([*new.values()], sizes)
        else:
            whole = sum(sizes if aggregate == "delta" else by_hand.SIZES)
            mean = {
                n: v
                + sum(k * (new[c][n] - own[c][n]) for c, k in zip(clients, sizes, strict=True))
                / whole
                for n, v in mean.items()
            }
        own |= new
        fed.round(*clients)
        by_hand.compare(by_hand.of(fed.state.shared, "net."), mean)
        for c in range(4):
            by_hand.compare_tested(fed, c, own[c])
