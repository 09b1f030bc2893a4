"""What a run is resumed from: the right run, undamaged, and by one process at a time."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import weakref
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
import yaml

from lightning_modules.fedper import FedPer
from lightning_modules.pfedvem import PFedVEM
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


def test_a_run_whose_noise_was_drawn_otherwise_is_not_gone_on_with(tmp_path):
    """Its personal models may still be tested; a method without noise is resumed as ever."""

    def former(module):
        folder = fit(tmp_path, module=module).folder
        file, environment = folder / "checkpoints" / "last.ckpt", folder / "environment.json"
        content = checkpoint.load(file)
        known = json.loads(environment.read_text())
        drawn = "splitmix64" if isinstance(module, PFedVEM) else None
        assert content["noise"] == known["noise"] == drawn
        content["noise"] = known["noise"] = drawn and "philox"
        checkpoint.save(file, content)
        environment.write_text(json.dumps(known))
        return folder

    folder = former(PFedVEM(mlp()))
    for path in (str(folder), "last"):
        with pytest.raises(CheckpointError, match=parts("noise of philox (now splitmix64) ~ anew")):
            fit(tmp_path, rounds=4, module=PFedVEM(mlp()), ckpt_path=path)
    loop = FederatedLoop(2, default_root_dir=str(tmp_path), progress=False)
    loop.test(PFedVEM(mlp()), blobs(), str(folder))
    assert fit(tmp_path, rounds=4, ckpt_path=str(former(FedPer(mlp())))).round == 4


# Undamaged.


def test_a_flipped_bit_is_never_resumed_with_other_weights(tmp_path):
    whole = fit(tmp_path, rounds=2)
    file = whole.folder / "checkpoints" / "last.ckpt"
    sound, draw = file.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(40):
        content = bytearray(sound)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
        try:
            assert fit(tmp_path, ckpt_path=str(whole.folder)).fingerprint == whole.fingerprint
        except CheckpointError as error:
            refused += "\n" not in str(error)
    # The rest fell between the entries, where nothing is read.
    assert refused > 5


def wrong(change):
    """Name a damage after what it does to the checkpoint."""
    return pytest.param(change, id=change.__name__)


def negative(content):
    content["round"] = -1


def fraction(content):
    content["round"] = 2.5


def word(content):
    content["round"] = "3"


def huge(content):
    content["round"] = 10**9


def missing(content):
    del content["server"]


def no_mapping(content):
    content["kept"] = [1]


def stranger(content):
    content["kept"][99] = content["kept"][0]


def wider(content):
    content["template"]["net.head.weight"] = torch.zeros(3, 99)


def other_type(content):
    content["server"]["shared"]["net.backbone.1.weight"] = torch.zeros(2, dtype=torch.int64)


def lacking(content):
    del next(iter(content["kept"].values()))["net.head.weight"]


def no_tensor(content):
    next(iter(content["kept"].values()))["net.head.weight"] = 3


def cut_history(content):
    content["history"].pop()


def worded_history(content):
    content["history"][0]["test/personal/acc"] = "high"


def history_without_bytes(content):
    del content["history"][-1]["comm/bytes_total"]


def short_momentum(content):
    kept = [*content["kept"].values()][-1]
    (name, *_) = (name for name in kept if name.startswith("optimizer:"))
    kept[name] = kept[name].flatten()[:-1]


def server_ahead(content):
    content["server"]["round"] = 10**9


DAMAGES = (negative, fraction, word, huge, missing, no_mapping, stranger, wider, other_type)
DAMAGES += (lacking, no_tensor, cut_history, worded_history, server_ahead)
DAMAGES += (history_without_bytes, short_momentum)


@pytest.mark.parametrize("damage", [wrong(damage) for damage in DAMAGES])
def test_what_a_checkpoint_must_hold_is_checked_before_anything_changes(damage, tmp_path):
    def module():
        return FedPer(mlp(), optimizer=MOMENTUM, persist_optimizer=True)

    folder = fit(tmp_path, module=module()).folder
    file = folder / "checkpoints" / "last.ckpt"
    content = checkpoint.load(file)
    damage(content)
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
            assert not maps.exists() or "last.ckpt" not in maps.read_text()

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
    with pytest.raises(CheckpointError, match=f"{table} exists and is no exported model"):
        resume.beside(table, tmp_path / "last.ckpt")
    torch.save({}, exported)
    assert resume.beside(exported, tmp_path / "last.ckpt") == exported


def test_last_without_a_folder_of_runs_is_refused():
    with pytest.raises(CheckpointError, match=r"last: give loop\.default_root_dir"):
        FederatedLoop(2, progress=False).fit(FedPer(mlp()), blobs(), "last")


# By one process.


def test_a_run_that_another_process_is_at_is_refused_by_its_number(tmp_path):
    folder = fit(tmp_path).folder
    code = (
        "import sys, pathlib; from pfl.disk.lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    other.stdout.readline()
    try:
        with pytest.raises(
            BusyError, match=f"process {other.pid} on .* is already working on {folder}"
        ):
            fit(tmp_path, rounds=4, ckpt_path=str(folder))
    finally:
        other.communicate()
    assert fit(tmp_path, rounds=4, ckpt_path=str(folder)).round == 4


def test_a_run_is_locked_from_its_first_round(tmp_path):
    seen = []

    class Looks(Callback):
        def on_round_end(self, run, result):
            with pytest.raises(BusyError, match=f"process {os.getpid()} "), locked(run.folder):
                pass
            seen.append(result.round)

    loop = FederatedLoop(2, default_root_dir=str(tmp_path), progress=False, callbacks=[Looks()])
    loop.fit(FedPer(mlp()), blobs())
    assert seen == [1, 2]


def test_files_of_killed_processes_are_removed(tmp_path):
    folder = fit(tmp_path).folder
    left = [folder / ".metrics.csv.123", folder / "checkpoints" / ".last.ckpt.99999"]
    for file in left:
        file.write_text("half")
    fit(tmp_path, rounds=3, ckpt_path="last")
    assert not any(file.exists() for file in left)
    names = {path.name for path in folder.iterdir() if path.name.startswith(".")}
    assert names == {".lock"}
