"""``pfl check``: a line a promise, and an exit code that tells how it went."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.testing import PROMISES
from pfl.testing.promise import BOTH
from tests.helpers.messages import parts

MINE = """\
from lightning_modules.base import ClientModule
from pfl.core.server import Server


class Mine(ClientModule):
    pass


class Fails(Mine):
    def server(self):
        class Own(Server):
            def finish(self, state, folded):
                return folded.uploads[99]

        return Own()


class Forgetful(Mine):
    def upload(self, info):
        upload = super().upload(info)
        upload.shared["bias"] = upload.shared.pop("net.head.bias")
        return upload
"""
CONFIG = """\
seed: 1
loop: {rounds: 2}
model:
  class_path: FedSimSup
  init_args:
    net: {class_path: LeNet5}
    supervisor: {class_path: LeNet5, init_args: {channels: [3, 6]}}
    epochs: 2
data:
  class_path: SUN397
  init_args: {num_clients: 4, partition: {class_path: IID}}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(own_folder, monkeypatch):
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(MINE)
    Path("c.yaml").write_text(CONFIG)


def check(*words):
    """Run the command; its exit code."""
    try:
        return main(["check", *words])
    except SystemExit as end:
        return end.code


@pytest.mark.long
def test_a_method_beside_the_working_folder_keeps_its_promises(capsys):
    assert check("mine.Mine") == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line[8:] for line in lines] == [promise.sentence for promise in PROMISES]
    assert {line[:8].strip() for line in lines} == {"kept", "-"}
    assert last == "Mine keeps its promises"


def test_a_broken_promise_is_told_and_the_others_are_examined(capsys):
    assert check("mine.Forgetful") == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == len(PROMISES)
    assert (
        "BROKEN  an upload has only what is declared, in the shapes that the server sends: upload "
        "sends 'bias', which 'shared' does not match"
    ) in lines
    assert any(line.startswith("kept    it trains under a plain Trainer") for line in lines)
    # What the server says of it is told once.
    assert sum("KeyError" in line for line in lines) == 1
    assert last.startswith("Forgetful breaks ")


def test_an_error_is_told_once_with_its_line(capsys):
    assert check("mine.Fails") == 1
    *lines, last = capsys.readouterr().out.splitlines()
    (told,) = (line for line in lines if line.startswith("RAISES"))
    assert told.endswith(": IndexError: list index out of range (mine.py, line 13)")
    assert not [line for line in lines if line.startswith("BROKEN")]
    start = f"Fails breaks 0 of {len(PROMISES)} promises and raises 1 error ("
    assert last.startswith(start)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine.Mien"], "'mine.Mien' ~ 'mine.Mine'"),
        (
            ["torch.nn.Linear"],
            "torch.nn.Linear is not a subclass of ClientModule",
        ),
        (["FedSimSup"], "arguments of FedSimSup are required: supervisor"),
        (["mine.Mine", "--model.rank", "1"], "--model.rank: Mine ~ 'rank'"),
        (["--config", "gone.yaml"], "--config gone.yaml: there is no such file"),
        (["--config", "c.yaml", "--model.epoch", "1"], "FedSimSup ~ 'epoch'"),
        (["--model", "FedProx", "--model.mu", "-1"], "--model.mu: mu must not be negative, got -1"),
    ],
)
def test_a_method_that_cannot_be_built_is_a_usage_error(words, message, capsys):
    assert check(*words) == 2
    assert re.search(parts(message), capsys.readouterr().err)


ADAPTED = """\
seed: 1
loop: {rounds: 2}
model:
  class_path: FedSALoRA
  init_args:
    net:
      class_path: LoRA
      init_args: {net: {class_path: ViT}, rank: 3, targets: ["backbone.*"]}
data:
  class_path: Digits
  init_args: {num_clients: 4, partition: {class_path: IID}}
"""


@pytest.mark.parametrize(
    ("words", "told", "rank"),
    [
        ([], "on LoRA (ToyNet in place of ViT)", 3),
        (
            ["--model.net.targets", "['*.query']"],
            "on LoRA (ToyNet in place of ViT; without targets and trained, as targets=['*.query'] ",
            3,
        ),
        (["--model", "MRMTL"], "on LoRA (ToyNet in place of ViT)", 3),
        (
            ["--model", "FedOTP"],
            "on ToyTowers (ToyNet in place of ViT; FedOTP needs an encoder of images and texts)",
            3,
        ),
    ],
)
def test_the_network_of_a_configuration_is_examined_made_small(
    words, told, rank, capsys, monkeypatch
):
    ranks = []

    def examine(subject):
        net = subject.module().net
        ranks.extend(part.rank for part in net.modules() if hasattr(part, "rank"))

    only = replace(PROMISES[0], examine=examine, nets=BOTH)
    monkeypatch.setattr("pfl.cli.check.PROMISES", (only,))
    Path("a.yaml").write_text(ADAPTED)
    assert not check("--config", "a.yaml", *words)
    assert ranks == [rank, rank]
    assert capsys.readouterr().out.startswith(told)


def test_a_number_out_of_range_is_refused_on_a_small_network_too(capsys):
    Path("a.yaml").write_text(ADAPTED)
    assert check("--config", "a.yaml", "--model.net.rank", "-1") == 2
    assert "rank must not be negative, got -1" in capsys.readouterr().err


@pytest.mark.long
def test_a_configuration_needs_neither_its_networks_nor_its_data(capsys):
    """SUN397 is not there, and no LeNet-5 takes five numbers."""
    assert check("--config", "c.yaml", "--model.sup_epochs", "1") == 0
    assert capsys.readouterr().out.endswith("FedSimSup keeps its promises\n")
