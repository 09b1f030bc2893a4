"""What a run is resumed from: the right run, undamaged, and by one process at a time."""

from __future__ import annotations

import gc
import os
import weakref
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
import yaml

from lightning_modules.fedper import FedPer
from pfl.disk.lock import BusyError, locked
from pfl.federation import checkpoint, resume
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.run import Callback
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from tests.helpers.discovery import build, methods
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def config(rate=0.1, seed=42, rounds=2):
    """A configuration as it is stored; nothing is built of it here."""
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": rate}}
    model = {"class_path": "lightning_modules.fedper.FedPer", "init_args": {"optimizer": optimizer}}
    return yaml.safe_dump({"seed": seed, "loop": {"rounds": rounds}, "model": model})


def fit(root, rounds=2, ckpt_path=None, module=None, **keys):
    loop = FederatedLoop(
        rounds=rounds,
        sampler=UniformSampler(0.7),
        engine="sequential",
        default_root_dir=str(root),
        name="r",
        checkpoint_every=1,
        progress=False,
        seed=keys.get("seed", 42),
    )
    text = config(rounds=rounds, **keys)
    return loop.fit(module or FedPer(mlp()), blobs(), ckpt_path, text)


# The right run.


def test_last_is_the_newest_run_with_the_same_settings_and_seed(tmp_path):
    first = fit(tmp_path)
    fit(tmp_path, rate=0.2)
    fit(tmp_path, seed=7)
    assert fit(tmp_path, ckpt_path="last").folder == first.folder
    again = fit(tmp_path)
    assert fit(tmp_path, ckpt_path="last").folder == again.folder


def test_last_of_other_settings_is_refused_with_both_values(tmp_path):
    fit(tmp_path, rate=0.0001, seed=42)
    with pytest.raises(CheckpointError) as caught:
        fit(tmp_path, rate=0.1, seed=7, ckpt_path="last")
    said = str(caught.value)
    assert "seed 42 (now 7)" in said
    assert "model.optimizer.lr 0.0001 (now 0.1)" in said
    assert said.count("now") == 2


@pytest.mark.parametrize("part", ["", "checkpoints/last.ckpt"])
def test_a_run_that_is_named_must_have_the_same_settings_too(part, tmp_path):
    folder = fit(tmp_path, rate=0.0001).folder
    before = (folder / "config.yaml").read_text()
    with pytest.raises(CheckpointError, match=parts("last.ckpt ~ optimizer.lr 0.0001 (now 0.1)")):
        fit(tmp_path, ckpt_path=str(folder / part))
    assert (folder / "config.yaml").read_text() == before


def test_rounds_may_grow_but_not_shrink(tmp_path):
    grown = fit(tmp_path, rounds=4, ckpt_path=str(fit(tmp_path, rounds=2).folder))
    assert grown.fingerprint == fit(tmp_path, rounds=4).fingerprint
    assert grown.round == 4
    with pytest.raises(CheckpointError, match=parts("loop.rounds 4 (now 2) ~ grow")):
        fit(tmp_path, rounds=2, ckpt_path=str(grown.folder))


def test_rounds_may_not_grow_where_rates_depend_on_them(tmp_path):
    module = FedPer(mlp(), lr_schedule="cosine")
    folder = fit(tmp_path, rounds=2, module=module).folder
    with pytest.raises(CheckpointError, match=parts("loop.rounds 2 (now 4) ~ FedPer")):
        fit(tmp_path, rounds=4, module=module, ckpt_path=str(folder))
    assert fit(tmp_path, rounds=2, module=module, ckpt_path="last").folder == folder


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
def test_a_method_says_whether_its_numbers_depend_on_the_planned_rounds(method):
    """The first two rounds of two, and of eight."""

    def first(rounds):
        loop = FederatedLoop(rounds, engine="sequential", progress=False)
        torch.manual_seed(0)
        done = islice(loop.rounds_of(build(method, mlp()), blobs()), 2)
        rows = [result.metrics.items() for _, result in done]
        return [{k: v for k, v in row if k.startswith(("train/", "test/"))} for row in rows]

    module = build(method, mlp())
    if not module.uses_rounds:
        assert first(2) == first(8)


def test_runs_of_python_code_are_told_apart_by_their_seeds(tmp_path):
    def run(seed, ckpt_path=None):
        loop = FederatedLoop(2, default_root_dir=str(tmp_path), progress=False, seed=seed)
        return loop.fit(FedPer(mlp()), blobs(), ckpt_path)

    first, _ = run(1), run(2)
    assert run(1, "last").folder == first.folder
    with pytest.raises(CheckpointError, match=r"seed 1 \(now 3\)"):
        run(3, str(first.folder))


# Undamaged.


def kept_of(content):
    """Return what the last client keeps."""
    return [*content["kept"].values()][-1]


def short_momentum(content):
    (name, *_) = (name for name in kept_of(content) if name.startswith("optimizer:"))
    kept_of(content)[name] = kept_of(content)[name].flatten()[:-1]


