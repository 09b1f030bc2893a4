"""IFCA: the invariants in docs/methods."""

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from lightning_modules.ifca import IFCA
from pfl.core.server import ServerState
from pfl.core.types import Broadcast, Totals, Upload
from pfl.federation.sampling import UniformSampler
from pfl.training import client_round
from tests.helpers.federation import SGD, Federation, close, context, equal, fit, follow, job
from tests.helpers.toy import ToyData, blobs, contradicting, mlp


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


def upload(client, samples, cluster, value):
    shared = {f"clusters.{cluster}.w": torch.tensor([value])}
    return Upload(client, samples, shared, {"cluster": torch.tensor(cluster, dtype=torch.int32)})


def start(*values):
    return ServerState({f"clusters.{n}.w": torch.tensor([v]) for n, v in enumerate(values)})


def test_averages_by_hand():
    """Cluster 0: (1 * 10 + 3 * 2) / 4 = 4; cluster 1 has one client; 2. nobody chose cluster 2."""
    state = start(0.0, 1.0, 2.0)
    uploads = [upload(0, 1, 0, 10.0), upload(1, 3, 0, 2.0), upload(2, 4, 1, 7.0)]
    server = IFCA(mlp(), k=3).server()
    after = server.aggregate(state, uploads)
    assert [v.item() for v in after.shared.values()] == [4.0, 7.0, 2.0]
    assert after.shared["clusters.2.w"] is state.shared["clusters.2.w"]
    uniform = IFCA(mlp(), k=3, weighting="uniform").server().aggregate(state, uploads)
    assert uniform.shared["clusters.0.w"].item() == 6.0


def test_an_empty_cluster_is_bitwise_unchanged():
    """Invariant 2."""
    module = IFCA(mlp(), optimizer=SGD, k=2)
    with torch.no_grad():
        module.clusters[1].head.bias.copy_(torch.tensor([100.0, -100.0, 0.0]))
    before = {n: v.clone() for n, v in module.state_dict().items() if n.startswith("clusters.1")}
    run = fit(module, blobs())
    assert equal({n: run.server.shared[n] for n in before}, before)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_the_sizes_of_clusters_add_up(fraction):
    """Invariant 3."""
    sampler = UniformSampler(fraction)
    run = fit(IFCA(mlp(), optimizer=SGD, k=3), blobs(), sampler=sampler)
    for row in run.history:
        sizes = [row[f"server/cluster_{number}"] for number in range(3)]
        assert sum(sizes) == max(1, int(3 * fraction))


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


def test_permuting_the_initial_models_permutes_the_result():
    """Invariant 5."""
    one = near_the_solutions(IFCA(mlp(num_classes=2), optimizer=SGD))
    other = near_the_solutions(IFCA(mlp(num_classes=2), optimizer=SGD))
    other.clusters[0].load_state_dict(one.clusters[1].state_dict())
    other.clusters[1].load_state_dict(one.clusters[0].state_dict())
    first, second = (fit(m, contradicting()).server.shared for m in (one, other))
    assert equal(plain(first, 0), plain(second, 1))
    assert equal(plain(first, 1), plain(second, 0))


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
