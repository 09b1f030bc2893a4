"""Run folders that somebody else may have made: nothing outside is touched, no row is another's."""

from __future__ import annotations

import shutil

import pytest
import torch
import yaml

from lightning_modules.fedper import FedPer
from pfl.disk import container
from pfl.disk.lock import NoLocksWarning
from pfl.federation.checkpoint import CheckpointError
from pfl.loop import FederatedLoop
from tests.helpers.analyses import Norms
from tests.helpers.locks import locks_fail
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp


def fit(root, rounds=2, ckpt_path=None, seed=42, config=None, **options):
    loop = FederatedLoop(
        rounds=rounds,
        engine="sequential",
        default_root_dir=str(root),
        name="r",
        checkpoint_every=1,
        progress=False,
        seed=seed,
        **options,
    )
    return loop.fit(FedPer(mlp()), blobs(), None if ckpt_path is None else str(ckpt_path), config)


@pytest.fixture
def outside(tmp_path):
    """A folder of the user's, which nothing may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("precious.txt", ".last.ckpt.17", ".notes.17"):
        (folder / name).write_text("precious")
    yield folder
    assert {file.name: file.read_text() for file in folder.iterdir()} == dict.fromkeys(
        ("precious.txt", ".last.ckpt.17", ".notes.17"), "precious"
    )


# Links.

WRITTEN = (".lock", "config.yaml", "environment.json", "partition.json", "summary.json")
WRITTEN += ("metrics.csv", "clients.csv", "norms.csv", "checkpoints/last.ckpt")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_resume_writes_to_nothing_that_a_link_leads_to(name, tmp_path, outside):
    folder = fit(tmp_path, callbacks=[Norms()]).folder
    shutil.copytree(folder, tmp_path / "sound")
    file = folder / name
    file.unlink(missing_ok=True)
    if name == "checkpoints/last.ckpt":
        # What is read through a link is not saved through it.
        file.symlink_to(tmp_path / "sound" / name)
    else:
        file.symlink_to(outside / "precious.txt")
    config = yaml.safe_dump({"seed": 42})
    with pytest.raises((OSError, ValueError), match=f"{name} is a link|rows of .*{name}"):
        fit(tmp_path, 3, folder, callbacks=[Norms()], config=config)
    assert file.is_symlink()


def test_nothing_is_removed_or_saved_through_linked_checkpoints(tmp_path, outside):
    folder = fit(tmp_path).folder
    sound = tmp_path / "sound"
    (folder / "checkpoints").rename(sound)
    (folder / "checkpoints").symlink_to(outside)
    (outside / "last.ckpt").symlink_to(sound / "last.ckpt")
    with pytest.raises(OSError, match=parts("checkpoints ~ link")):
        fit(tmp_path, 3, folder)
    (outside / "last.ckpt").unlink()


def test_only_what_the_project_writes_is_removed(tmp_path):
    folder = fit(tmp_path).folder
    users = [folder / ".notes.17", folder / ".secret.csv.17", folder / "checkpoints" / ".best.17"]
    left = [folder / ".clients.csv.17", folder / "checkpoints" / ".last.ckpt.17"]
    for file in (*users, *left):
        file.write_text("precious")
    fit(tmp_path, 3, folder)
    assert [file.read_text() for file in users] == ["precious"] * 3
    assert not any(file.exists() for file in left)


# Rows.


def test_rows_of_another_run_are_refused_and_nothing_is_changed(tmp_path):
    folder, other = fit(tmp_path).folder, fit(tmp_path, seed=7).folder
    shutil.copy(other / "clients.csv", folder / "clients.csv")
    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.name != ".lock"}
    with pytest.raises(CheckpointError, match=parts("6 rows ~ clients.csv ~ another run")):
        fit(tmp_path, 3, folder)
    assert before == {path: path.read_bytes() for path in before}


def test_rows_ahead_of_their_checkpoint_are_played_again(tmp_path):
    """As after a kill between rows and checkpoint."""
    whole, folder = fit(tmp_path / "whole", 4), fit(tmp_path).folder
    early = tmp_path / "early.ckpt"
    shutil.copy(folder / "checkpoints" / "last.ckpt", early)
    fit(tmp_path, 3, folder)
    shutil.copy(early, folder / "checkpoints" / "last.ckpt")
    assert fit(tmp_path, 4, folder).fingerprint == whole.fingerprint
    assert (folder / "clients.csv").read_bytes() == (whole.folder / "clients.csv").read_bytes()


def test_the_same_loop_may_fit_anew_after_a_refused_resume(tmp_path):
    folder, other = fit(tmp_path).folder, fit(tmp_path, seed=7).folder
    shutil.copy(other / "clients.csv", folder / "clients.csv")
    loop = FederatedLoop(2, default_root_dir=str(tmp_path), name="r", progress=False)
    with pytest.raises(CheckpointError):
        loop.fit(FedPer(mlp()), blobs(), str(folder))
    assert loop.fit(FedPer(mlp()), blobs()).round == 2


# File systems.


def test_a_federation_is_trained_where_there_are_no_locks(tmp_path, monkeypatch):
    whole = fit(tmp_path / "locks", 3)
    locks_fail(monkeypatch)
    with pytest.warns(NoLocksWarning):
        folder = fit(tmp_path / "none", kept_memory=0.0).folder
    with pytest.warns(NoLocksWarning):
        resumed = fit(tmp_path / "none", 3, folder, kept_memory=0.0)
    assert resumed.fingerprint == whole.fingerprint
    assert {path.name for path in folder.glob(".*")} == {".lock"}


def test_a_checkpoint_that_memory_cannot_hold_is_not_called_damaged(tmp_path, monkeypatch):
    path = tmp_path / "file.pt"
    container.write(path, None, {"w": torch.zeros(1000)})

    def full(*size, **options):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: ...")

    monkeypatch.setattr(torch, "from_file", full)
    with pytest.raises(OSError, match=parts(f"Cannot allocate memory ~ '{path}'")):
        container.read(path)
