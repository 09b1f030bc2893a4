"""Networks of which a part is trained: what is frozen does not move, travel or multiply."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from lightning_modules import FedAvg, FedAvgP, FedPer, FedProx, Local
from lightning_modules.layers import Frozen
from lightning_modules.nets import FrozenParts, LoRA, Ranks, SplitNet, adapted
from lightning_modules.nets.initial import redraw
from pfl import FederatedLoop
from pfl.core.data_view import DataView
from pfl.core.seeds import scoped
from pfl.core.state import constants, nbytes
from pfl.engines.stack.stack import Stack
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.sampling import UniformSampler
from pfl.testing import PROMISES
from tests.engines.agreement import fit
from tests.helpers.discovery import methods, subject
from tests.helpers.federation import SGD, context, job
from tests.helpers.messages import parts
from tests.helpers.toy import blobs

FLOAT = 4
# Parameters beside those of the network.
EXTRA = {"frozen": 0, "lora": 24, "switched_off": 0}


def deep(seed=1):
    """Build a network of 5 * 6 + 6, 12 (batch norm), 6 * 6 + 6 and 6 * 3 + 3 parameters."""
    with scoped(seed):
        layers = [nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU()]
        return SplitNet(nn.Sequential(*layers), nn.Linear(6, 3))


def half(seed=1):
    return FrozenParts(deep(seed), ["backbone.0.*", "backbone.1.*"])


def lora(seed=1):
    with scoped(seed):
        return LoRA(deep(seed), rank=2, targets=["backbone.3"])


def switched_off(seed=1):
    net = deep(seed)
    net.backbone[:2].requires_grad_(False)
    net.backbone[1] = Frozen(net.backbone[1])  # in eval mode
    return net


NETS = {
    "frozen": (half, 42 + 21),
    "lora": (lora, 2 * 6 + 6 * 2 + 21),
    "switched_off": (switched_off, 42 + 21),
}


@pytest.mark.parametrize("kind", NETS)
def test_a_new_network_computes_what_the_given_one_does(kind):
    x = torch.randn(4, 5)
    assert torch.equal(NETS[kind][0]().eval()(x), deep().eval()(x))


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_what_is_frozen_neither_moves_nor_travels(kind, engine):
    """All four bytes of each trained float travel to and from each of five clients, no other."""
    net, trained = NETS[kind]
    run = fit(FedAvg(net(), optimizer=SGD), engine, rounds=1, sampler=UniformSampler())
    assert run.header["engine"].startswith(engine)
    row = run.history[-1]
    assert row["comm/bytes_up"] == row["comm/bytes_down"] == 5 * FLOAT * trained
    moved, given = constants(run.module.net), constants(FedAvg(net()).net)
    assert run.header["travels"].startswith(f"{trained} of {36 + 12 + 42 + 21 + EXTRA[kind]} ")
    assert sum(value.numel() for value in given.values() if value.is_floating_point()) > trained / 2
    assert all(torch.equal(moved[name], given[name]) for name in given)


@pytest.mark.parametrize("kind", NETS)
def test_a_stack_holds_no_copies_of_what_is_frozen(kind):
    net, trained = NETS[kind]
    data = blobs((4, 4, 4))
    stack = Stack(context(FedAvg(net()), data), [job(data, client) for client in range(3)])
    assert nbytes(stack.state) == 3 * FLOAT * trained


@pytest.mark.parametrize("method", [FedPer, FedProx])
def test_a_head_that_stays_and_a_copy_of_the_network_hold_what_is_trained(method):
    """FedPer sends what it trains of the backbone; FedProx's anchor is of that alone."""
    module = method(lora(), optimizer=SGD)
    own = {name for name in module.state_dict() if name.startswith("net.")}
    assert len(own) == 4
    assert set(module.shared_names()) <= own
    assert len(module.kept_names()) == (2 if method is FedPer else 0)
    for name in set(module.state_dict()) - own:
        assert f"net.{name.removeprefix('anchor.module.')}" in own


# Those that copy, divide or step a network in ways of their own.
HARD = {"APFL", "LGFedAvg", "PFAKD", "PFedBayes", "PFedMe", "PerFedAvg"}
HELD_TO = {"functions_are_pure", "clients_are_independent", "stacked_agrees"}


