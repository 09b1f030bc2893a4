"""IFCA: the invariants in docs/methods."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules.fedavg import FedAvg
from lightning_modules.ifca import IFCA
from pfl.core.types import Broadcast, Totals
from pfl.training import client_round
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, Federation, close, context, equal, fit, follow, job
from tests.helpers.toy import ToyData, blobs, contradicting, mlp

FACTS = {
    IFCA: facts.Facts(
        travels=("clusters.",),
        extra=("cluster",),
        # Down: two models; up: one and its number.
        floats=(2 * facts.NET, facts.NET + 1),
        draws="clusters.1.head.weight",
        not_private="pass 'choose': it computes statistics of the samples without noise",
    ),
}


def plain(state, number=0):
    """Return a cluster's entries under the names of ``net``."""
    prefix = f"clusters.{number}."
    return {f"net.{n.removeprefix(prefix)}": v for n, v in state.items() if n.startswith(prefix)}


def near_the_solutions(module):
    """Train the first cluster on client 0, the second on client 2, as a start."""
    data = contradicting()
    for number, client in ((0, 0), (1, 2)):
        one = ToyData([data.splits["train"][client]], outputs=2)
        run = fit(FedAvg(mlp(num_classes=2), optimizer=SGD, epochs=3), one, 2)
        state = {n.removeprefix("net."): v for n, v in run.server.shared.items()}
        module.clusters[number].load_state_dict(state)
    return module


def chosen(snapshot):
    return snapshot.server.client_report["cluster"]


def test_contradicting_groups_separate():
    """Invariant 4. And each cluster is FedAvg on its group alone."""
    data, module = contradicting(), near_the_solutions(IFCA(mlp(num_classes=2), optimizer=SGD))
    initial = [{n: v.clone() for n, v in c.state_dict().items()} for c in module.clusters]
    run, snapshots = follow(module, data, 3)
    assert all(chosen(s) == {0: 0, 1: 0, 2: 1, 3: 1} for s in snapshots)
    assert run.history[-1]["test/personal/acc"] == 1.0
    for number, clients in enumerate(((0, 1), (2, 3))):
        train = [(x[:0], y[:0]) for x, y in data.splits["train"]]
        for client in clients:
            train[client] = data.splits["train"][client]
        net = mlp(num_classes=2)
        net.load_state_dict(initial[number])
        alone = fit(FedAvg(net, optimizer=SGD), ToyData(train, outputs=2), 3)
        assert close(plain(run.server.shared, number), alone.server.shared)


def totals(*losses):
    return Totals({"loss": torch.tensor(losses)}, {}, 0, 0)


def test_equal_losses_choose_the_first():
    module = IFCA(mlp(), k=3)
    for cluster in module.clusters:
        cluster.load_state_dict(module.net.state_dict())
    assert module._choose(totals(2.0, 2.0, 2.0))["cluster"].item() == 0
    assert module._choose(totals(2.0, 1.0, 1.0))["cluster"].item() == 1


def test_models_are_chosen_on_training_data_before_a_test():
    """Client 2 never trained; its test labels are exchanged and must not matter."""
    data = contradicting()
    x, y = data.splits["train"][2]
    data.splits["test"] = [*data.splits["train"][:2], (x, 1 - y), data.splits["train"][3]]
    module = near_the_solutions(IFCA(mlp(num_classes=2), optimizer=SGD))
    shared = {n: v.clone() for n, v in module.state_dict().items() if n.startswith("clusters")}
    test = client_round.test(
        context(module, data), job(data, 2, Broadcast(shared), splits=("test",))
    )
    assert module.cluster.item() == 1
    assert test["test"]["acc"] == 0.0


def test_a_client_without_training_data_is_tested_with_the_first_model():
    federation = Federation(IFCA(mlp(), optimizer=SGD, k=1), blobs(sizes=(9, 6, 0)))
    federation.round(0, 1)
    tested = {f"net.{name}": value for name, value in federation.personal(2).items()}
    assert equal(tested, plain(federation.state.shared))


@pytest.mark.parametrize("options", [{}, {"k": 3, "weighting": "uniform"}])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, count = by_hand.federation(IFCA, **options), options.get("k", 2)
    nets = [by_hand.initial(by_hand.of(fed.state.shared, f"clusters.{n}.")) for n in range(count)]

    def choice(c):
        x, y = by_hand.samples(fed, c)
        losses = [float(cross_entropy(by_hand.outputs(net, x), y)) for net in nets]
        return losses.index(min(losses))

    for clients in cohorts:
        groups = [[c for c in clients if choice(c) == n] for n in range(count)]
        after = [
            by_hand.averaged(
                [
                    by_hand.descended(net, by_hand.cross_entropy_of, by_hand.batches(fed, c))
                    for c in members
                ],
                [1 if "weighting" in options else by_hand.SIZES[c] for c in members],
            )
            if members
            else net
            for net, members in zip(nets, groups, strict=True)
        ]
        nets = after
        fed.round(*clients)
        assert fed.state.report == {f"cluster_{n}": len(one) for n, one in enumerate(groups)}
        for n, net in enumerate(nets):
            by_hand.compare(by_hand.of(fed.state.shared, f"clusters.{n}."), net)
        for c in range(4):
            by_hand.compare_tested(fed, c, nets[choice(c)])
