"""Server and sites agree on what is run before anything is trained; sizes are all that is told."""

from __future__ import annotations

import re
from dataclasses import asdict
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from lightning_modules.fedper import FedPer
from lightning_modules.fedsimsup import FedSimSup
from pfl.core.server import Server
from pfl.disk import container
from pfl.engines.transport import wire
from pfl.extras.sites import engine
from pfl.extras.sites.data import one_client
from pfl.extras.sites.site import Allowed, Site
from pfl.extras.sites.transport import SiteError
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.sampling import UniformSampler
from tests.extras.sites.asking import RUN, hello, marks, order, read
from tests.extras.sites.sites import Recorded, fit, same, small
from tests.helpers.discovery import build
from tests.helpers.federation import SGD, contexts
from tests.helpers.messages import parts
from tests.helpers.toy import ToyData, blobs, mlp

SIZES = (4, 9, 1)
VERSION = re.escape(metadata.version("pfl-lightning"))


class Elsewhere(ToyData):
    """Data of which only what a server may know is there."""

    def split(self, client, name):
        raise AssertionError(f"the server asked for samples of client {client}")


def elsewhere(sizes=SIZES):
    data = blobs(sizes)
    data.__class__ = Elsewhere
    return data


def test_a_server_without_samples_gives_the_sequential_bits(tmp_path):
    away = fit(small(), Recorded(tmp_path, data=blobs(SIZES)), data=elsewhere())
    assert same(away, fit(small(), "sequential", data=blobs(SIZES)))
    assert away.header["clients"] == "3, of which 3 hold training data"
    assert away.header["data"] == "Elsewhere"
    assert away.header["engine"] == "loopback: 3 sites; what clients keep stays there"


@pytest.mark.parametrize(("method", "told"), [(FedPer, False), (FedSimSup, True)])
def test_class_counts_are_told_only_to_a_server_that_declares_it(method, told, tmp_path):
    engine = Recorded(tmp_path)
    fit(build(method, mlp(), optimizer=SGD), engine, 1, blobs(SIZES))
    for call in engine.of("hello"):
        introduction, _ = read("hello", wire.Introduction, call.answer)
        assert introduction.sizes == wire.Sizes(SIZES[call.client], 4, 6)
        counts = blobs(SIZES).split(call.client, "train").targets.bincount(minlength=3)
        assert introduction.label_counts == (counts.tolist() if told else None)


def test_an_owner_may_keep_class_counts_to_himself(tmp_path):
    def greeted(method, counts):
        found = contexts(build(method, mlp(), optimizer=SGD), blobs(SIZES))
        site = Site(found.replica(), 0, tmp_path, allowed=Allowed(class_counts=counts))
        content = hello(site._facts, method.__name__ == "FedSimSup")
        record, _ = read("hello", wire.Introduction, site.answer("hello", content))
        return record

    assert greeted(FedPer, False).label_counts is None
    assert "which the owner does not allow" in greeted(FedSimSup, False).message
    assert greeted(FedSimSup, True).label_counts is not None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pfl": "0.0.1"}, rf"pfl 0\.0\.1 \(here {VERSION}\)"),
        ({"model.optimizer.lr": "0.5"}, r"model\.optimizer\.lr 0\.5 \(here 0\.1\)"),
        ({"data.batch_size": "99"}, r"data\.batch_size 99 \(here 4\)"),
        (dict.fromkeys("abcdef", "1"), r"d 1 \(here nothing\); 2 more$"),
    ],
)
def test_other_settings_are_refused_with_both_values(change, told, tmp_path, monkeypatch):
    def hello(*, client, facts, **given):
        sent = {**facts, **change} if client == 1 else facts
        return wire.Hello(client=client, facts=sent, **given)

    monkeypatch.setattr(engine, "wire", SimpleNamespace(**{**vars(wire), "Hello": hello}))
    with pytest.raises(
        SiteError, match=r"the site of client 1 \(loopback\) refuses hello.*" + told
    ):
        fit(small(), Recorded(tmp_path), data=blobs(SIZES))


def test_other_weights_and_another_method_s_source_are_other_settings(tmp_path):
    facts = {}
    for name, module in {
        "plain": small(),
        "weights": FedPer(mlp(seed=2), optimizer=SGD),
        "source": type("Another", (FedPer,), {})(mlp(), optimizer=SGD),
    }.items():
        engine = Recorded(tmp_path)
        fit(module, engine, 1, blobs(SIZES))
        facts[name] = engine.at[0]._facts
    apart = {
        name: {key for key in found if found[key] != facts["plain"].get(key)}
        for name, found in facts.items()
    }
    assert apart["weights"] == {"initial values"}
    assert apart["source"] >= {"model's source"}


def test_a_client_without_a_site_is_named(tmp_path):
    with pytest.raises(SiteError, match=parts("3 sites ~ clients: 3, 4")):
        fit(small(), Recorded(tmp_path, data=blobs(SIZES)), data=elsewhere((*SIZES, 2, 2)))