@pytest.mark.long
@pytest.mark.parametrize("method", [m for m in methods() if m.__name__ in HARD])
def test_methods_that_copy_networks_take_frozen_ones(method):
    found = subject(method)
    held = type(found)(method, lambda net, **options: found.build(half(), **options))
    for promise in PROMISES:
        if promise.name in HELD_TO:
            promise.hold(held)


def test_frozen_parameters_travel_if_told_so():
    run = fit(
        FedAvg(switched_off(), optimizer=SGD, travel_frozen=True),
        "sequential",
        1,
        sampler=UniformSampler(),
    )
    assert "travels" not in run.header
    assert run.history[-1]["comm/bytes_up"] == FLOAT * (36 + 24 + 42 + 21) * 5


def test_a_frozen_batch_norm_keeps_its_statistics_wherever_it_goes():
    """Also in a module that is made of parts of the network, and in a copy."""
    net = half()
    parts = copy.deepcopy(nn.Sequential(net.backbone, nn.Linear(6, 2))).train()
    before = {name: value.clone() for name, value in constants(parts).items()}
    parts(torch.randn(8, 5))
    after = constants(parts)
    assert len(before) == 7
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_new_initial_values_are_those_of_what_is_trained():
    net, given = lora(), lora()
    net.backbone[3].up.data.fill_(1.0)
    redraw(net, seed=5)
    assert all(torch.equal(v, constants(given)[n]) for n, v in constants(net).items())
    assert not net.backbone[3].up.any()
    assert not torch.equal(net.backbone[3].down, given.backbone[3].down)


def test_a_checkpoint_of_lightning_holds_what_is_frozen():
    """Another network of the same shape takes it over."""
    content: dict = {}
    FedAvg(half()).on_save_checkpoint(content)
    other = FedAvg(half(seed=2))
    other.on_load_checkpoint(content)
    wanted = constants(half())
    assert all(torch.equal(value, wanted[n]) for n, value in constants(other.net).items())


def test_a_run_is_not_resumed_with_other_frozen_parts(tmp_path):
    def run(net, **options):
        return fit(
            FedAvg(net, optimizer=SGD), "sequential", 2, default_root_dir=tmp_path, **options
        )

    folder = run(half()).folder
    assert run(half(), ckpt_path=str(folder)).round == 2
    with pytest.raises(CheckpointError, match=parts("checkpoint ~ frozen weights")):
        run(half(seed=2), ckpt_path=str(folder))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FrozenParts(deep(), ["body.*"]), "patterns ~ 'body.*' ~ backbone.0.weight"),
        (lambda: FrozenParts(deep(), ["*"]), "trained=[] ~ nothing"),
        (lambda: LoRA(deep(), targets=["fc"]), "targets=['fc'] ~ backbone.0, backbone.3"),
        (lambda: LoRA(deep(), trained=["top.*"]), "trained ~ 'top.*' ~ backbone.0.weight"),
        (lambda: LoRA(deep(), rank=-1), "rank ~ -1"),
        (lambda: LoRA(deep(), rank=0, trained=[]), "rank=0 ~ trained=[] ~ nothing"),
        (lambda: LoRA(deep(), dropout=1.5), "dropout ~ 1.5"),
        (lambda: Ranks(deep(), []), "ranks ~ at least one"),
        (lambda: Ranks(deep(), [2, 0]), "ranks ~ at least 1 ~ 0"),
        (lambda: Ranks(deep(), [2, 3], alpha=[1.0]), "alpha ~ 1 ~ 2 ranks"),
    ],
)
def test_patterns_that_mean_nothing_are_refused(build, message):
    with pytest.raises(ValueError, match=parts(message)):
        build()


@pytest.mark.parametrize(
    ("method", "patterns", "message"),
    [
        (FedPer, ["backbone.*"], "FedPer.shared ~ 'net.backbone.*' ~ frozen ~ share"),
        (FedPer, ["head.*"], "FedPer.kept ~ 'net.head.*' ~ frozen ~ keep"),
    ],
)
def test_a_method_whose_part_is_frozen_says_so(method, patterns, message):
    module = method(FrozenParts(deep(), patterns), optimizer=SGD)
    with pytest.raises(ValueError, match=parts(message)):
        module.shared_names()


