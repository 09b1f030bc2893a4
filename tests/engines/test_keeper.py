"""Kept states come back bit for bit, within the bound, whatever is set, read and removed."""

from __future__ import annotations

import errno
import gc
import os
import sys
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.fedsimsup import FedSimSup
from pfl.core.state import digest, fingerprint, nbytes
from pfl.core.types import ClientInfo, Job, Result, Ticket
from pfl.disk import container
from pfl.engines.keeper import Keeper, NotHereError
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from tests.helpers.federation import HEAVY, equal
from tests.helpers.toy import blobs, mlp, normed

clients = st.integers(0, 5)


@st.composite
def states(draw):
    """Up to three tensors of many types, shapes and strides; NaN bits and all."""
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
    state = {}
    for name in draw(st.lists(st.sampled_from("abc"), unique=True)):
        kind = draw(st.sampled_from(kinds))
        # A width of 16 fits each of them.
        number = draw(st.floats(width=16) if kind.is_floating_point else st.integers(0, 9))
        value = torch.full(draw(st.lists(st.integers(0, 3), max_size=3)), number, dtype=kind)
        turned = value.dim() > 1 and draw(st.booleans())
        state[name] = value.transpose(0, -1) if turned else value
    return state


def marks(state):
    """Return the hash of a state, and the strides of all tensors that have numbers."""
    strides = {name: value.stride() for name, value in state.items() if value.numel()}
    return fingerprint([state]), strides


def results(new):
    """Return results with what clients keep: states, or tickets."""
    for client, kept in new.items():
        ticket = kept if isinstance(kept, Ticket) else None
        yield Result(client, None, {} if ticket else kept, {}, 1, 1, ticket=ticket)


tickets = st.builds(Ticket, st.sampled_from(["ab" * 32, "cd" * 32]), st.integers(0, 9))


class AsADictionary(RuleBasedStateMachine):
    """Whatever is done to it, a keeper holds what a dictionary would."""

    bound: int | None = 40

    def __init__(self):
        super().__init__()
        self.store, self.model = Keeper(self.bound), {}

    @rule(client=clients, state=states())
    def set(self, client, state):
        self.store[client] = state
        self.model[client] = marks(state)

    @rule(new=st.dictionaries(clients, states(), max_size=4))
    def update(self, new):
        self.store.update(new)
        self.model.update({client: marks(state) for client, state in new.items()})

    @rule(new=st.dictionaries(clients, states() | tickets, max_size=4), fails=st.booleans())
    def round(self, new, fails):
        """What a round leaves counts, unless it fails before its end."""
        self.store.begin()
        for result in results(new):
            assert self.store.take(result).kept == {}
            assert self.store._new.keys() <= new.keys()
        with suppress(InterruptedError), self.store.entered(new.keys()):
            assert all(client in self.store for client in new)
            if fails:
                raise InterruptedError
        if not fails:
            self.model.update({c: k if isinstance(k, Ticket) else marks(k) for c, k in new.items()})

    @rule(client=clients)
    def read(self, client):
        self.compare(client)

    @rule()
    def go_to_another(self):
        """What is packed is restored, with any bound."""
        packed = self.store.packed()
        self.store = Keeper(self.bound)
        self.store.restore(**packed)

    def compare(self, client):
        right = self.model.get(client)
        if isinstance(right, Ticket):
            assert self.store.tickets[client] == right
            assert self.store.digest(client) == right.digest
            with pytest.raises(NotHereError, match=f"client {client} exist"):
                self.store.get(client)
        elif right is None:
            assert self.store.get(client) is None
        else:
            state = self.store[client]
            assert marks(state) == right
            assert self.store.digest(client) == (digest(state) if state else "")

    @rule(client=clients)
    def remove(self, client):
        if client in self.model:
            del self.store[client], self.model[client]
        else:
            with pytest.raises(KeyError):
                del self.store[client]

    @invariant()
    def the_same_clients_and_no_more_memory_than_allowed(self):
        assert sorted(self.store) == sorted(self.model)
        assert len(self.store) == len(self.model)
        assert all(client in self.store for client in self.model)
        inside = [self.store[client] for client in [*self.store._sizes]]
        assert sum(map(nbytes, inside)) <= (self.bound or 0)

    def teardown(self):
        for client in self.model:
            self.compare(client)


class Unbounded(AsADictionary):
    bound = None


TestAsADictionary, TestUnbounded = AsADictionary.TestCase, Unbounded.TestCase
TestAsADictionary.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestUnbounded.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


def state(value):
    """Eight bytes."""
    return {"w": torch.full((2,), float(value))}


def test_the_least_recently_used_goes_first():
    """Room for two: 0 is read after 1 was set, so 2 displaces 1, and 3 displaces 0."""
    store = Keeper(16)
    store[0], store[1] = state(0), state(1)
    assert equal(store[0], state(0))
    store[2] = state(2)
    assert list(store._sizes) == [0, 2]
    store[3] = state(3)
    assert list(store._sizes) == [2, 3]
    assert [store[client]["w"][0].item() for client in store] == [0, 1, 2, 3]


def test_reading_a_file_displaces_nothing():
    store = Keeper(8)
    store.update({0: state(0), 1: state(1)})
    assert equal(store[0], state(0))
    assert list(store._sizes) == [1]


def test_who_has_read_keeps_the_values():
    store = Keeper(0)
    store[0] = state(0)
    before = store[0]
    store[0] = state(1)
    assert equal(before, state(0))
    assert equal(store[0], state(1))


def test_a_part_of_a_large_tensor_does_not_hold_the_whole(tmp_path):
    store = Keeper(8, tmp_path)
    large = torch.arange(100_000.0)
    store.update({0: {"w": large[:2]}, 1: {"w": large[:2]}})
    assert store[1]["w"].untyped_storage().nbytes() == 8
    assert store[0]["w"].untyped_storage().nbytes() < 2000


