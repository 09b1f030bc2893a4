"""Steps of a fixed shape, as a GPU computes them, here on a CPU.

Every method's numbers are compared by ``pytest -m slow tests/engines/stack/test_fixed.py``.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from datamodules import CropFlip, Dirichlet, Synthetic
from lightning_modules.base import ClientModule
from lightning_modules.local import Local
from lightning_modules.losses import mean
from pfl.core import devices
from pfl.core.types import Outcome, Pass, Phase
from pfl.engines.stack import feed, stack
from pfl.engines.stack import round as stack_round
from pfl.engines.stack.schedule import FixedSchedule, Schedule
from pfl.testing.engines import stacked_agrees
from pfl.training import client_round
from pfl.training.batching import Step
from tests.engines.agreement import around_steps
from tests.helpers.discovery import methods, subject
from tests.helpers.federation import HEAVY, context, job
from tests.helpers.toy import blobs, mlp, normed

SIZES = (4, 9, 1, 17, 6)
# In descending order of their samples, as an engine stacks clients.
CLIENTS = (3, 1, 4, 0, 2)


@pytest.fixture(autouse=True)
def _stay(monkeypatch):
    """Treat the CPU as a GPU; torch lets Adam count on other devices only."""
    monkeypatch.setattr(devices, "repeats", lambda device: True)
    adam = import_module("torch.optim.adam")
    monkeypatch.setattr(adam, "_get_capturable_supported_devices", lambda **_: ["cpu"])


class All(ClientModule):
    """Does in one round all that a step may do, for as many steps as the client's number says."""

    kept = ("net.*", "count", "summary")
    shared = ()
    vectorizable = True
    draws_noise = True

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("summary", torch.zeros(3))

    def plan(self):
        return [
            Phase(
                name="whole",
                objective=self.everything,
                epochs=lambda own, info: 1 + (2 * info.client + info.round) % 3,
                noise={"shift": ()},
            ),
            Phase(
                name="head",
                objective=self.losses,
                steps=lambda own, info: 7 * (info.client % 3),
                trains=("net*head.*",),
                full_batch=True,
            ),
            Pass(name="summary", then=self.summarise),
        ]

    def everything(self, batch):
        outputs = self(batch.x + 0.1 * batch.noise["shift"])
        terms = self.supervised(outputs, batch)
        terms["size"] = 0.01 * mean(outputs.square().mean(1), batch.weight)
        self.log("size", terms["size"])
        return Outcome(terms, {"count": self.count + 1}, {"x": batch.x.flatten(1).sum(1)})

    def summarise(self, totals):
        numbers = [totals.rows["x"].sum(), totals.steps, totals.samples]
        return {"summary": torch.tensor(list(map(float, numbers)))}


OPTIMISERS = {
    "momentum": HEAVY,
    "adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01, foreach=True),
}


@pytest.mark.parametrize("optimizer", OPTIMISERS)
def test_a_finished_client_keeps_its_numbers_and_its_row_reaches_no_other(optimizer, monkeypatch):
    """Rows turn into NaN as soon as they are put back; clipped, with momentum that is kept."""
    _ruin(monkeypatch)
    data, options = blobs(SIZES), {"persist_optimizer": optimizer == "momentum"}
    ctx = context(All(mlp(), optimizer=OPTIMISERS[optimizer], **options), data, "64-true")
    ctx.gradient_clip_val = 0.5
    kept = {client: {} for client in CLIENTS}
    for number in (1, 2):
        jobs = [job(data, client, kept=kept[client], round=number) for client in CLIENTS]
        alone = [client_round.train(ctx, one) for one in jobs]
        for one, other in zip(alone, stack_round.train(ctx, jobs), strict=True):
            assert (one.steps, one.samples, one.finite) == (other.steps, other.samples, True)
            assert other.finite
            torch.testing.assert_close(one.kept, other.kept, rtol=1e-10, atol=1e-12)
            assert one.train == pytest.approx(other.train)
            assert one.logged == pytest.approx(other.logged)
        kept = {result.client: result.kept for result in alone}


def _ruin(monkeypatch):
    put_back = stack.Stack.put_back

    def ruining(self, rows, part):
        put_back(self, rows, part)
        if part is not self:
            for value in part.state.values():
                value[list(rows)] = torch.nan

    monkeypatch.setattr(stack.Stack, "put_back", ruining)


