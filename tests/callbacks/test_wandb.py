"""The W&B callback: offline its file is read back, online it says what is missing."""

from __future__ import annotations

import json
import struct
from functools import partial

import pytest
import torch
import wandb
from wandb.proto.wandb_internal_pb2 import Record

from lightning_modules.fedavg import FedAvg
from pfl.callbacks.wandb import WandB
from pfl.cli.main import main
from pfl.loop import FederatedLoop
from tests.helpers.toy import blobs, mlp


def records(path):
    """The records of a ``.wandb`` file: a LevelDB log of blocks of 32 KiB after 7 bytes of header.

    A chunk is crc (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last), content.
    """
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


def history(folder):
    rows = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                rows.append(
                    {
                        (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
                        for item in record.history.item
                    }
                )
    return rows


def fit(tmp_path, rounds, ckpt_path=None, pictures=False):
    loop = FederatedLoop(
        rounds=rounds,
        progress=False,
        default_root_dir=str(tmp_path),
        callbacks=[WandB(mode="offline", pictures=pictures)],
    )
    module = FedAvg(mlp(), optimizer=partial(torch.optim.SGD, lr=0.1))
    return loop.fit(module, blobs(), ckpt_path=ckpt_path, config="seed: 42\n")


@pytest.fixture(autouse=True)
def _silent(monkeypatch):
    """Nothing is printed, and no settings stay behind for other tests in this process."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    wandb.teardown()


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
    parts = sorted(run.folder.glob("wandb/offline-run-*/*.wandb"))
    opened = [item.run for part in parts for item in records(part) if item.HasField("run")]
    # The second part says that it resumes the first: wandb sync appends it.
    assert len({item.run_id for item in opened}) == 1
    assert [item.resume for item in opened] == [False, True]


def test_the_pictures_go_along_at_the_end(tmp_path):
    run = fit(tmp_path, 2, pictures=True)
    rounds, pictures = history(run.folder)[:-1], history(run.folder)[-1]
    assert [row["round"] for row in rounds] == [1, 2]
    assert pictures["round"] == 2
    for name in ("curves", "clients", "data_size", "weight", "similarity"):
        assert pictures[f"pictures/{name}/_type"] == "image-file"
        assert (run.folder / "plots" / f"{name}.png").is_file()


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
    assert "Weights & Biases cannot be used online; give WandB the mode offline" in error
    assert "WANDB_MODE=offline" in error
    assert list(tmp_path.glob("quickstart/*/metrics.csv")) == []
