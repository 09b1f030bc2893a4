"""What training changes travels, stays, is refused by name, or matters to nobody."""

import random
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from lightning_modules import (
    APFL,
    FML,
    MOON,
    SCAFFOLD,
    FedAvg,
    FedBN,
    FedCAC,
    FedPer,
    FedProx,
    FedRep,
    FedYogi,
    LGFedAvg,
)
from lightning_modules.nets import PerClient
from pfl.core.state import as_real, assign, entry, fingerprint
from pfl.engines.processes import ProcessesEngine
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.loop import FederatedLoop
from pfl.training.declaration import MethodError
from pfl.training.excerpt import excerpt
from pfl.training.inventory import check_states
from pfl.training.reach import Reach, duplicate
from tests.helpers.discovery import build, facts, methods
from tests.helpers.federation import SGD, context, contexts
from tests.helpers.toy import blobs, mlp, normed
from tests.training import zoo

SIZES = (8, 10, 7, 12)
CLOSE = 1e-5
REFUSED = [name for name, one in zoo.ZOO.items() if one.refused]
TRAINED = [name for name, one in zoo.ZOO.items() if not one.refused]
long = pytest.mark.long


def module_of(name):
    optimizer = partial(torch.optim.SGD, lr=zoo.RATE)
    return zoo.ZOO[name].method(zoo.built(name), optimizer=optimizer, epochs=zoo.EPOCHS)


def apart(one, other):
    one, other = as_real(one).double(), as_real(other).double()
    return float((one - other).abs().max() / other.abs().max().clamp_min(1))


@pytest.mark.parametrize(
    "engine",
    [
        SequentialEngine,
        VectorisedEngine,
        pytest.param(partial(ThreadsEngine, 2), marks=long),
        pytest.param(partial(ProcessesEngine, 2), marks=long),
    ],
)
@pytest.mark.parametrize("name", TRAINED)
def test_a_network_of_the_zoo_has_the_numbers_of_a_plain_loop(name, engine):
    data = blobs(SIZES)
    mean, outputs = zoo.by_hand(name, data)
    loop = FederatedLoop(zoo.ROUNDS, progress=False, engine=engine(), seed=zoo.SEED)
    run = loop.fit(module_of(name), blobs(SIZES))
    assert run.server.shared.keys() == mean.keys()
    assert all(apart(run.server.shared[n], value) < CLOSE for n, value in mean.items())
    for client, right in enumerate(outputs):
        run.personal(client)
        run.module.eval()
        with torch.no_grad():
            found = run.module.net(data.split(client, "test").batch(torch.arange(6)).x)
        assert apart(found, right) < CLOSE


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_of_the_zoo_is_refused_by_name(name):
    with pytest.raises(MethodError, match=zoo.ZOO[name].refused):
        check_states(contexts(module_of(name), blobs(SIZES)))


def test_a_refusal_comes_before_any_engine_starts():
    class Never(SequentialEngine):
        def setup(self, contexts):
            raise AssertionError

    loop = FederatedLoop(1, progress=False, engine=Never())
    with pytest.raises(MethodError, match=r"'net\.0\.ema' changes"):
        loop.fit(module_of("average_in_attribute"), blobs(SIZES))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("average_in_attribute", r'self\.register_buffer\("ema", \.\.\.\) in Own; it then travels'),
        ("average_in_attribute_of_head", r'register_buffer\("ema".*; it then stays with the'),
        ("warm_up_by_number", r'register_buffer\("calls".* and stays=\["0\.calls"\] as an'),
        ("warm_up_by_entry", r'give stays=\["0\.calls"\] as an argument of FedAvg'),
        ("average_beside_both_parts", r'give stays=\["ema"\] as an argument of FedPer'),
        ("average_not_persistent_written", r"persistent=True; it then travels and is averaged"),
        ("own_generator", r"draw from a generator that each forward makes anew"),
    ],
)
def test_a_refusal_has_the_line_that_declares_it(name, line):
    with pytest.raises(MethodError, match=line):
        check_states(contexts(module_of(name), blobs(SIZES)))


@pytest.mark.parametrize("net", [mlp, normed])
@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
def test_no_method_is_refused(method, net):
    module = build(method, net(), optimizer=SGD, **facts(method).fewer)
    check_states(contexts(module, blobs(SIZES, task=module.task)))


def test_the_check_leaves_no_trace():
    for name in zoo.ZOO:
        # Nobody can rewind a generator.
        if name in ("lazy", "generator_of_file"):
            continue
        ours = contexts(module_of(name), blobs(SIZES))
        before, start = Reach(ours.module), fingerprint([ours.module.state_dict()])
        streams = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
        try:
            check_states(ours)
        except MethodError:
            assert name in REFUSED
        assert Reach(ours.module).places == before.places, name
        assert fingerprint([ours.module.state_dict()]) == start
        assert torch.equal(streams[0], torch.get_rng_state())
        assert streams[1] == random.getstate()
        assert (streams[2] == np.random.get_state()[1]).all()


def test_each_network_of_clients_is_examined():
    nets = PerClient([mlp(), zoo.split(zoo.built("average_in_attribute_of_head").head)])
    with pytest.raises(MethodError, match=r"'net\.head\.ema' changes"):
        check_states(contexts(FedPer(nets, optimizer=SGD), blobs(SIZES)))