def test_a_phase_whose_part_is_frozen_is_refused_unless_it_has_no_steps():
    """By every engine alike, before the first round."""
    refused = parts("FedAvgP ~ nothing to train in phase 'fine_tune' ~ net.backbone.* ~ frozen")

    def tuned(epochs, engine):
        net = FrozenParts(deep(), ["backbone.*"])
        module = FedAvgP(net, optimizer=SGD, ft_part="body", ft_epochs=epochs)
        return fit(module, engine, rounds=1)

    for engine in ("sequential", "vectorised"):
        with pytest.raises(TypeError, match=refused):
            tuned(1, engine)
        assert tuned(0, engine).header["engine"].startswith(engine)


def transformer():
    """Build a layer of torch's with attention (8 x 3), two linear layers and a head."""
    with scoped(1):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return SplitNet(nn.Sequential(layer, nn.Flatten()), nn.Linear(24, 3))


def test_torchs_attention_is_not_adapted_and_this_is_told():
    with pytest.warns(UserWarning, match=parts("self_attn: ~ LoRA ~ MultiheadAttention ~ ViT")):
        net = LoRA(transformer(), rank=2)
    adapted = {name.rpartition(".")[0] for name in net.state_dict() if name.endswith("down")}
    assert adapted == {"backbone.0.linear1", "backbone.0.linear2"}
    assert not any("self_attn" in name for name in net.state_dict())
    with pytest.raises(ValueError, match=parts("'*.self_attn*' ~ backbone.0.self_attn: ~ LoRA")):
        LoRA(transformer(), targets=["*.self_attn*"])


def test_no_word_of_attention_that_is_not_meant(recwarn):
    LoRA(transformer(), targets=["*.linear1"])
    net = LoRA(transformer(), trained=["head.*", "backbone.0.self_attn.*"])
    assert "backbone.0.self_attn.in_proj_weight" in net.state_dict()
    assert not recwarn.list


def test_rank_zero_is_tuning_of_the_head():
    """Whether LoRA, FrozenParts or the user freezes the rest."""

    def frozen(net):
        net.backbone.requires_grad_(False)
        net.backbone[1] = Frozen(net.backbone[1])
        return net

    nets = LoRA(deep(), rank=0), FrozenParts(deep(), ["backbone.*"]), frozen(deep())
    runs = [fit(FedAvg(net, optimizer=SGD), "sequential", rounds=2) for net in nets]
    assert len({run.fingerprint for run in runs}) == 1
    assert runs[0].history[-1]["comm/bytes_up"] % (FLOAT * 21) == 0


def values_of(run, client):
    run.personal(client)
    return {n: v.clone() for n, v in run.module.state_dict().items()}


def test_permuted_ranks_permute_results():
    """Clients with the same samples learn what their rank alone decides."""
    data = blobs((8, 8))
    split = data.split(0, "train")
    data = replace(DataView.of(data), split=lambda client, name: split, batch_size=len(split))
    learnt = []
    for ranks in ([1, 3], [3, 1]):
        with scoped(7):
            net = Ranks(deep(), ranks, targets=["backbone.3"])
        module = Local(net, optimizer=SGD, epochs=2)
        run = FederatedLoop(2, progress=False, engine="sequential").fit(module, data)
        learnt.append([values_of(run, client)["net.backbone.3.down"] for client in (0, 1)])
    (one, three), (other_three, other_one) = learnt
    assert [len(one), len(three)] == [1, 3]
    # Clients differ in the order of the samples of their batches.
    assert torch.allclose(one, other_one, atol=1e-5)
    assert torch.allclose(three, other_three, atol=1e-5)


def test_ranks_share_the_rows_of_one_a():
    nets = Ranks(deep(), [1, 3], alpha=[2.0, 6.0], targets=["backbone.3"], dropout=0.1).nets
    one, three = (net.backbone[3] for net in nets)
    assert torch.equal(one.down, three.down[:1])
    assert (one.scale, three.scale) == (2.0, 2.0)
    assert [one.up.shape, three.up.shape] == [(6, 1), (6, 3)]


def test_networks_of_all_ranks_have_the_memory_of_what_is_frozen():
    nets = Ranks(deep(), [1, 3], targets=["backbone.3"]).nets
    assert len({torch._C._data_address(net.backbone[0].weight) for net in nets}) == 1


def tied():
    """Build a network whose embedding is the last layer's weight, and whose blocks are one."""
    with scoped(1):
        block = nn.Linear(4, 4)
        body = nn.Sequential(nn.Embedding(7, 4), block, nn.Tanh(), block, nn.Flatten())
        net = SplitNet(body, nn.Linear(4, 7))
    net.head.weight = body[0].weight
    return net