def test_a_site_s_own_number_of_its_client_does_not_matter(tmp_path):
    """The client is number 2 for the server, and the only one in the data at its site."""
    whole = blobs(SIZES)
    alone = ToyData(*([whole.splits[name][2]] for name in ("train", "test", "val")))

    class Lone(Recorded):
        def open_transport(self, contexts):
            transport = super().open_transport(contexts)
            own = contexts.replica(alone)
            self.at[2] = transport._sites[2] = Site(own, 2, tmp_path, local=0)
            return transport

    away = fit(small(), Lone(tmp_path, data=whole), data=elsewhere())
    assert same(away, fit(small(), "sequential", data=blobs(SIZES)))


def test_a_site_s_data_are_those_of_one_client():
    data = one_client(blobs(SIZES), 1, 7)
    assert len(data.split(7, "train")) == SIZES[1]
    with pytest.raises(SiteError, match=parts("site of client 7 ~ 0")):
        data.split(0, "train")


def test_samples_are_asked_for_in_vain(tmp_path):
    found = []

    class Asks(Recorded):
        def connect(self, contexts, config):
            found.append(super().connect(contexts, config))
            return found[0]

    fit(small(), Asks(tmp_path), 1, blobs(SIZES))
    split = found[0].split(0, "train")
    for ask in (lambda: split.targets, lambda: split.batch(torch.tensor([0]))):
        with pytest.raises(SiteError, match=parts("samples of client 0 ~ site")):
            ask()
    with pytest.raises(SiteError, match=parts("rows of client 0 ~ site")):
        found[0].rows(0, "train")


def test_a_resumed_run_refuses_sites_with_other_data(tmp_path):
    """The server knows its data by the hashes that the sites told when the run began."""

    def at(name):
        class Known(Elsewhere):
            def description(self):
                return {}

        data, theirs = blobs(SIZES), blobs(SIZES)
        data.__class__ = Known
        theirs.description = lambda: {"hash": name}
        return {"data": data}, Recorded(tmp_path / "sites", data=theirs)

    options = {"default_root_dir": str(tmp_path), "sampler": UniformSampler(0.7)}
    data, engine = at("then")
    begun = fit(small(), engine, 1, **data, **options)
    data, engine = at("now")
    with pytest.raises(CheckpointError, match=parts("written ~ partition")):
        fit(small(), engine, 2, **data, ckpt_path=str(begun.folder), **options)
    data, engine = at("then")
    whole = fit(small(), "sequential", 2, blobs(SIZES), sampler=UniformSampler(0.7))
    assert same(fit(small(), engine, 2, **data, ckpt_path=str(begun.folder), **options), whole)


ENCODED = "pfl.extras.codecs.coding.Encoded"


@pytest.mark.parametrize("declares", [True, False])
def test_a_server_knows_class_counts_only_if_it_declares_it(declares):
    """Under every engine, so that what works on one machine works with sites."""
    found = []

    class Sees(Server):
        needs_label_counts = declares

        def init(self, shared, clients):
            found.extend(info.label_counts for info in clients)
            return super().init(shared, clients)

    class Method(FedPer):
        def server(self):
            return Sees()

    fit(Method(mlp(), optimizer=SGD), "sequential", 1, blobs(SIZES))
    # Two of the check of what the module remembers, and all three of the run.
    assert len(found) == 2 + 3
    assert all((counts is not None) == declares for counts in found)


def ordered(**changes):
    """Return a message to train of which some values are others, whatever an order checks."""
    content = {**asdict(order()), **changes}
    return container.pack({"train": content}, {})


@pytest.mark.parametrize(
    ("verb", "content", "told"),
    [
        ("dance", b"", "there is no verb 'dance'; the verbs are hello, train"),
        ("train", b"", "0 bytes are not a message ~ too few"),
        ("train", container.pack({"test": {}}, {}), "expected a message named train, got test"),
        (
            "train",
            ordered(client=1.5),
            "train.client: Input should be a valid integer, got 1.5",
        ),
        (
            "train",
            container.pack({"failure": {"kind": "lost", "message": ""}}, {}),
            "expected a message named train, got failure",
        ),
        ("train", ordered(client=1), "this is the site of client 0, not of 1"),
        ("train", ordered(rounds=10**9), "train.rounds: Input should be less than 1000000000"),
        (
            "train",
            ordered(op_threads=257),
            "train.op_threads: ~ less than or equal to 256, got 257",
        ),
        ("train", ordered(splits=["all"]), "train.splits.0: ~ 'train', 'val', 'test' or 'pooled'"),
        (
            "train",
            ordered(kept={"digest": "ab", "round": 1}),
            "train.kept.digest: ~ match pattern ~ got 'ab'",
        ),
        (
            "bye",
            container.pack({"bye": {"run": RUN, "client": 0, "round": 0}}, {"w": torch.ones(1)}),
            "not shared, extra or kept",
        ),
        ("train", ordered(steps=[{"name": ENCODED, "values": {}}] * 17), "train.steps"),
        ("train", ordered(steps=[{"name": "x" * 201, "values": {}}]), "steps.0.name"),
        ("train", ordered(codec="qsgd"), "train.codec"),
        ("train", ordered(new="x" * 2**20), "its record has 1,0 ~ characters"),
    ],
)
def test_a_site_refuses_by_name_what_it_does_not_understand(verb, content, told, tmp_path):
    found = contexts(small(), blobs(SIZES))
    site = Site(found, 0, tmp_path)
    record, _ = read("answer", wire.Answer, site.answer(verb, content))
    assert isinstance(record, wire.Unread) or record.kind == "refused"
    assert re.search(parts(told), record.message)