def test_an_entry_that_both_travels_and_stays_is_refused():
    class Both(FedAvg):
        kept = ("net.head.*",)

    with pytest.raises(MethodError, match=r"'net\.head\.\w+' in both shared and kept"):
        check_states(contexts(Both(mlp(), optimizer=SGD), blobs(SIZES)))

    class Tested(Both):
        def personalise(self, broadcast, info):
            own = {name: entry(self, name).clone() for name in self.kept_names()}
            super().personalise(broadcast, info)
            assign(self, own)

    check_states(contexts(Tested(mlp(), optimizer=SGD), blobs(SIZES)))


def test_a_copy_has_what_torch_leaves_out():
    net = zoo.built("norm_of_weights_old_weight")
    net[2].weight.register_hook(lambda gradient: 3 * gradient)
    copied = duplicate(net)
    for one in (net, copied):
        one(torch.ones(1, 5)).sum().backward()
    assert torch.equal(net[2].weight.grad, copied[2].weight.grad)
    assert torch.equal(net[0].weight_g.grad, copied[0].weight_g.grad)


def test_complex_numbers_need_a_precision_that_has_them():
    with pytest.raises(MethodError, match=r"'net\.0\.w' .* complex numbers, which bf16-true"):
        contexts(FedAvg(zoo.built("complex_weights")), blobs(SIZES), "bf16-true")
    wide = contexts(FedAvg(zoo.built("complex_weights")), blobs(SIZES), "64-true")
    assert wide.module.net[0].w.dtype is torch.complex128


def rotating(method, **options):
    layers = [zoo.built("complex_weights")[0], nn.Linear(5, 6), nn.Tanh()]
    return build(method, zoo.split(body=nn.Sequential(*layers)), optimizer=SGD, **options)


@pytest.mark.parametrize("method", [APFL, FedProx, FedYogi, SCAFFOLD, FedCAC])
def test_complex_numbers_are_refused_where_they_are_more_than_pairs(method):
    """FedProx and FedYogi take squares of differences, FedCAC compares sizes."""
    with pytest.raises(MethodError, match=r"own \w+.*'[\w.]+' has complex numbers"):
        check_states(contexts(rotating(method), blobs(SIZES)))


@pytest.mark.parametrize("method", [MOON, FedRep, FedBN, LGFedAvg, FML])
def test_complex_numbers_are_taken_where_they_are_as_pairs(method):
    """MOON compares features, the others average and keep entries."""
    module = rotating(method)
    check_states(contexts(module, blobs(SIZES, task=module.task)))


@pytest.mark.parametrize("method", [FedAvg, FedPer])
def test_complex_entries_are_resumed_with_the_same_bits(method, tmp_path):
    def fit(rounds, path=None):
        options = {"optimizer": partial(torch.optim.Adam, lr=0.05), "persist_optimizer": True}
        net = zoo.built("complex_weights_in_head")
        loop = FederatedLoop(rounds, progress=False, default_root_dir=str(tmp_path))
        return loop.fit(method(net, **options), blobs(SIZES), path)

    whole = fit(4)
    fit(2)
    assert fit(4, "last").fingerprint == whole.fingerprint
    names = [*whole.server.shared, *whole.kept[0]]
    assert "net.head.1.w" in names


def test_what_cannot_be_played_is_told_in_one_line():
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(5, 3)

        def forward(self, x):
            if self.training and len(x) < 5:
                raise ValueError("five samples at least")
            return self.line(x)

    data = blobs((10, 10, 10), batch_size=10)
    with pytest.warns(
        UserWarning, match=r"FedAvg was not checked .* five samples at least"
    ) as told:
        FederatedLoop(1, progress=False).fit(FedAvg(Large(), optimizer=SGD), data)
    assert not any("\n" in str(one.message) for one in told)


@pytest.mark.parametrize(
    ("draw", "source"),
    [
        (random.random, "Python's default stream"),
        (np.random.rand, "NumPy's default stream"),
        (lambda: np.random.default_rng().random(), "a source of its own"),
    ],
)
def test_numbers_that_no_seed_sets_are_told(draw, source):
    net = zoo.net(None, lambda self, h: h * float(draw()))
    streams = random.getstate(), np.random.get_state()[1].copy()
    with pytest.warns(UserWarning, match=f"FedAvg .*{source}.*, which no seed of the run sets"):
        check_states(contexts(FedAvg(net, optimizer=SGD), blobs(SIZES)))
    assert streams[0] == random.getstate()
    assert (streams[1] == np.random.get_state()[1]).all()


def test_a_batch_norm_that_reads_its_counter_keeps_it():
    module = FedAvg(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, momentum=None)))
    assert module.kept_names() == ("net.1.num_batches_tracked",)
    assert module.personal_is_global()
    assert FedAvg(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))).kept_names() == ()


def test_the_copy_on_which_a_method_is_tried_ends_with_the_trial():
    """Fabric lists what it sets up, so that it would hold a second network during the whole run."""
    whole = context(FedAvg(mlp()), blobs())
    small = excerpt(whole)
    module = weakref.ref(small.module)
    del small
    assert module() is None