def test_a_full_disk_changes_nothing(monkeypatch, tmp_path):
    store = Keeper(8, tmp_path)
    store.update({0: state(0), 1: state(1)})

    def full(*_):
        yield b"part"
        raise OSError("No space left on device")

    monkeypatch.setattr(container, "_parts", full)
    with pytest.raises(OSError, match=r"client [012].*No space left"):
        store.update({0: state(10), 2: state(12)})
    assert list(store) == [0, 1]
    assert equal(store[0], state(0))
    assert equal(store[1], state(1))
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(sys.platform != "linux", reason="maps are files on Linux alone")
def test_files_have_no_name_and_end_with_their_states(tmp_path):
    store = Keeper(0, tmp_path / "runs")
    store[0] = state(0)
    mapped = store[0]

    def maps():
        return sum(str(tmp_path) in line for line in Path("/proc/self/maps").open())

    assert not [*(tmp_path / "runs").iterdir()]
    assert maps() == 1
    store[0] = state(1)
    assert maps() == 2
    assert equal(mapped, state(0))
    del mapped, store
    gc.collect()
    assert maps() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only there a process tells its pages")
def test_a_state_in_a_file_leaves_the_memory_once_its_client_is_done():
    """Eight megabytes, which a read loads."""

    def loaded():
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

    store, large = Keeper(0), 2**21
    store[0] = {"w": torch.arange(float(large))}
    assert store[0]["w"].sum() > 0
    read = loaded()
    store.rest(0)
    assert read - loaded() > 6 * 2**10
    assert store[0]["w"][-1] == large - 1


def test_a_job_gets_what_its_client_keeps_and_never_a_state_that_is_not_here():
    keeper = Keeper()
    keeper[0] = state(5)
    keeper.restore({}, {1: ("ab" * 32, 1)})
    jobs = [Job(ClientInfo(client, 1, None), {}, None, 0) for client in range(3)]
    assert equal(keeper.fill(jobs[0]).kept, state(5))
    assert keeper.fill(jobs[2]) == jobs[2]
    with pytest.raises(NotHereError, match="client 1 exist only at its site"):
        keeper.fill(jobs[1])


@pytest.mark.parametrize("ticket", [("../" * 21 + "a", 1), ("ab" * 32, -1), ("ab" * 32, 10**9)])
def test_a_ticket_names_a_hash_and_a_round(ticket):
    with pytest.raises(ValueError, match="validation error"):
        Ticket(*ticket)


# In a run.


def loop(**options):
    return FederatedLoop(progress=False, **{"rounds": 4, "sampler": UniformSampler(0.4), **options})


def module():
    return FedAvg(normed(), optimizer=HEAVY, persist_optimizer=True, buffers="local")


def simsup():
    """Its server holds a model for each client, and mixes those of absent ones."""
    return FedSimSup(mlp(), mlp(), optimizer=HEAVY, sup_epochs=1, epochs=1)


def files(run):
    """Return what clients keep in files, each of which is one storage."""
    values = [value for kept in run.kept.values() for value in kept.values()]
    return [value for value in values if value.untyped_storage().nbytes() > value.nbytes]


methods = pytest.mark.parametrize("method", [module, simsup])


@methods
@pytest.mark.parametrize("before", [None, 1e-7])
@pytest.mark.parametrize("after", [None, 0])
def test_a_bound_changes_no_number_whatever_it_was_before_a_resume(method, before, after, tmp_path):
    whole = loop().fit(method(), blobs((4, 9, 2, 7, 6)))
    make = partial(loop, default_root_dir=str(tmp_path), name="x")
    seen = make(kept_memory=before).rounds_of(method(), blobs((4, 9, 2, 7, 6)))
    broken = [run for run, _ in islice(seen, 2)][-1]
    seen.close()
    resumed = make(kept_memory=after).fit(
        method(), blobs((4, 9, 2, 7, 6)), ckpt_path=str(broken.folder)
    )
    assert bool(files(resumed)) == (after is not None)
    assert resumed.fingerprint == whole.fingerprint


def test_models_that_a_server_holds_for_each_client_lie_in_files_beyond_the_bound():
    files = {
        gigabytes: [v.untyped_storage().filename for v in run.server.shared.values()]
        for gigabytes in (0, 1, None)
        for run in [loop(kept_memory=gigabytes).fit(simsup(), blobs())]
    }
    assert all(files[0])
    assert not any(files[1] + files[None])
    assert not any(Path(file).exists() for file in files[0])


@pytest.mark.skipif(sys.platform != "linux", reason="room is reserved on Linux alone")
def test_without_room_for_the_server_the_run_ends_before_its_first_round(monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"\d+ bytes in .*No space left"):
        loop(kept_memory=0).fit(simsup(), blobs())


def test_a_loop_may_replace_what_clients_keep():
    """As if they had started anew, however they are replaced."""

    def trained(forget):
        rounds = FederatedLoop(2, progress=False, engine="sequential").rounds_of(
            FedPer(mlp()), blobs()
        )
        run, _ = next(rounds)
        forget(run)
        return next(rounds)[0].fingerprint

    def replace_all(run):
        run.kept = {0: run.kept[0]}

    def remove(run):
        del run.kept[1], run.kept[2]

    assert trained(replace_all) == trained(remove) != trained(lambda run: None)


def test_a_run_leaves_no_files_but_its_own(tmp_path):
    loop(kept_memory=0, default_root_dir=str(tmp_path), name="x").fit(FedPer(mlp()), blobs())
    gc.collect()
    assert len(list((tmp_path / "x").iterdir())) == 1
