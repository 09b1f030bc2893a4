"""FedPHP: the invariants in docs/methods."""

from math import exp

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedphp import FedPHP
from lightning_modules.losses import kernel_discrepancy, soft_cross_entropy
from pfl.core.types import Broadcast, ClientInfo
from tests.helpers import by_hand
from tests.helpers.draws import normal
from tests.helpers.federation import SGD, Federation, equal, fit, own
from tests.helpers.toy import blobs, mlp, normed

INHERITED = "inherited."


def mu(k, round=1, rounds=10, **options):
    """Return mu after a client took part k times before."""
    module = FedPHP(mlp(), **options)
    module.visits.fill_(k)
    shared = {n: v for n, v in module.state_dict().items() if n.startswith("net.")}
    module.receive(Broadcast(shared), ClientInfo(0, 2, None, round, rounds))
    return module.mu.item()


def test_mu_by_hand():
    """Invariant 3: q T = 10 at the third participation; at most 0.9; or by rounds from 0."""
    assert mu(2, rounds=10) == pytest.approx(0.18)
    assert mu(2, rounds=100, participation=0.1) == pytest.approx(0.18)
    assert (mu(0), mu(30), mu(3, rounds=1)) == (0, pytest.approx(0.9), pytest.approx(0.9))
    assert mu(7, round=4, schedule="rounds", momentum=0.5) == pytest.approx(0.15)


def test_without_a_teacher_the_global_models_are_fedavgs():
    """Invariant 1, bit for bit."""
    run, other = (
        fit(kind(normed(), optimizer=SGD, **options), blobs())
        for kind, options in ((FedPHP, {"inherit_weight": 0.0}), (FedAvg, {}))
    )
    assert equal(run.server.shared, other.server.shared)


@pytest.mark.parametrize("regulariser", ["kd", "mmd", "mmd_fixed"])
def test_the_average_begins_with_the_trained_network_and_moves(regulariser):
    """Invariants 2 and 3: mu = 0 takes w_i, whatever v was; then v is 0.3 v + 0.7 w."""
    module = FedPHP(normed(), optimizer=SGD, regulariser=regulariser)
    fed = Federation(module, blobs(), rounds=3)
    found = [result.upload.shared for result in fed.round()]
    first = own(fed, 0, INHERITED)
    assert equal({n: first[n] for n in found[0]}, found[0])
    second = fed.round()[0].upload.shared
    for name, value in own(fed, 0, INHERITED).items():
        if name in second:
            torch.testing.assert_close(value, 0.3 * first[name] + 0.7 * second[name])
    assert fed.kept[0]["visits"] == 2


def test_an_average_that_never_moves():
    """Invariants 2 and 7: with mu = 1 v stays as it was, with its statistics."""

    class Still(FedPHP):
        def receive(self, broadcast, info):
            super().receive(broadcast, info)
            self.mu.fill_(1)

    fed = Federation(Still(normed(), optimizer=SGD), blobs())
    start = {f"net.{n}": v.clone() for n, v in fed.module.inherited.state_dict().items()}
    for _ in range(2):
        fed.round()
    kept = own(fed, 0, INHERITED)
    assert equal(
        *({n: v for n, v in one.items() if v.is_floating_point()} for one in (kept, start))
    )


def test_the_teachers_temperature_is_four_and_the_students_one():
    logits, teacher = normal(3, 4), normal(3, 4, seed=1)
    expected = -((teacher / 4).softmax(1) * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(soft_cross_entropy(logits, teacher / 4), expected)


def test_discrepancy_by_hand():
    """Invariants 4 and 5: of one sample the widths follow the only distance, whatever it is."""
    kernels = sum(exp(-power) for power in (4, 2, 1, 0.5, 0.25))
    assert kernels == pytest.approx(1.906862, abs=1e-6)
    for distance in (0.1, 1.0, 7.0):
        z, target = torch.zeros(1, 2).double(), torch.tensor([[distance, 0.0]]).double()
        found = kernel_discrepancy(z, target, widths="batch").item()
        assert found == pytest.approx(10 - 2 * kernels, abs=1e-5)
    z = normal(4, 3).requires_grad_()
    value = kernel_discrepancy(z, z.detach().clone(), widths="batch")
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-12)
    assert z.grad.abs().max() < 1e-12


