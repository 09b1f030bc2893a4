from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from datamodules.base import FederatedDataModule
from datamodules.view import View
from pfl.core.data import members
from pfl.extras.bench.blinded import Blinded
from pfl.extras.bench.pieces import Piece
from tests.extras.bench.conftest import bench, task


@dataclass
class Split:
    targets: torch.Tensor

    def __len__(self):
        return len(self.targets)


class Data:
    """Three clients, the last of which is held out."""

    num_clients, batch_size = 3, 7
    apart: ClassVar = {"unseen": (2,)}

    def split(self, client, name):
        return Split(torch.arange(10 * client, 10 * client + 4))

    def pooled_test(self):
        return Split(torch.arange(5))


def test_tests_and_held_out_clients_are_hidden_and_all_else_is_there():
    data = Blinded(Data())
    assert data.split(1, "train").targets.tolist() == [10, 11, 12, 13]
    assert len(data.split(1, "val")) == 4
    assert len(data.split(1, "test")) == len(data.split(2, "train")) == 0
    assert data.pooled_test() is None
    assert [*members(data)] == [0, 1, 2]
    assert data.batch_size == 7
    with pytest.raises(ValueError, match="no test samples"):
        data.split(1, "test").batch(torch.tensor([0]))


def test_a_trial_reads_no_test_sample(tmp_path, monkeypatch):
    """Nor do the rounds by which its cost is counted."""
    tested, batch = set(), View.batch

    def split(data, client, name):
        found = original(data, client, name)
        if name == "test":
            tested.add(id(found))
        return found

    def read(view, *given):
        assert id(view) not in tested, "a test sample was read"
        return batch(view, *given)

    original = FederatedDataModule.split
    monkeypatch.setattr(FederatedDataModule, "split", split)
    monkeypatch.setattr(View, "batch", read)
    made = bench(task(tmp_path), tmp_path / "out")
    one = made.contenders[1]
    outcome = made.computed(Piece(one, 1001, one.trials(1)[0], None, made.task_hash))
    assert outcome["validation"] > 0
    assert tested
    again = made.computed(Piece(one, 0, one.trials(1)[0], 1, made.task_hash))
    assert "a test sample was read" in again["failed"]
