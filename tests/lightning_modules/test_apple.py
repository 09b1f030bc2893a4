"""APPLE: the invariants in docs/methods."""

import math
from dataclasses import replace

import pytest
import torch

from lightning_modules.apple import APPLE
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, Federation, fit
from tests.helpers.messages import parts
from tests.helpers.toy import Line, blobs, lines, mlp

FACTS = {
    APPLE: facts.Facts(
        travels=("net.", "others."),
        stays=("net.", "p", "started"),
        # Down: the cores of two other clients, and for ten clients presence and initial shares.
        floats=(2 * facts.NET + 2 * 10, facts.NET),
        variants=[{"first": "uniform", "downloads": 2}],
        stacks=[{"downloads": 1, "first": "uniform"}],
    ),
}

# As many rounds with a pull as there are, and room for more clients than the toy data have.
OPTIONS = {"num_clients": 10, "pull_rounds": 1.0}


def make(net, **options):
    return APPLE(net, **{**OPTIONS, **options})


def test_a_newcomer_begins_with_the_mean_of_all_cores():
    fed = Federation(make(mlp(), optimizer=SGD), blobs((9, 6, 5)))
    fed.round(0, 1, 2)
    message, kept = fed.server.welcome(fed.state, replace(fed.infos[0], client=3), fed.infos)
    shares = torch.tensor([0.45, 0.3, 0.25])
    assert message.extra["start"].tolist()[0] == 0
    torch.testing.assert_close(message.extra["start"][1:4], shares)
    bias = fed.state.shared["net.head.bias"]
    torch.testing.assert_close(kept["net.head.bias"], shares @ bias)


def test_without_room_the_smallest_is_left_out_and_nobody_takes_what_is_untrained():
    """Clients 1 and 2 have 6 and 5 samples; client 3 has none, and is in no mixture."""
    data = blobs((9, 6, 5, 4))
    data.splits["train"][3] = tuple(part[:0] for part in data.splits["train"][3])
    fed = Federation(make(mlp(), optimizer=SGD, num_clients=4), data)
    fed.round(0, 1, 2)
    assert fed.server.broadcast(fed.state, 0, 2).extra["there"].tolist() == [1, 1, 1, 0]
    fed.server.places = 2
    message, _ = fed.server.welcome(fed.state, replace(fed.infos[0], client=4), fed.infos)
    torch.testing.assert_close(message.extra["start"], torch.tensor([0.0, 0.45, 0.3]))


def test_a_limit_of_downloads_brings_new_cores_first_and_then_those_with_large_shares():
    """At t = 9 of a sharpness of 1000, the base is 1000 * 9 * 1 / 4: a share of 3 beats 0."""
    options = {"num_clients": 4, "downloads": 1, "sharpness": 1000.0}
    fed = Federation(make(mlp(), optimizer=SGD, **options), blobs((9, 6, 5, 7)))
    came = set()
    for _ in range(3):
        (place,) = {name.split(".")[1] for name in fed.job(0).broadcast.shared}
        came.add(place)
        fed.round()
        own = fed.kept[0][f"others.{place}.module.head.bias"]
        assert not torch.equal(own, fed.kept[0]["net.head.bias"])
    assert came == {"0", "1", "2"}
    torch.testing.assert_close(fed.state.last_shares[1, [1, 0, 2, 3]], fed.kept[1]["p"][:4].abs())
    told = torch.tensor([0.0, 0.0, 3.0, 0.0], dtype=torch.float64).expand(4, 4)
    for round in range(10, 15):
        sent = fed.server.broadcast(replace(fed.state, last_shares=told), 0, round).shared
        assert {name.split(".")[1] for name in sent} == {"1"}


def test_more_clients_than_places_are_refused():
    with pytest.raises(ValueError, match=parts("num_clients is 2 ~ 3 clients")):
        fit(APPLE(Line(), num_clients=2), lines(1.0, 2.0, 3.0), 1)


USUAL = {"num_clients": 4, "share_lr": 0.05, "pull": 0.5, "pull_rounds": 1.0}
USUAL |= {"schedule": "exponential", "first": "samples", "downloads": None}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": "cosine", "num_clients": 6, "pull_rounds": 0.5, "first": "uniform"},
        {"downloads": 2},
    ],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    """Under a limit, the cores that come are those that were sent."""
    fed, o = by_hand.federation(APPLE, **USUAL | options), USUAL | options
    p0 = torch.tensor(by_hand.SIZES, dtype=torch.float64) / sum(by_hand.SIZES)
    first = p0 if o["first"] == "samples" else torch.full_like(p0, 1 / 4)
    core, p = dict.fromkeys(range(4), by_hand.initial()), dict.fromkeys(range(4), first)
    seen = {c: {**core} for c in core}
    names = [n for n in core[0] if "running" not in n]

    def cores(i, number):
        """Return all cores as client i has them, in ascending order."""
        sent = fed.job(i, number).broadcast.shared
        others = [n for n in core if n != i]
        come = [n for k, n in enumerate(others) if f"others.{k}.module.head.bias" in sent]
        assert len(come) == min(3, o["downloads"] or 3)
        return {n: core[n] if n in [i, *come] else seen[i][n] for n in core}

    def mixture(i, cs):
        return cs[i] | {
            n: sum(s * c[n] for s, c in zip(p[i], cs.values(), strict=True)) for n in names
        }

    def trained(i, fading):
        cs, speed, core_speed = seen[i], 0.0, dict.fromkeys(names, 0.0)
        for x, y in by_hand.batches(fed, i):
            w = {n: v.clone().requires_grad_(n in names) for n, v in mixture(i, cs).items()}
            loss = by_hand.cross_entropy_of(w, x, y)
            slopes = dict(zip(names, torch.autograd.grad(loss, [w[n] for n in names]), strict=True))
            products = [sum((slopes[n] * c[n]).sum() for n in names) for c in cs.values()]
            speed = 0.9 * speed + torch.stack(products) + fading * o["pull"] * (p[i] - p0)
            own = {n: w[n] for n in cs[i] if n not in names}
            for n in names:
                core_speed[n] = 0.9 * core_speed[n] + p[i][i] * slopes[n] + 0.01 * cs[i][n]
                own[n] = cs[i][n] - 0.03 * core_speed[n]
            cs, p[i] = cs | {i: {n: own[n] for n in cs[i]}}, p[i] - o["share_lr"] * speed
        return cs[i]

    for number, clients in enumerate(cohorts, 1):
        part = (number - 1) / (3 * o["pull_rounds"])
        falls = {"exponential": 0.001**part, "cosine": (math.cos(math.pi * part) + 1) / 2}
        seen |= {c: cores(c, number) for c in clients}
        core |= {c: trained(c, falls[o["schedule"]] if part < 1 else 0) for c in clients}
        fed.round(*clients)
        for c in core:
            w = mixture(c, cores(c, number))
            x, _ = by_hand.samples(fed, c, "test")
            by_hand.compare(by_hand.predicted(fed, c), by_hand.outputs(w, x))
            stored = {n: v[c] for n, v in fed.state.shared.items()}
            by_hand.compare(by_hand.of(stored, "net."), core[c])
