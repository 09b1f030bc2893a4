"""FedGH: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from lightning_modules.fedgh import FedGH
from lightning_modules.nets import PerClient
from lightning_modules.steps.prototypes import class_means, class_sums
from pfl.core.seeds import generator
from pfl.core.server import ServerState
from pfl.core.types import Upload
from tests.helpers import by_hand
from tests.helpers.federation import SGD, Federation, differing, equal, fit, sgd
from tests.helpers.toy import blobs, mlp, normed


def upload(client, *rows):
    """Return an upload of (class, mean) pairs, D = 1."""
    classes = torch.tensor([number for number, _ in rows], dtype=torch.int32)
    means = torch.tensor([[mean] for _, mean in rows])
    return Upload(client, 4, {}, {"classes": classes, "means": means})


def server_of(classes=2, bias=False, **options):
    """Return a server of a head of zeros for D = 1, and its state."""
    net = mlp(num_classes=classes, hidden=1)
    net.head = nn.Linear(1, classes, bias=bias)
    state = {f"net.head.{n}": torch.zeros_like(v) for n, v in net.head.state_dict().items()}
    return FedGH(net, **options).server(), ServerState(state)


def weight(state):
    return state.shared["net.head.weight"][:, 0].tolist()


def test_a_step_by_hand():
    """Invariant 2: probabilities are (0.5, 0.5), so the gradient on the pair (1, 0) is (-0.5, 0.5).

    The mean of a batch of (1, 0) and (3, 1) has (-0.5 + 1.5, 0.5 - 1.5) / 2.
    """
    server, state = server_of(server_lr=1.0, server_epochs=1)
    assert weight(server.aggregate(state, [upload(0, (0, 1.0))])) == [0.5, -0.5]
    both = [upload(0, (0, 1.0)), upload(1, (1, 3.0))]
    after = server.aggregate(state, both)
    assert weight(after) == [-0.5, 0.5]
    assert after.report == {"header_loss": torch.tensor(2.0).log().item()}


def test_one_by_one_goes_by_client_and_class():
    """Invariant 5: one step a pair, whatever the epochs.

    After (0.5, -0.5) the mean 0 of class 1 gives no gradient. Then the mean 1 of class 0 steps
    again, where its probability is that of the logits (0.5, -0.5), 1 / (1 + e^-1).
    """
    server, state = server_of(server_lr=1.0, server_epochs=7, order="one_by_one")
    found = weight(server.aggregate(state, [upload(0, (0, 1.0), (1, 0.0)), upload(1, (0, 1.0))]))
    share = 1 / (1 + torch.tensor(-1.0).exp())
    torch.testing.assert_close(torch.tensor(found), torch.tensor([1.5 - share, share - 1.5]))
    pairs = [upload(0, (0, 1.0)), upload(1, (1, 3.0))]
    assert weight(server.aggregate(state, pairs)) != weight(server.aggregate(state, pairs[::-1]))


def test_without_a_rate_the_head_rests():
    """Invariant 1."""
    federation = Federation(FedGH(mlp(), server_lr=0.0, optimizer=SGD))
    before = federation.state.shared
    federation.round()
    federation.round(0)
    assert equal(federation.state.shared, before)


def test_one_class_is_learned():
    """Invariant 4. The rows of other classes fall."""
    server, state = server_of(classes=3, server_lr=1.0)
    first, *others = weight(server.aggregate(state, [upload(0, (0, 2.0))]))
    assert first > 0.5
    assert all(other < -0.2 for other in others)


def test_uploads_are_means_of_the_own_classes():
    """Invariants 3 and 7: features after training, in eval mode; no parameter."""
    federation = Federation(FedGH(normed(), optimizer=SGD, epochs=2))
    result = federation.train(0)
    module, split = federation.module.eval(), federation.data.split(0, "train")
    means = class_means(*class_sums(module.net.backbone(split.x), split.targets, 3))
    classes = result.upload.extra["classes"].long()
    assert classes.tolist() == split.targets.unique().tolist()
    torch.testing.assert_close(result.upload.extra["means"], means[classes])
    assert result.upload.shared == {}


def test_absent_clients_get_the_new_head():
    """Invariant 6."""
    federation = Federation(FedGH(mlp(), optimizer=SGD))
    federation.round()
    before, heads = federation.kept[2], federation.state.shared
    personal = federation.personal(2)
    federation.round(0, 1)
    assert federation.kept[2] is before
    changed = differing(personal, federation.personal(2))
    assert changed == {n.removeprefix("net.") for n in heads} == {"head.weight", "head.bias"}


def test_without_uploads_the_head_rests():
    server, state = server_of()
    assert equal(server.aggregate(state, []).shared, state.shared)


def test_both_parts_are_trained_at_the_client():
    """A test right after training uses the trained head."""
    federation = Federation(FedGH(mlp(), optimizer=sgd(0.5)))
    sent = federation.state.shared
    federation.train(0)
    entries = federation.module.state_dict()
    assert differing(sent, {n: entries[n] for n in sent}) == sent.keys()


def test_backbones_may_differ_between_clients():
    """With as many features, and one head."""
    wide = mlp(seed=2)
    wide.backbone = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6))
    run = fit(FedGH(PerClient([mlp(), wide]), optimizer=SGD), blobs(), 2)
    assert [len(run.kept[client]) for client in range(3)] == [2, 4, 2]
    assert all("backbone" in name for kept in run.kept.values() for name in kept)
    assert {n: tuple(v.shape) for n, v in run.server.shared.items()} == {
        "net.head.weight": (3, 6),
        "net.head.bias": (3,),
    }


@pytest.mark.parametrize("order", ["batches", "one_by_one"])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
def test_a_federation_by_hand(cohorts, order):
    fed = by_hand.federation(FedGH, server_lr=0.3, server_epochs=3, server_batch=4, order=order)
    models = dict.fromkeys(range(4), by_hand.initial())
    header = {n: models[0][n] for n in ("head.weight", "head.bias")}

    def of_server(h, z, y):
        return cross_entropy(linear(z, *h.values()), y)

    for clients in cohorts:
        sent = []
        for c in clients:
            steps = by_hand.batches(fed, c)
            models[c] = by_hand.descended(models[c] | header, by_hand.cross_entropy_of, steps)
            sent.append(by_hand.class_means(fed, c, models[c]))
        y, z = (torch.cat(parts) for parts in zip(*sent, strict=True))
        rng = generator(fed.server.seed, "means", fed.state.round)
        steps = [rows for _ in range(3) for rows in torch.randperm(len(y), generator=rng).split(4)]
        for rows in steps if order == "batches" else torch.arange(len(y)).split(1):
            header = by_hand.stepped(header, of_server, 0.3, z[rows], y[rows])
        fed.round(*clients)
        assert by_hand.distance(by_hand.of(fed.state.shared, "net."), header) < 1e-12
        for c in models:
            assert by_hand.disagreement(fed, c, models[c] | header) < 1e-12
