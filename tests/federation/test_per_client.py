"""Networks that differ between clients."""

import threading
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

from lightning_modules import FedPer, FedProto, LGFedAvg, Local
from lightning_modules.nets import PerClient
from pfl.core.per_client import architectures
from pfl.engines import guard, vectorised
from pfl.engines.processes import ProcessesEngine
from pfl.engines.stack import round as stack_round
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from pfl.training.declaration import MethodError
from tests.helpers.federation import SGD, fit
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

SIZES = (4, 9, 3, 17, 6)


class Wide(nn.Module):
    """A network of another structure and its own names, which asks for its own mode."""

    def __init__(self, seed=5):
        super().__init__()
        whole = mlp(seed=seed)
        self.backbone, self.head = (
            nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 6)),
            whole.head,
        )
        self.features, self.num_classes = 6, 3
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.backbone.parameters():
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))

    def forward(self, x):
        x = x if self.training else x + 0
        return self.head(self.backbone(x))


def method(nets=None, by="cycle", kind=FedProto, **options):
    return kind(PerClient(nets or [mlp(), Wide()], by), optimizer=SGD, **options)


def test_one_network_for_all_is_the_network_itself():
    alone = fit(FedProto(mlp(), optimizer=SGD), blobs(SIZES))
    assert fit(method([mlp()]), blobs(SIZES)).fingerprint == alone.fingerprint


def test_a_client_keeps_and_trains_its_own_network_alone():
    """Clients of Local are those of two runs, each with one of the networks for all."""
    run = fit(method(kind=Local), blobs(SIZES))
    for number, net in enumerate((mlp(), Wide())):
        whole = fit(Local(net, optimizer=SGD), blobs(SIZES))
        for client in range(number, len(SIZES), 2):
            ours, theirs = run.kept[client], whole.kept[client]
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_permuted_networks_and_clients_permute_the_results():
    one = fit(method([mlp(), Wide()], [0, 1, 0, 0, 1]), blobs(SIZES))
    other = fit(method([Wide(), mlp()], [1, 0, 1, 1, 0]), blobs(SIZES))
    assert one.fingerprint == other.fingerprint
    assert one.history[-1]["test/personal/acc"] == other.history[-1]["test/personal/acc"]


@pytest.mark.parametrize("kind", [FedProto, LGFedAvg])
def test_engines_agree(kind):
    nets = [mlp(), Wide()]
    if kind is LGFedAvg:
        nets[1].head = deepcopy(nets[0].head)

    def fingerprint(engine):
        run = fit(method(deepcopy(nets), kind=kind), blobs(SIZES), engine=engine)
        return run, run.fingerprint

    alone, bits = fingerprint("sequential")
    for engine in (ThreadsEngine(2), ProcessesEngine(2)):
        assert fingerprint(engine)[1] == bits
    stacked, _ = fingerprint(VectorisedEngine())
    assert stacked.header["engine"].startswith("vectorised")
    for client, kept in alone.kept.items():
        torch.testing.assert_close(stacked.kept[client], kept)


@pytest.fixture
def stacks(monkeypatch):
    """Return the numbers of clients in the stacks that train, without those of checks."""
    found, train = [], stack_round.train
    monkeypatch.setattr(guard, "disagreement", lambda context: None)
    monkeypatch.setattr(vectorised, "disagreement", lambda context: None)
    monkeypatch.setattr(
        stack_round, "train", lambda context, jobs: found.append(len(jobs)) or train(context, jobs)
    )
    return found


def test_networks_of_one_architecture_share_a_stack(stacks):
    """Two equal ones give the bits of one for all; another structure has a stack of its own."""
    loop = {"rounds": 2, "engine": VectorisedEngine(), "sampler": UniformSampler(1.0)}
    alone = fit(FedProto(mlp(), optimizer=SGD), blobs(SIZES), **loop)
    two = fit(method([mlp(), mlp()]), blobs(SIZES), **loop)
    assert two.fingerprint == alone.fingerprint
    assert two.latest.clients == [
        row | {"group": row["client"] % 2} for row in alone.latest.clients
    ]
    assert stacks == [5] * 4
    stacks.clear()
    fit(method([mlp(), Wide(), mlp()]), blobs(SIZES), **loop)
    assert sorted(stacks) == [2, 2, 3, 3]