class Steps(TorchDispatchMode):
    """Records for each step the calls of operations: shapes, and addresses of what was there.

    Views of tensors are no work for a device and are left out.
    """

    def __init__(self, monkeypatch):
        super().__init__()
        self.steps, self._made, self._on = [], {}, False
        around_steps(monkeypatch, self._begin, self._end)

    def _begin(self):
        self.steps.append([])
        self._made, self._on = {}, True

    def _end(self):
        self._on = False

    def __torch_dispatch__(self, call, kinds, args=(), options=None):
        given = [v for v in tree_leaves((args, options)) if isinstance(v, Tensor)]
        found = call(*args, **(options or {}))
        if self._on and (not call.is_view or call is torch.ops.aten.lift_fresh.default):
            there = [v for v in given if _memory(v) not in self._made]
            places = [v.data_ptr() for v in there]
            self.steps[-1].append((str(call), [v.shape for v in given], places))
            old = {_memory(v) for v in there}
            # Held, so that no later one gets its memory.
            new = [v for v in tree_leaves(found) if isinstance(v, Tensor)]
            self._made |= {_memory(v): v for v in new if _memory(v) not in old}
        return found


def _memory(value):
    # What a simulated device holds lies in a tensor of the CPU.
    return getattr(value, "host", value).untyped_storage().data_ptr()


@pytest.mark.parametrize(("optimizer", "holds"), [("momentum", True), ("adam", False)])
def test_steps_of_a_phase_call_the_same_on_the_same_memory(optimizer, holds, monkeypatch):
    """All but the first, which makes the optimiser's state and the tally's sums."""
    monkeypatch.setattr(devices, "roomy", lambda device: holds)
    data = uneven()
    ctx = context(All(flat(), optimizer=OPTIMISERS[optimizer]), data)
    ctx.gradient_clip_val = 0.5
    with Steps(monkeypatch) as recorder:
        stack_round.train(ctx, jobs_of(data))
    for first, second, *others in (recorder.steps[:-14], recorder.steps[-14:]):
        assert first != second
        assert len(others) > 5
        assert all(step == second for step in others)
        calls = {call.split(".")[1] for call, _, _ in second}
        assert not {"_local_scalar_dense", "lift_fresh", "nonzero", "item"} & calls


def uneven(**options):
    data = Synthetic(samples=90, num_clients=5, partition=Dirichlet(1.0), batch_size=4, **options)
    data.setup()
    return data


def flat():
    return nn.Sequential(nn.Flatten(), mlp(4, 64))


def jobs_of(data):
    clients = sorted(range(5), key=lambda client: -len(data.split(client, "train")))
    return [job(data, client) for client in clients]


@pytest.mark.filterwarnings("ignore:client 2 takes no step")
def test_where_batches_cannot_be_padded_or_read_at_once_clients_leave(monkeypatch):
    """A batch norm's samples depend on each other; crops are drawn client by client."""
    monkeypatch.setattr(feed, "FixedSchedule", None)
    data = blobs(SIZES)
    jobs = [job(data, client) for client in CLIENTS]
    stack_round.train(context(Local(normed(), optimizer=HEAVY), data), jobs)
    cropped = uneven(augment=CropFlip(padding=2))
    stack_round.train(context(Local(flat(), optimizer=HEAVY), cropped), jobs_of(cropped))
    with pytest.raises(TypeError, match="not callable"):
        stack_round.train(context(Local(mlp(), optimizer=HEAVY), data), jobs)


def test_a_fixed_schedule_pads_what_the_other_leaves_out():
    """Two clients in places 7 and 4: batches of 2, 2 and 1 samples, and one batch of 2."""
    batches = [[(5, 0), (3, 1), (2,)], [(1, 0)]]
    steps = [[Step(0, 0, False, torch.tensor(b), len(b)) for b in own] for own in batches]
    leaving, fixed = (
        kind(steps, [7, 4], torch.device("cpu")) for kind in (Schedule, FixedSchedule)
    )
    assert [leaving.shape(n) for n in range(3)] == [(2, 2), (1, 2), (1, 1)]
    assert [list(fixed.finished(n)) for n in range(4)] == [[], [1], [], [0]]
    assert fixed.overruns
    assert not leaving.overruns
    for number, positions, weights, places in (
        (0, [[5, 0], [1, 0]], [[1, 1], [1, 1]], [7, 4]),
        (1, [[3, 1], [0, 0]], [[1, 1], [1, 1]], [7, -1]),
        (2, [[2, 0], [0, 0]], [[1, 0], [1, 1]], [7, -1]),
    ):
        assert fixed.shape(number) == (2, 2)
        found = fixed.inputs(number, {})
        assert [value.tolist() for value in found[:3]] == [positions, weights, places]
        own = leaving.inputs(number, {})
        assert own.positions.tolist() == [list(c[number]) for c in batches if len(c) > number]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [m for m in methods() if m.vectorizable], ids=lambda m: m.__name__
)
def test_a_method_keeps_its_numbers_when_finished_clients_stay(method):
    stacked_agrees.hold(subject(method))
