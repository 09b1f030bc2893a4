"""FedROD: the invariants in docs/methods."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedrod import FedROD
from lightning_modules.nets import LoRA, SplitNet
from pfl.core.seeds import scoped
from pfl.core.task import Classification
from pfl.core.types import Broadcast
from pfl.training import client_round
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, context, equal, follow, job
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedROD: facts.Facts(
        travels=("net.",),
        stays=("personal.",),
        floats=facts.NET,
        variants=[{"gamma": 0.5, "head_init": "copy"}],
        needs_classes=True,
        needs_parts=True,
        not_private="such as class counts",
    ),
}


def heads(state, stem):
    return {n.removeprefix(stem): v for n, v in state.items() if n.startswith(stem)}


def test_the_generic_row_of_an_absent_class_rests():
    """Invariant 4. Bitwise; FedAvg pushes it down, and so does the personal head with its own."""
    data = blobs(sizes=(9,))
    x, _ = data.splits["train"][0]
    data.splits["train"][0] = (x, torch.arange(len(x)) % 2)
    up = {}
    for method in (FedROD, FedAvg):
        result = client_round.train(
            context(method(mlp(), optimizer=SGD), data), _sent(method, data)
        )
        up[method] = result
    start = mlp().head
    rod, fedavg = (heads(up[m].upload.shared, "net.head.") for m in (FedROD, FedAvg))
    assert torch.equal(rod["weight"][2], start.weight[2])
    assert torch.equal(rod["bias"][2], start.bias[2])
    assert not torch.equal(rod["bias"][:2], start.bias[:2])
    assert fedavg["bias"][2] < start.bias[2]
    assert up[FedROD].kept["personal.bias"][2] < 0


def _sent(method, data):
    """Return a job that starts from the initial network."""
    module = method(mlp())
    state = module.state_dict()
    return job(data, broadcast=Broadcast({n: state[n] for n in module.shared_names()}))


def test_a_client_of_one_class_sends_back_what_it_received():
    """Invariant 6. Its generic loss is zero; only its personal head learns."""
    data = blobs(sizes=(9,))
    x, _ = data.splits["train"][0]
    data.splits["train"][0] = (x, torch.ones(len(x), dtype=torch.long))
    sent = _sent(FedROD, data)
    result = client_round.train(context(FedROD(mlp(), optimizer=SGD, epochs=3), data), sent)
    assert equal(result.upload.shared, sent.broadcast.shared)
    assert result.train["local/generic"] == 0
    assert result.kept["personal.bias"].argmax() == 1


def test_a_head_of_two_layers_starts_at_zero_and_learns():
    """Only its last layer is zero, or nothing would ever reach the first."""

    def net():
        with scoped(1):
            layers = OrderedDict(fc=nn.Linear(6, 4), relu=nn.ReLU(), out=nn.Linear(4, 3))
            return SplitNet(mlp().backbone, nn.Sequential(layers))

    module = FedROD(net(), optimizer=SGD, epochs=3)
    assert equal(heads(module.state_dict(), "personal.fc."), dict(net().head.fc.state_dict()))
    run, (first, *_) = follow(module, blobs(), 2)
    for kept in run.kept.values():
        assert not torch.equal(kept["personal.fc.weight"], net().head.fc.weight)
    # The generic head alone is the global model.
    own, data = net(), blobs()
    own.load_state_dict(heads(first.server.shared, "net."))
    for client in range(3):
        split = data.split(client, "test")
        loss = cross_entropy(own(split.x), split.targets).item()
        assert first.clients[client]["test/global/loss"] == pytest.approx(loss)


def test_smoothed_labels_are_refused():
    with pytest.raises(ValueError, match=parts("FedROD ~ label_smoothing")):
        FedROD(mlp(), task=Classification(label_smoothing=0.1))


@pytest.mark.parametrize("init", ["zero", "copy"])
def test_a_head_that_cannot_be_zero_is_refused(init):
    """Under LoRA its weights are frozen, and only their change is trained."""
    net = LoRA(SplitNet(nn.Flatten(), nn.Linear(5, 3)), rank=1, trained=[])
    with pytest.raises(ValueError, match=parts("last linear layer ~ zero ~ weight, bias")):
        FedROD(net, head_init=init)


@pytest.mark.parametrize(
    "options", [{}, {"gamma": 0.5, "head_init": "copy", "weighting": "uniform"}]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(FedROD, **options), by_hand.initial()
    heads = [{n: v for n, v in w.items() if n.startswith("head.")} for _ in range(4)]
    if not options:
        heads = [{n: torch.zeros_like(v) for n, v in head.items()} for head in heads]

    def personal(v, x, train=False):
        z, head = by_hand.features(v, x, train).detach(), by_hand.of(v, "own.")
        return linear(z, v["head.weight"], v["head.bias"]).detach() + linear(z, *head.values())

    for clients in cohorts:
        sent = []
        for c in clients:
            # In single precision, whatever that of the run.
            counts = by_hand.samples(fed, c)[1].bincount(minlength=3).float()
            prior = counts.pow(options.get("gamma", 1)).log().clamp_min(-1e4)

            def loss(v, x, y, prior=prior, names=tuple(w)):
                still = {n: t.detach().clone() if "running" in n else t for n, t in v.items()}
                of_personal = cross_entropy(personal(still, x, True), y)
                generic = by_hand.outputs({n: v[n] for n in names}, x, True)
                return cross_entropy(generic + prior, y) + of_personal

            both = w | {f"own.{n[5:]}": v for n, v in heads[c].items()}
            both = by_hand.descended(both, loss, by_hand.batches(fed, c))
            heads[c] = {n: both[f"own.{n[5:]}"] for n in heads[c]}
            sent.append({n: both[n] for n in w})
        sizes = [1 if options else by_hand.SIZES[c] for c in clients]
        w = by_hand.averaged(sent, sizes)
        fed.round(*clients)
        by_hand.compare(by_hand.of(fed.state.shared, "net."), w)
        for c, head in enumerate(heads):
            both = w | {f"own.{n[5:]}": v for n, v in head.items()}
            expected = personal(both, by_hand.samples(fed, c, "test")[0])
            by_hand.compare(by_hand.predicted(fed, c), expected)