def test_discrepancy_as_written_in_the_source():
    """Both batches as one of n = 2 B vectors, with all their distances."""
    z, target = normal(4, 3), normal(4, 3, seed=1)
    both = torch.cat([z, target])
    apart = (both[:, None] - both).square().sum(-1)
    spread = apart.sum() / (64 - 8) + 1e-8
    kernels = sum(torch.exp(-apart / (spread * 2.0 ** (i - 2))) for i in range(5))
    blocks = kernels[:4, :4] + kernels[4:, 4:] - kernels[:4, 4:] - kernels[4:, :4]
    found = kernel_discrepancy(z, target, widths="batch")
    torch.testing.assert_close(found, blocks.mean(), rtol=1e-12, atol=1e-12)


def test_a_client_that_sits_out_keeps_its_average():
    """Invariant 6."""
    fed = Federation(FedPHP(mlp(), optimizer=SGD), blobs())
    fed.round()
    before = dict(fed.kept[2])
    results = fed.round(0, 1)
    assert equal(fed.kept[2], before)
    assert all(n.startswith("net.") for n in results[0].upload.shared)


def test_who_never_took_part_tests_the_initial_network_or_the_received_one():
    for fallback in (False, True):
        fed = Federation(FedPHP(mlp(), optimizer=SGD, fallback_global=fallback), blobs())
        start = {n: v.clone() for n, v in fed.module.net.state_dict().items()}
        fed.round(0, 1)
        common = {n.removeprefix("net."): v for n, v in fed.state.shared.items()}
        fed.test(2)
        found = {n: v.clone() for n, v in fed.module.inherited.state_dict().items()}
        assert equal(found, common if fallback else start)


def test_an_untrained_network_may_teach_nothing():
    """With ``skip`` the first round is FedAvg's; with ``teach`` v pulls at once."""
    rounds = {
        kind: fit(FedPHP(mlp(), optimizer=SGD, first=kind, inherit_weight=0.5), blobs(), rounds=1)
        for kind in ("skip", "teach")
    }
    plain = fit(FedAvg(mlp(), optimizer=SGD), blobs(), rounds=1)
    assert equal(rounds["skip"].server.shared, plain.server.shared)
    assert not equal(rounds["teach"].server.shared, plain.server.shared)


@pytest.mark.parametrize(
    "options",
    [
        {"fallback_global": True},
        {"regulariser": "mmd", "participation": 0.5},
        {"regulariser": "mmd_fixed", "first": "skip"},
        {"schedule": "rounds", "momentum": 0.7},
    ],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(FedPHP, inherit_weight=0.3, **options), by_hand.initial()
    inherited, visits = [by_hand.initial() for _ in range(4)], [0] * 4
    most, last = options.get("momentum", 0.9), max(1, int(options.get("participation", 1) * 3))

    def features(w, x, train):
        # Statistics of the batch norm must not move twice.
        state = {n: v.clone() for n, v in by_hand.of(w, "backbone.").items()}
        return functional_call(by_hand.NET.backbone.train(train), state, (x,))

    def discrepancy(z, target):
        both, size = torch.cat([z, target]), len(z)
        apart = (both[:, None] - both).square().sum(-1)
        spread = apart.detach().sum() / (4 * size**2 - 2 * size) + 1e-8
        scales = [spread * 2.0 ** (i - 2) for i in range(5)]
        if options["regulariser"] == "mmd_fixed":
            scales = [2 * s for s in (10, 15, 20, 50)]
        kernels = sum(torch.exp(-apart / s) for s in scales)
        signs = torch.cat([torch.ones(size), -torch.ones(size)])
        return (torch.outer(signs, signs) * kernels).sum() / size**2

    for number, clients in enumerate(cohorts):
        sent = []
        for c in clients:
            v, share = inherited[c], 0.0 if "first" in options and not visits[c] else 0.3

            def loss(w, x, y, v=v, share=share):
                logits = by_hand.outputs(w, x, True)
                if "regulariser" in options:
                    pull = discrepancy(features(w, x, True), features(v, x, False).detach())
                else:
                    p = (by_hand.outputs(v, x) / 4).softmax(1).detach()
                    pull = cross_entropy(logits, p)
                return (1 - share) * cross_entropy(logits, y) + share * pull

            sent.append(by_hand.descended(w, loss, by_hand.batches(fed, c)))
            mu = most * number / 3 if "schedule" in options else min(most, most * visits[c] / last)
            inherited[c] = by_hand.averaged([v, sent[-1]], [mu, 1 - mu])
            visits[c] += 1
        w = by_hand.averaged(sent, [by_hand.SIZES[c] for c in clients])
        fed.round(*clients)
        assert by_hand.distance(by_hand.of(fed.state.shared, "net."), w) < 1e-12
        for c, v in enumerate(inherited):
            tested = v if visits[c] or "fallback_global" not in options else w
            assert by_hand.disagreement(fed, c, tested, "inherited.") < 1e-12