def test_each_client_of_a_common_stack_starts_from_its_own_network(stacks):
    nets = [mlp(seed=1), mlp(seed=2)]
    found = fit(method(deepcopy(nets), kind=Local), blobs(SIZES), 1, engine=VectorisedEngine())
    alone = fit(method(deepcopy(nets), kind=Local), blobs(SIZES), 1, engine="sequential")
    assert stacks == [len(alone.kept)]
    for client, kept in alone.kept.items():
        torch.testing.assert_close(found.kept[client], kept)
    assert found.history[0]["test/personal/loss"] == pytest.approx(
        alone.history[0]["test/personal/loss"]
    )


class Scaled(nn.Module):
    """A layer with an option, a constant, and a function."""

    def __init__(self, by=1.0, constant=1.0, act=torch.relu, width=3):
        super().__init__()
        self.layer, self.by, self.act = nn.Linear(2, width), by, act
        self.register_buffer("constant", torch.tensor(constant), persistent=False)

    def forward(self, x):
        return self.act(self.by * self.layer(x) * self.constant)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (Scaled, Scaled, True),
        (Scaled, partial(Scaled, by=2.0), False),
        (Scaled, partial(Scaled, constant=2.0), False),
        (Scaled, partial(Scaled, act=torch.tanh), False),
        (Scaled, partial(Scaled, width=4), False),
        (partial(nn.Dropout, 0.1), partial(nn.Dropout, 0.2), False),
        (partial(nn.Conv2d, 1, 1, 3), partial(nn.Conv2d, 1, 1, 3, padding=1), False),
        (lambda: Scaled(act=lambda x: x), lambda: Scaled(act=lambda x: x), False),
        # What cannot be written down.
        (lambda: Scaled(act=threading.Lock()), lambda: Scaled(act=threading.Lock()), False),
    ],
)
def test_an_architecture_is_all_but_the_values_of_entries(one, other, alike):
    nets = PerClient([nn.Sequential(nn.Flatten(), make()) for make in (one, other, one)])
    first, second, third = architectures(nets)
    assert (first, second) == (0, 0 if alike else 1)
    assert third == 0 or not alike


def test_scores_are_averaged_over_the_clients_of_each_network():
    run = fit(method(), blobs(SIZES), 1)
    assert run.header["groups"] == "0 ToyNet: 3, 1 Wide: 2"
    assert run.header["network"] == "ToyNet, 57 parameters; Wide, 135 parameters"
    assert {"test/personal/acc@ToyNet", "test/personal/acc@Wide"} <= run.history[0].keys()


def test_domains_decide():
    data = blobs(SIZES)
    data.groups = (("a", "b", "c"), [0, 0, 1, 2, 1])
    run = fit(method(by="domain"), data, 1)
    wide = [client for client in run.kept if "net.backbone.2.weight" in run.kept[client]]
    assert wide == [2, 4]


def test_a_resumed_run_knows_who_has_which_network(tmp_path):
    loop = {"default_root_dir": str(tmp_path), "name": "a"}
    first = fit(method(), blobs(SIZES), 2, **loop)
    path = str(first.folder)

    def resumed(module):
        return FederatedLoop(3, progress=False, **loop).fit(module, blobs(SIZES), ckpt_path=path)

    # Initial values of other seeds, which those of the checkpoint replace.
    again = resumed(method([mlp(seed=9), Wide(seed=9)]))
    assert again.fingerprint == fit(method(), blobs(SIZES), 3).fingerprint
    with pytest.raises(CheckpointError, match=parts("net.backbone")):
        resumed(method([Wide(), mlp()]))


def test_newcomers_have_a_network_too():
    from pfl.extras.newcomers.newcomers import Newcomers

    data = blobs(SIZES)
    data.apart = {"unseen": (3, 4)}
    run = fit(method(kind=LGFedAvg, nets=[mlp(), Wide()]), data, 2, evaluations=[Newcomers()])
    for client, entries in ((3, 6), (4, 4)):
        state = run.personal(client).module.state_dict()
        assert len([name for name in state if name.startswith("net.")]) == entries


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: method(kind=FedPer),
            "FedPer sends ~ net.backbone.0.weight ~ float32[6, 5] ~ [9, 5]",
        ),
        (lambda: method(by="domain"), "by: domain ~ data.groups"),
        (lambda: method(by=[0, 1]), "by lists 2 clients, but there are 5"),
        (lambda: method(by=[0, 2, 1]), "by has the number 2, but there are 2 networks"),
        (lambda: PerClient([]), "nets needs at least one network"),
    ],
)
def test_what_does_not_fit_is_refused(make, told):
    with pytest.raises((ValueError, MethodError), match=parts(told)):
        fit(make(), blobs(SIZES), 1)
