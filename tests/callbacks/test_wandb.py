"""The W&B callback: offline its file is read back, online it says what is missing."""

from __future__ import annotations

import json
import struct
from functools import partial

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from pfl.__main__ import main
from pfl.callbacks.early_stopping import EarlyStopping
from pfl.callbacks.wandb import WandB
from pfl.loop import FederatedLoop
from tests.helpers.toy import blobs, mlp


@pytest.fixture(autouse=True)
def _wandb_writes_here(tmp_path, monkeypatch):
    """There may be no home."""
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb data"))


def records(path):
    """The records of a ``.wandb`` file: a LevelDB log of blocks of 32 KiB after 7 bytes of header.

    A chunk is crc (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last), content.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, parts = path.read_bytes(), 7, []
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        parts.append(content[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def parts(folder):
    """The files of a run, the earliest first; the service writes their ends after it was closed."""
    import wandb

    wandb.teardown()
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"))


def history(folder):
    rows = []
    for path in parts(folder):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                rows.append(
                    {
                        (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
                        for item in record.history.item
                    }
                )
    return rows


def opened(run):
    """Return how each part of a run was opened, the earliest first."""
    return [
        item.run for part in parts(run.folder) for item in records(part) if item.HasField("run")
    ]


def fit(tmp_path, rounds, ckpt_path=None, pictures=False, callbacks=(), loop=None, **options):
    loop = FederatedLoop(
        rounds=rounds,
        progress=False,
        callbacks=[*callbacks, WandB(mode="offline", pictures=pictures, **options)],
        **{"default_root_dir": str(tmp_path), **(loop or {})},
    )
    module = FedAvg(mlp(), optimizer=partial(torch.optim.SGD, lr=0.1))
    return loop.fit(module, blobs(), ckpt_path=ckpt_path, config="seed: 42\n")


@pytest.fixture(autouse=True)
def _silent(monkeypatch):
    """Nothing is printed, and no settings stay behind for other tests in this process."""
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    wandb.teardown()


@pytest.mark.long
def test_one_call_a_round_with_every_key_and_one_id_over_a_resume(tmp_path):
    run = fit(tmp_path, 2)
    run = fit(tmp_path, 3, ckpt_path="last")
    rows = history(run.folder)
    assert [row["round"] for row in rows] == [1, 2, 3]
    for row, expected in zip(rows, run.history, strict=True):
        assert expected.keys() <= row.keys()
        assert row["clients/_type"] == "table-file"
        for key, value in expected.items():
            assert row[key] == pytest.approx(value)
    # The second part says that it resumes the first: wandb sync appends it, and its steps go on.
    assert len({item.run_id for item in opened(run)}) == 1
    assert [item.resume for item in opened(run)] == [False, True]
    assert [row["_step"] for row in rows] == [1, 2, 3]


@pytest.mark.long
@pytest.mark.parametrize(
    ("callbacks", "every", "drawn"),
    [((), 2, [2, 4, 5]), ([EarlyStopping("test/personal/acc", 1, min_delta=2)], 9, [2])],
    ids=["planned", "stopped"],
)
def test_tables_and_pictures_go_along_every_few_rounds_and_in_the_last(
    tmp_path, callbacks, every, drawn
):
    """The last is the planned one, or nothing gets better by 2."""
    loop = {"evaluate_every": 1}
    run = fit(tmp_path, 5, pictures=True, every=every, callbacks=callbacks, loop=loop)
    rows = history(run.folder)
    assert [row["round"] for row in rows] == list(range(1, run.round + 1))
    for key in ("clients/_type", "pictures/curves/_type"):
        assert [row["round"] for row in rows if key in row] == drawn, key
    for name in ("curves", "clients", "data_size", "weight", "similarity"):
        assert rows[-1][f"pictures/{name}/_type"] == "image-file"
        assert (run.folder / "plots" / f"{name}.png").is_file()


def test_the_run_has_the_name_of_the_loop_and_what_the_service_sorts_runs_by(tmp_path):
    wanted = {"entity": "us", "group": "all seeds", "notes": "long", "job_type": "fit"}
    run = fit(tmp_path, 1, tags=["a", "b"], id="abc", loop={"name": "a/b"}, **wanted)
    (found,) = opened(run)
    assert (found.display_name, found.run_id, [*found.tags]) == ("a/b", "abc", ["a", "b"])
    assert (found.entity, found.run_group) == ("us", "all seeds")
    assert (found.notes, found.job_type) == ("long", "fit")
    assert opened(fit(tmp_path, 1, name="mine"))[0].display_name == "mine"
    assert opened(fit(tmp_path, 1))[0].display_name == "fedavg_toydata"


@pytest.mark.parametrize("key", ["", "a" * 40], ids=["no key", "no network"])
def test_without_key_or_network_the_way_to_go_on_is_told_before_training(
    tmp_path, monkeypatch, capsys, key
):
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    # Port 9 discards: nothing listens.
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("pfl.callbacks.wandb.SECONDS", 1.0)
    words = ["--loop.callbacks+=WandB", "--loop.callbacks.mode=online", "--loop.progress=false"]
    words += [f"--loop.default_root_dir={tmp_path}"]
    assert main(["fit", "--config", "configs/quickstart.yaml", *words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "Weights & Biases cannot be used online: set WandB's mode to offline" in error
    assert "WANDB_MODE=offline" in error
    assert list(tmp_path.glob("quickstart/*/metrics.csv")) == []
