"""Promises about the loss of targets, which only the task defines."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl.core.state import named
from pfl.core.task import Task
from pfl.core.types import Pass, State
from pfl.testing.compare import difference
from pfl.testing.federation import ToyFederation
from pfl.testing.promise import BrokenPromiseError, Subject, check_same, promise
from pfl.testing.toy import ToyData, blobs

ADVICE = "every loss of targets must be self.task.loss (or self.supervised, its named form)"
# For a pass that reads targets.
OF_CLASSES = (
    f"{ADVICE}; if no loss is involved, as where a pass counts classes, the method works on "
    'classes and declares needs = ("classes",)'
)


@promise("another loss of the task changes what clients learn")
def losses_count(subject: Subject) -> None:
    """Train clients under the task's loss, and under one that asks for outputs near zero."""
    seeing, blind = (_learnt(subject, blind=blind) for blind in (False, True))
    for client, (one, another) in enumerate(zip(seeing, blind, strict=True)):
        if difference(one, another) is None:
            raise BrokenPromiseError(f"client {client} learns the same: {ADVICE}")


@promise(
    "targets count through the task's loss alone (of a method that needs no classes)",
    applies=lambda subject: "classes" not in subject.module().needs,
)
def targets_count_in_the_loss_alone(subject: Subject) -> None:
    """Permute the targets under a loss that ignores them."""
    for trains, cure in ((False, OF_CLASSES), (True, ADVICE)):
        straight, turned = (_learnt(subject, True, turn, trains) for turn in (0, 1))
        for client, (one, another) in enumerate(zip(straight, turned, strict=True)):
            finding = f"of client {client} follows the targets past a loss that ignores them"
            check_same(one, another, f"{{name!r}} {finding}: {cure}")


def _learnt(subject: Subject, blind: bool, turn: int = 0, trains: bool = True) -> list[State]:
    """Return what each client uploads and keeps in the second round.

    The loss ignores the targets if it is ``blind``; each client's are turned by ``turn`` positions.
    Unless it ``trains``, there are only passes.
    """
    module = subject.module()
    if blind:
        module.task = _blinded(module.task)
    federation = ToyFederation(module, _turned(blobs(task=module.task), turn))
    if not trains:
        passes = [part for part in federation.context.plan if isinstance(part, Pass)]
        federation.context.plan = passes
    federation.round()
    results = [federation.train(client) for client in range(federation.data.num_clients)]
    return [named({"upload": result.upload, "kept": result.kept}) for result in results]


def _blinded(task: Task) -> Task:
    """Return a task of the same kind whose loss is the mean square of the outputs."""
    base = type(task)
    members = {"sample_losses": _squares, "loss": Task.loss, "__module__": __name__}
    blind: Task = type(f"Blind{base.__name__}", (base,), members)()
    return blind


def _squares(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.square().mean(-1)


def _turned(data: ToyData, turn: int) -> ToyData:
    splits = data.splits
    splits["train"] = [(x, torch.roll(y, turn, 0)) for x, y in splits["train"]]
    return data