def test_numbers_without_names_are_no_numbers():
    found = {"scores": {"test": {"names": ["acc"], "values": []}}}
    with pytest.raises(container.ContainerError, match=parts("1 names ~ 0 numbers")):
        read("test", wire.Marks, container.pack({"test": {**asdict(marks({})), **found}}, {}))


def test_the_hash_of_a_sites_data_has_a_key_that_stays_there(tmp_path):
    """So that nobody can try out what the data are; it is the same for a resumed run."""

    def hash_at(folder, data):
        found = contexts(small(), blobs(SIZES))
        found.data.description = lambda: {"hash": data}
        site = Site(found, 0, folder)
        message = hello(site._facts)
        record, _ = read("hello", wire.Introduction, site.answer("hello", message))
        site.close()
        return record.data

    first = hash_at(tmp_path / "a", "x")
    assert hash_at(tmp_path / "a", "x") == first
    assert len({first, hash_at(tmp_path / "a", "y"), hash_at(tmp_path / "b", "x")}) == 3


W = "shared:net.backbone.0.weight"
QSGD = '["qsgd", {"bits": 4, "bucket": %d}]'


@pytest.mark.parametrize(
    ("codec", "tensors", "told"),
    [
        (QSGD % 200_000_000, {f"{W}:norm": torch.ones(1)}, "bucket must lie in"),
        (QSGD % 512, {f"{W}:norm": torch.ones(10**6), f"{W}:level": torch.ones(15).byte()}, "norm"),
        (QSGD % 512, {f"{W}:norm": torch.ones(1)}, "instead of"),
        ('["cast", {"dtype": "load"}]', {f"{W}:value": torch.ones(6, 5)}, "cast.dtype"),
        ("[" * 200, {f"{W}:value": torch.ones(6, 5)}, "cannot parse codec"),
        (None, {f"{W}:value": torch.ones(6, 5)}, "no entry 'net.backbone.0.weight:value'"),
        (None, {W: torch.ones(6, 5, 1)}, "a part of shape [6, 5, 1] of an entry of shape [6, 5]"),
    ],
)
def test_a_site_decodes_nothing_of_another_size(codec, tensors, told, tmp_path, monkeypatch):
    made, inner = [], torch.Tensor.repeat_interleave

    def spread(self, *arguments):
        made.append(self.device.type)
        return inner(self, *arguments)

    monkeypatch.setattr(torch.Tensor, "repeat_interleave", spread)
    codec = codec and {"name": ENCODED, "values": {"codec": codec, "names": []}}
    content = {**asdict(order()), "sent": True, "codec": codec}
    site = Site(contexts(small(), blobs(SIZES)), 0, tmp_path)
    answer = site.answer("train", container.pack({"train": content}, tensors))
    record, _ = read("train", wire.Report, answer)
    assert record.kind == "refused"
    assert told in record.message
    assert {*made} <= {"meta"}


SAMPLES, LEVEL = "privacy.sample_level.PrivateSamples", {"clip": 1.0, "sigma": 1.0}


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        (SAMPLES, {"clip": 1e-38, "sigma": 1e6}, "clip: ~ 1e-38"),
        (SAMPLES, {"clip": 1e300, "sigma": 1e10}, "unbounded noise"),
        (SAMPLES, {**LEVEL, "noise": 0}, "noise: Unexpected"),
        ("privacy.clip.Clip", {"clip": 0.0}, "Clip.clip"),
        ("codecs.coding.Encoded", {"codec": "[]", "names": ["a"] * 70_000}, "Encoded.names"),
        ("codecs.coding.Encoded", {"codec": "[]", "names": []}, "cannot parse codec"),
        ("codecs.coding.Other", {}, "no step ~ codecs.coding.Other' is installed here"),
    ],
)
def test_a_site_checks_the_ranges_of_steps_before_it_trains(name, values, told, tmp_path):
    site = Site(contexts(small(), blobs(SIZES)), 0, tmp_path)
    steps = [{"name": f"pfl.extras.{name}", "values": values}]
    record, _ = read("train", wire.Report, site.answer("train", ordered(steps=steps)))
    assert record.kind == "refused"
    assert re.search(parts(told), record.message)
