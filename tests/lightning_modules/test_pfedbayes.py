"""pFedBayes: the invariants in docs/methods, with hand-worked numbers."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lightning_modules.pfedbayes import PFedBayes
from pfl.core.noise import Noise
from pfl.core.state import clone, select
from pfl.training import client_round
from tests.helpers import by_hand, facts
from tests.helpers.federation import Federation, equal
from tests.helpers.toy import ToyData, mlp

FACTS = {
    PFedBayes: facts.Facts(
        travels=("net.",),
        stays=("personal.", "first.", "second.", "steps"),
        # A mean and a deviation of each parameter.
        floats=2 * facts.NET,
        fewer={"inner_steps": 2},
        variants=[{"local_steps": 3, "mc_samples": 2}],
        draws="net.mean.head.weight",
        needs_classes=True,
        not_private="keeps 'steps' and 24 more",
    ),
}


def adam(lr):
    return partial(torch.optim.Adam, lr=lr)


def q_of(federation, client):
    stem = "personal.module."
    kept = federation.kept[client]
    return {n.removeprefix(stem): v for n, v in kept.items() if n.startswith(stem)}


class Quiet(PFedBayes):
    """pFedBayes without noise."""

    def _fit(self, batch):
        noise = {name: torch.zeros_like(value) for name, value in batch.noise.items()}
        return super()._fit(batch._replace(noise=noise))


def test_one_step_by_hand():
    """One weight w for both logits' difference, one sample x = 1, n = 1, zeta = 2, no noise.

    q starts at mu = 0, the received v at mu = 1, sigma = softplus(rho) = 1. CE's slope for y = 0
    with logits (w, 0) at w = 0 is -1/2, that of 2 KL is 2 (0 - 1) / 1: in all negative, and Adam's
    first step is its rate against the sign: mu = 0.01. The divergence then is 2 (0.99^2) / 2.
    """

    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return torch.cat([self.w * x, 0 * x], 1)

    raw = math.log(math.e - 1)
    options = {"kl_weight": 2.0, "inner_steps": 1, "inner_lr": 0.01, "mc_samples": 2}
    module = Quiet(
        Difference(), init_raw_std=raw, init_mean_std=None, optimizer=adam(0.1), **options
    )
    data = ToyData([(torch.ones(1, 1), torch.zeros(1, dtype=torch.long))], outputs=2)
    federation = Federation(module, data)
    federation.state.shared["net.mean.w"].fill_(1.0)
    (result,) = federation.round()
    q = q_of(federation, 0)
    assert q["mean.w"].item() == pytest.approx(0.01, rel=1e-5)
    assert result.train["local/ce"] == pytest.approx(math.log(2), rel=1e-5)
    assert result.train["local/kl"] == pytest.approx(1.0, rel=1e-5)
    ratio = F.softplus(q["raw_std.w"]).item() ** 2
    after = 2 * 0.5 * (ratio - 1 - math.log(ratio) + 0.99**2)
    assert result.train["local/prior"] == pytest.approx(after, rel=1e-4)
    # v follows q: its mean falls by its own rate.
    assert federation.state.shared["net.mean.w"].item() == pytest.approx(0.9, rel=1e-5)


def test_q_is_tested_v_is_the_global_model():
    federation = Federation(PFedBayes(mlp()))
    federation.round()
    assert equal(federation.personal(1), q_of(federation, 1))
    federation.module.load_global(federation.server.broadcast(federation.state, 1, 1))
    state = select(federation.module.state_dict(), ("net.*",))
    assert equal(state, federation.state.shared)
    client_round.train(federation.context, replace(federation.job(1), splits=("test",)))
    left = clone(federation.module.net.state_dict())
    assert equal(left, clone(federation.module.personal.module.state_dict()))


@pytest.mark.parametrize(
    "options", [{}, {"mc_samples": 2, "server_step": 0.5, "weighting": "samples"}]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    """Apart from the noise, which is the run's."""
    inner = {"kl_weight": 2.0, "inner_steps": 3, "inner_lr": 0.01, "init_raw_std": -1.0}
    fed = by_hand.federation(PFedBayes, **inner, **options)
    v = by_hand.initial(by_hand.of(fed.state.shared, "net."))
    names = [n.removeprefix("raw_std.") for n in v if n.startswith("raw_std.")]
    gaussian = [f"{moment}.{n}" for moment in ("mean", "raw_std") for n in names]
    trained = by_hand.trained(v)
    q, moments, counts = [dict(v) for _ in range(4)], [({}, {}) for _ in range(4)], [0] * 4

    def divergence(q, v):
        kl = 0
        for n in names:
            own, prior = F.softplus(q[f"raw_std.{n}"]), F.softplus(v[f"raw_std.{n}"])
            apart = (q[f"mean.{n}"] - v[f"mean.{n}"]).square()
            kl = kl + ((prior / own).log() + (own**2 + apart) / (2 * prior**2) - 0.5).sum()
        return kl

    def objective(q, v, weight, x, y, noise):
        means, ce = by_hand.of(q, "mean."), 0
        for draw in range(len(noise[names[0]])):
            drawn = {n: means[n] + F.softplus(q[f"raw_std.{n}"]) * noise[n][draw] for n in names}
            ce = ce + by_hand.cross_entropy_of(means | drawn, x, y)
        return ce / (draw + 1) + weight * divergence(q, v)

    def stepped(c, v, weight, x, y, draws):
        """Take the inner steps of Adam; statistics take the batch in once."""
        for step in range(3):
            own = {n: t.detach().clone().requires_grad_(n in trained) for n, t in q[c].items()}
            noise = {n: draws[f"{step}:{n}"][0] for n in names}
            loss = objective(own, v, weight, x, y, noise)
            slopes = torch.autograd.grad(loss, [own[n] for n in trained])
            counts[c] += 1
            for n, slope in zip(trained, slopes, strict=True):
                (first, second), k = moments[c], counts[c]
                first[n] = 0.9 * first.get(n, 0) + 0.1 * slope
                second[n] = 0.999 * second.get(n, 0) + 0.001 * slope**2
                root = (second[n] / (1 - 0.999**k)).sqrt() + 1e-8
                own[n] = own[n] - 0.01 * first[n] / (1 - 0.9**k) / root
            still = {} if step == 0 else {n: q[c][n] for n in own if n not in trained}
            q[c] = {n: t.detach() for n, t in own.items()} | still

    for clients in cohorts:
        sent = []
        for c in clients:
            (phase,), weight = fed.module.plan(), 2 / by_hand.SIZES[c]
            q[c] |= {n: t.clone() for n, t in v.items() if n not in gaussian}
            prior = {n: v[n] for n in gaussian}
            with fed.context.fabric.init_tensor():
                noise = Noise.of(phase, [fed.job(c)], 9, torch.device("cpu"))
                draws = [noise.of_step(number) for number in range(9)]

            def loss(prior, x, y, draw, c=c, weight=weight):
                stepped(c, {n: t.detach() for n, t in prior.items()}, weight, x, y, draw)
                return weight * divergence(q[c], prior)

            steps = zip(by_hand.batches(fed, c), draws, strict=False)
            prior = by_hand.descended(prior, loss, ((*batch, draw) for batch, draw in steps))
            sent.append({**q[c], **prior})
        sizes = [by_hand.SIZES[c] if "weighting" in options else 1 for c in clients]
        mean, step = by_hand.averaged(sent, sizes), options.get("server_step", 1)
        v = {n: v[n] + step * (t - v[n]) for n, t in mean.items()}
        fed.round(*clients)
        by_hand.compare(by_hand.of(fed.state.shared, "net."), v)
        for c, own in enumerate(q):
            tested = own | {n: t for n, t in v.items() if n not in gaussian}
            expected = by_hand.outputs(
                by_hand.of(tested, "mean."), by_hand.samples(fed, c, "test")[0]
            )
            by_hand.compare(by_hand.predicted(fed, c), expected)
            by_hand.compare(by_hand.of(fed.module.state_dict(), "net."), tested)