def test_what_is_tied_is_frozen_and_adapted_as_one_or_refused():
    one = "'backbone.0.weight' ~ frozen ~ 'head.weight' ~ one tensor"
    with pytest.raises(ValueError, match=parts(one)):
        LoRA(tied(), rank=0)
    assert list(LoRA(tied(), rank=0, trained=["*.bias"]).state_dict()) == [
        "backbone.1.bias",
        "backbone.3.bias",
        "head.bias",
    ]
    with pytest.raises(ValueError, match=parts("'backbone.1' and 'backbone.3' are one layer")):
        adapted(tied(), {"targets": ["backbone.*"], "trained": []})
    net = adapted(tied(), {"targets": ["head"], "trained": []})
    assert list(net.state_dict()) == ["head.down", "head.up"]
    assert net.head.weight is net.backbone[0].weight


def test_methods_that_would_average_products_of_several_ranks_say_so():
    module = FedAvg(Ranks(deep(), [1, 2], targets=["backbone.3"]), optimizer=SGD)
    with pytest.raises(TypeError, match=parts("FedAvg ~ down ~ float32[1, 6] ~ float32[2, 6]")):
        fit(module, "sequential", rounds=1)


class Convolved(nn.Module):
    """Layers of all kinds that can be adapted."""

    def __init__(self, linear=None):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(4, 4, 1, groups=2)
        self.turned = linear or nn.Linear(4, 6)
        self.last = nn.Linear(6, 5)

    def forward(self, x):
        z = self.grouped(self.conv(x)).flatten(2).mT.contiguous()
        return self.last(torch.tanh(self.turned(z)))


def test_any_module_is_adapted_in_all_its_layers_but_those_in_groups():
    net, x = Convolved(), torch.randn(2, 3, 8, 8)
    right = net(x)
    assert adapted(net, {"rank": 2, "alpha": 6}) is net
    assert torch.equal(net(x), right)
    layers = {name.rpartition(".")[0] for name in net.state_dict()}
    assert layers == {"conv", "turned", "last"}
    assert net.conv.scale == 3.0
    assert sum(p.numel() for p in net.parameters()) == 2 * (27 + 4 + 4 + 6 + 6 + 5)


@pytest.mark.parametrize(
    ("config", "message"),
    [(None, "Convolved ~ config ~ rank"), (4, "dictionary ~ PeftConfig ~ 4")],
)
def test_what_adapts_nothing_is_refused(config, message):
    pytest.importorskip("peft")
    with pytest.raises(TypeError, match=parts(message)):
        adapted(Convolved(), config)


def test_products_are_those_of_peft():
    """Outputs and gradients, in float64, of each kind of layer."""
    peft = pytest.importorskip("peft")
    turned = pytest.importorskip("transformers.pytorch_utils").Conv1D(6, 4)
    net = Convolved(turned).double()
    names = ["conv", "turned", "last"]
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers whose weights are transposed
        theirs = adapted(copy.deepcopy(net), config)
    ours = adapted(net, {"rank": 2, "alpha": 6.0})
    pairs = []
    with torch.no_grad():
        for name in names:
            layer = theirs.base_model.model.get_submodule(name)
            for own, other in (("down", layer.lora_A), ("up", layer.lora_B)):
                pairs.append((ours.get_parameter(f"{name}.{own}"), other["default"].weight))
                pairs[-1][1].copy_(pairs[-1][0].normal_())
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    outputs = [one(x) for one in (ours, theirs)]
    for output in outputs:
        output.square().sum().backward()
    for one, other in [tuple(outputs), *((p.grad, q.grad) for p, q in pairs)]:
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


def test_a_network_of_peft_sends_its_adapters_and_its_head():
    peft = pytest.importorskip("peft")
    net = adapted(deep(), peft.LoraConfig(r=2, target_modules=["3"]))
    module = FedAvg(net, optimizer=SGD)
    assert sum(p.numel() for p in module.parameters()) == 24 + 21
    assert adapted(net) is net
    run = fit(module, "sequential", rounds=1, sampler=UniformSampler())
    # Its batch norm is in train mode: the statistics travel, and one sample is too few.
    assert run.history[-1]["comm/bytes_up"] == 4 * FLOAT * (24 + 21 + 12)