WEIGHT, INTEGERS = "net.backbone.1.weight", torch.zeros(2, dtype=torch.int64)
DAMAGES = {
    "negative": lambda c: c.update(round=-1),
    "fraction": lambda c: c.update(round=2.5),
    "word": lambda c: c.update(round="3"),
    "huge": lambda c: c.update(round=10**9),
    "missing": lambda c: c.pop("server"),
    "no mapping": lambda c: c.update(kept=[1]),
    "threads": lambda c: c.update(op_threads=0),
    "tickets without rounds": lambda c: c.update(tickets={0: ("ab" * 32,)}),
    "a ticket that is a path": lambda c: c.update(tickets={0: ("../" * 9, 1)}),
    "a stranger's ticket": lambda c: c.update(tickets={99: ("ab" * 32, 1)}),
    "stranger": lambda c: c["kept"].update({99: c["kept"][0]}),
    "failed stranger": lambda c: c["failures"].update(discarded={9: 1}),
    "wider": lambda c: c["template"].update({"net.head.weight": torch.zeros(3, 99)}),
    "other type": lambda c: c["server"]["shared"].update({WEIGHT: INTEGERS}),
    "no server's tensor": lambda c: c["server"]["shared"].update({WEIGHT: 3}),
    "lacking": lambda c: kept_of(c).pop("net.head.weight"),
    "no tensor": lambda c: kept_of(c).update({"net.head.weight": 3}),
    "cut history": lambda c: c["history"].pop(),
    "other round": lambda c: c["history"][0].update(round=7),
    "worded history": lambda c: c["history"][0].update({"test/personal/acc": "high"}),
    "history without bytes": lambda c: c["history"][-1].pop("comm/bytes_total"),
    "server ahead": lambda c: c["server"].update(round=10**9),
    "short momentum": short_momentum,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_a_checkpoint_must_hold_is_checked_before_anything_changes(damage, tmp_path):
    def module():
        return FedPer(mlp(), optimizer=MOMENTUM, persist_optimizer=True)

    folder = fit(tmp_path, module=module()).folder
    file = folder / "checkpoints" / "last.ckpt"
    content = checkpoint.load(file)
    DAMAGES[damage](content)
    checkpoint.save(file, content)
    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.name != ".lock"}
    with pytest.raises(CheckpointError, match="the checkpoint's ") as caught:
        fit(tmp_path, rounds=4, ckpt_path=str(folder), module=module())
    assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in before}


# Without what is no longer needed.


@pytest.mark.parametrize("kept_memory", [None, 1.0])
def test_nothing_of_a_checkpoint_is_held_once_its_values_are_replaced(
    kept_memory, tmp_path, monkeypatch
):
    """The file is not mapped any more, and its tensors are gone a round after all have trained."""
    loaded, load = [], checkpoint.load

    def noted(*arguments, **options):
        content = load(*arguments, **options)
        tensors = [*content["server"]["shared"].values()]
        tensors += [value for kept in content["kept"].values() for value in kept.values()]
        loaded.extend(map(weakref.ref, tensors))
        return content

    class Looks(Callback):
        def on_fit_start(self, run):
            maps = Path("/proc/self/maps")
            assert not maps.exists() or str(tmp_path) not in maps.read_text()

        def on_round_end(self, run, result):
            gc.collect()
            left = [tensor for tensor in loaded if tensor() is not None]
            assert loaded
            assert result.round < 3 or not left

    def run(rounds, ckpt_path=None, callbacks=()):
        loop = FederatedLoop(
            rounds,
            engine="sequential",
            callbacks=[*callbacks],
            default_root_dir=str(tmp_path),
            kept_memory=kept_memory,
            progress=False,
        )
        return loop.fit(FedPer(mlp()), blobs(), ckpt_path)

    run(1)
    monkeypatch.setattr(checkpoint, "load", noted)
    assert run(3, "last", [Looks()]).round == 3


# What is made of a checkpoint.


def test_an_export_may_lie_in_a_folder_of_checkpoints_but_not_in_a_runs(tmp_path):
    source = fit(tmp_path).folder / resume.FILE
    loop = FederatedLoop(2, progress=False)
    for file in (source, source.with_name("mine.ckpt")):
        with pytest.raises(CheckpointError, match=f"{file} is the place of a run's checkpoint"):
            loop.export(FedPer(mlp()), blobs(), str(source), 0, file)
    other = tmp_path / "checkpoints" / "mine.ckpt"
    assert resume.beside(other, source) == other


def test_an_export_replaces_an_earlier_one_but_no_table(tmp_path):
    table, exported = tmp_path / "new.csv", tmp_path / "mine.ckpt"
    table.write_text("age,died\n51,True\n")
    with pytest.raises(CheckpointError, match=f"{table} exists and is not an exported model"):
        resume.beside(table, tmp_path / "last.ckpt")
    torch.save({}, exported)
    assert resume.beside(exported, tmp_path / "last.ckpt") == exported


def test_last_without_a_folder_of_runs_is_refused():
    with pytest.raises(CheckpointError, match=r"last: give loop\.default_root_dir"):
        FederatedLoop(2, progress=False).fit(FedPer(mlp()), blobs(), "last")


# By one process.


def test_a_run_is_locked_from_its_first_round_and_when_it_is_resumed(tmp_path):
    seen = []

    class Looks(Callback):
        def on_round_end(self, run, result):
            with pytest.raises(BusyError, match=f"process {os.getpid()} "), locked(run.folder):
                pass
            seen.append(result.round)

    for rounds, source in ((2, None), (3, "last")):
        loop = FederatedLoop(
            rounds, default_root_dir=str(tmp_path), progress=False, callbacks=[Looks()]
        )
        folder = loop.fit(FedPer(mlp()), blobs(), source).folder
    assert seen == [1, 2, 3]
    with locked(folder), pytest.raises(BusyError, match="is already working on"):
        loop.fit(FedPer(mlp()), blobs(), "last")
