"""Small networks whose state is of every kind, and a plain loop that trains any of them.

Each network takes (B, 5) inputs and gives (B, 3) logits. ``refused`` is a pattern of the message
that refuses it; a network without one must have the numbers of the plain loop.
"""

from __future__ import annotations

import functools
import itertools
import queue
import random
import tempfile
import threading
import types
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from lightning_modules import FedAvg, FedPer
from lightning_modules.nets import FrozenParts, SplitNet
from pfl.core.seeds import derive, generator
from pfl.core.state import matches

calls = 0


@dataclass(frozen=True)
class Specimen:
    """A network of the zoo.

    Attributes:
        make: Makes it.
        method: The method that trains it.
        refused: A pattern of the message that refuses it; ``None`` if it must be trained.
    """

    make: Callable[[], nn.Module]
    method: Callable[..., FedAvg] = FedAvg
    refused: str | None = None


ZOO: dict[str, Specimen] = {}


def specimen(method=FedAvg, refused=None, **variants):
    """Enter a function that makes a network; one entry for each of ``variants``."""

    def entered(make):
        for name, value in (variants or {"": None}).items():
            made = make if not variants else (lambda value=value: make(value))
            ZOO[f"{make.__name__}_{name}".rstrip("_")] = Specimen(made, method, refused)
        return make

    return entered


class Step(nn.Module):
    """A linear layer, and something that ``forward`` adds or multiplies; see subclasses."""

    def __init__(self, width=6):
        super().__init__()
        self.line = nn.Linear(5, width)
        self.begin()

    def begin(self):
        pass

    def change(self, h):
        return h

    def forward(self, x):
        return torch.tanh(self.change(self.line(x)))


def net(begin=None, change=None, head=None, train_only=True):
    """Return a network whose first layer calls functions of itself when it is made and used."""

    class Own(Step):
        pass

    def changed(self, h):
        return h if train_only and not self.training else change(self, h)

    if begin is not None:
        Own.begin = begin
    if change is not None:
        Own.change = changed
    return nn.Sequential(Own(), nn.Linear(6, 3) if head is None else head)


def split(head=None, body=None):
    """Return a network that FedPer splits."""
    return SplitNet(
        nn.Sequential(nn.Linear(5, 6), nn.Tanh()) if body is None else body,
        nn.Linear(6, 3) if head is None else head,
        6,
        3,
    )


class Head(nn.Module):
    """A head with something that ``forward`` changes."""

    def __init__(self, begin, change):
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.changed = change
        begin(self)

    def forward(self, h):
        return self.line(self.changed(self, h))


# Entries that forward changes.


def _ema(self, persistent=True, dtype=None):
    self.register_buffer("ema", torch.zeros(6, dtype=dtype), persistent)


def _written(self, h):
    if self.training:
        self.ema.mul_(0.5).add_(h.detach().mean(0), alpha=0.5)
    return h - self.ema


def _bound(self, h):
    if self.training:
        self.ema = 0.5 * self.ema + 0.5 * h.detach().mean(0)
    return h - self.ema


@specimen(written=_written, bound=_bound)
def average(change):
    return net(_ema, change, train_only=False)


@specimen(FedPer, written=_written, bound=_bound)
def average_in_head(change):
    return split(Head(_ema, change))


@specimen(refused=r"net\.0\.ema", written=_written, bound=_bound)
def average_not_persistent(change):
    return net(lambda self: _ema(self, False), change, train_only=False)


@specimen(FedPer, refused=r"net\.head\.ema", written=_written, bound=_bound)
def average_not_persistent_in_head(change):
    return split(Head(lambda self: _ema(self, False), change))


@specimen(FedPer, refused=r"net\.ema")
def average_beside_both_parts():
    class Own(SplitNet):
        def __init__(self):
            super().__init__(nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, 3), 6, 3)
            _ema(self)

        def forward(self, x):
            return self.head(_bound(self, self.backbone(x)))

    return Own()


@specimen(FedPer, refused=r"net\.scale")
def parameter_beside_both_parts():
    class Own(SplitNet):
        def __init__(self):
            super().__init__(nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, 3), 6, 3)
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return self.head(self.scale * self.backbone(x))

    return Own()


# Numbers and tensors in attributes.


def _attribute(self, h):
    self.ema = 0.5 * self.ema + 0.5 * h.detach().mean(0)
    return h - self.ema


@specimen(refused=r"net\.0\.ema")
def average_in_attribute():
    return net(lambda self: setattr(self, "ema", torch.zeros(6)), _attribute)


@specimen(FedPer, refused=r"net\.head\.ema")
def average_in_attribute_of_head():
    return split(Head(lambda self: setattr(self, "ema", torch.zeros(6)), _attribute))


@specimen(refused=r"net\.0\.ema")
def average_in_array():
    def change(self, h):
        self.ema = 0.5 * self.ema + 0.5 * h.detach().mean(0).numpy()
        return h - torch.from_numpy(self.ema)

    return net(lambda self: setattr(self, "ema", np.zeros(6, np.float32)), change)


def _warm(self, h):
    self.calls += 1
    return h * min(1.0, self.calls / 10)


@specimen(refused=r"net\.0\.calls")
def warm_up_by_number():
    return net(lambda self: setattr(self, "calls", 0), _warm)


@specimen(refused=r"net\.0\.calls")
def late_by_number():
    def change(self, h):
        self.calls += 1
        return h * 2 if self.calls > 7 else h

    return net(lambda self: setattr(self, "calls", 0), change)


@specimen(refused=r"net\.0\.calls")
def late_every_few_calls():
    def change(self, h):
        self.calls += 1
        return h * 2 if self.calls % 4 == 0 else h

    return net(lambda self: setattr(self, "calls", 0), change)


@specimen(refused=r"net\.0\.held")
def number_in_dict():
    def change(self, h):
        self.held["calls"] += 1
        return h * min(1.0, self.held["calls"] / 10)

    return net(lambda self: setattr(self, "held", {"calls": 0}), change)


@specimen(refused=r"net\.0\.held")
def number_in_object():
    @dataclass
    class Held:
        calls: int = 0

    def change(self, h):
        self.held.calls += 1
        return h * min(1.0, self.held.calls / 10)

    return net(lambda self: setattr(self, "held", Held()), change)


@specimen(refused=r"net\.0\.past")
def tensors_in_list():
    def change(self, h):
        self.past = [*self.past[-2:], h.detach().mean(0)]
        return h - torch.stack(self.past).mean(0)

    return net(lambda self: setattr(self, "past", [torch.zeros(6)]), change)


@specimen(refused=r"net\.0\.past")
def tensors_in_deque():
    def change(self, h):
        self.past.append(h.detach().mean(0))
        return h - torch.stack([*self.past]).mean(0)

    return net(lambda self: setattr(self, "past", deque(maxlen=4)), change)


@specimen(refused=r"net\.0\.past")
def late_by_length():
    def change(self, h):
        self.past.append(h.detach().mean(0))
        return h - torch.stack([*self.past]).mean(0) if len(self.past) >= 6 else h

    return net(lambda self: setattr(self, "past", deque(maxlen=6)), change)


@specimen(refused=r"net\.0\.held")
def average_in_loose_module():
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            _ema(self)

        def forward(self, h):
            return _written(self, h)

    return net(lambda self: setattr(self, "held", [Held()]), lambda self, h: self.held[0](h))


@specimen(refused=r"net\.0\.(line\.)?weight")
def number_on_parameter():
    def change(self, h):
        self.line.weight.calls = getattr(self.line.weight, "calls", 0) + 1
        return h * min(1.0, self.line.weight.calls / 10)

    return net(None, change)


@specimen(refused=r"calls")
def number_of_class():
    class Own(Step):
        calls = 0

        def change(self, h):
            if self.training:
                type(self).calls += 1
            return h * min(1.0, self.calls / 10)

    return nn.Sequential(Own(), nn.Linear(6, 3))


@specimen(refused=r"calls")
def number_of_file():
    global calls
    calls = 0

    def change(self, h):
        global calls
        calls += 1
        return h * min(1.0, calls / 10)

    return net(None, change)


@specimen(refused=r"held|order")
def number_of_iterator():
    return net(
        lambda self: setattr(self, "order", itertools.count()),
        lambda self, h: h * min(1.0, next(self.order) / 10),
    )


another_file = types.ModuleType("another_file")


@specimen(refused=r"another_file|calls")
def number_of_another_file():
    another_file.calls = 0

    def change(self, h):
        another_file.calls += 1
        return h * min(1.0, another_file.calls / 10)

    return net(None, change)


@specimen(refused=r"scale")
def cache_of_a_method():
    class Own(Step):
        @functools.cache  # noqa: B019
        def scale(self):
            return float(self.line.weight.detach().norm())

        def change(self, h):
            return h / self.scale()

    return nn.Sequential(Own(), nn.Linear(6, 3))


@specimen(refused=r"net\.0\.scale")
def cache_of_first_weights():
    def change(self, h):
        if self.scale is None:
            self.scale = float(self.line.weight.detach().norm())
        return h / self.scale

    return net(lambda self: setattr(self, "scale", None), change, train_only=False)


@specimen(refused=r"net\.0\.order")
def iterator_in_a_circle():
    return net(
        lambda self: setattr(self, "order", itertools.cycle([0.1, 0.5, 1.0])),
        lambda self, h: h * next(self.order),
    )


@functools.lru_cache
def _calls(name):
    return [0]


@specimen(refused=r"change")
def number_in_a_cache():
    _calls.cache_clear()

    def change(self, h):
        _calls("all")[0] += 1
        return h * min(1.0, _calls("all")[0] / 10)

    return net(None, change)


@functools.cache
def _line(length):
    return torch.linspace(0, 1, length)


@specimen()
def cache_of_lengths():
    return net(None, lambda self, h: h + _line(h.shape[1]), train_only=False)


shares = (number / 10 for number in range(10**6))


@specimen(refused=r"shares|change")
def generator_of_file():
    return net(None, lambda self, h: h * min(1.0, next(shares) / 100))


@specimen(
    refused=r"'net\.0\.order' cannot be copied .*register_buffer",
    generator=lambda: (number / 10 for number in range(10**6)),
    lock=threading.Lock,
    queue=queue.SimpleQueue,
    file=tempfile.TemporaryFile,
)
def attribute_that_cannot_be_copied(make):
    return net(lambda self: setattr(self, "order", make()), lambda self, h: h)


# Integers and truth values among the entries.


def _counter(self):
    self.register_buffer("calls", torch.zeros((), dtype=torch.long))


def _warm_entry(self, h):
    self.calls += 1
    return h * (self.calls / 10).clamp(max=1)


@specimen(refused=r"net\.0\.calls.*stays")
def warm_up_by_entry():
    return net(_counter, _warm_entry)


@specimen(refused=r"net\.0\.calls.*stays")
def late_by_entry():
    def change(self, h):
        self.calls += 1
        return h * (1 + (self.calls > 7))

    return net(_counter, change)


class KeepsCalls(FedAvg):
    """FedAvg whose clients keep their counter."""

    kept = ("net.0.calls",)


@specimen(KeepsCalls)
def warm_up_by_kept_entry():
    return net(_counter, _warm_entry)


@specimen(FedPer)
def warm_up_in_head():
    def change(self, h):
        self.calls += self.training
        return h * (self.calls / 10).clamp(max=1)

    return split(Head(_counter, change))


def _unread(self, h):
    self.calls += 1
    return h


@specimen(entry=_counter, attribute=lambda self: setattr(self, "calls", 0))
def counter_that_nobody_reads(begin):
    return net(begin, _unread)


@specimen()
def integers_that_never_change():
    def change(self, h):
        return h[:, self.order]

    def begin(self):
        self.register_buffer("order", torch.arange(5, -1, -1))

    return net(begin, change, train_only=False)


@specimen(refused=r"net\.0\.ready.*stays")
def scale_of_first_batch_by_entry():
    def begin(self):
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("ready", torch.tensor(False))

    def change(self, h):
        if not self.ready and self.training:
            with torch.no_grad():
                self.scale.copy_(1 / (h.std(0) + 0.1))
            self.ready.fill_(True)
        return h * self.scale

    return net(begin, change, train_only=False)


@specimen(refused=r"net\.0\.ready")
def scale_of_first_batch_by_attribute():
    def begin(self):
        self.scale, self.ready = nn.Parameter(torch.ones(6)), False

    def change(self, h):
        if not self.ready and self.training:
            with torch.no_grad():
                self.scale.copy_(1 / (h.std(0) + 0.1))
            self.ready = True
        return h * self.scale

    return net(begin, change, train_only=False)


# Storages under two names.


class Tied(nn.Module):
    """A network whose first and last weights are one parameter."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 5))
        self.head = nn.Linear(5, 3)
        self.head.weight = self.backbone[0].weight
        self.features, self.num_classes = 5, 3

    def forward(self, x):
        return self.head(self.backbone(x))


specimen()(Tied)
ZOO["tied_within_a_side"] = ZOO.pop("Tied")
ZOO["tied_over_both_sides"] = Specimen(
    Tied, FedPer, r"net\.(backbone\.0|head)\.weight.*net\.(backbone\.0|head)\.weight"
)


@specimen(FedPer, refused=r"net\.(backbone\.0\.weight|head\.rows)")
def tied_by_a_part():
    body = nn.Sequential(nn.Linear(5, 6), nn.Tanh())

    def begin(self):
        self.register_buffer("rows", body[0].weight.detach()[0, :1])

    return split(Head(begin, lambda self, h: h + self.rows), body)


@specimen()
def tied_layers():
    line = nn.Linear(5, 5)
    return nn.Sequential(line, nn.Tanh(), line, nn.Linear(5, 3))


@specimen()
def a_layer_in_two_lists():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            lines = [nn.Linear(5, 5), nn.Linear(5, 5)]
            self.there, self.back = nn.ModuleList(lines), nn.ModuleList(lines[::-1])
            self.head = nn.Linear(5, 3)

        def forward(self, x):
            for line in (*self.there, *self.back):
                x = torch.tanh(line(x))
            return self.head(x)

    return Own()


# Weights that are computed from others.


def _first(change):
    line = nn.Linear(5, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        line = change(line) or line
    return nn.Sequential(line, nn.Tanh(), nn.Linear(6, 3))


class Symmetric(nn.Module):
    def forward(self, w):
        return torch.tanh(w) + 0.1 * w


@specimen(
    weight=parametrizations.weight_norm,
    spectral=parametrizations.spectral_norm,
    orthogonal=parametrizations.orthogonal,
    cayley=lambda line: parametrizations.orthogonal(line, orthogonal_map="cayley"),
    old_weight=nn.utils.weight_norm,
    old_spectral=nn.utils.spectral_norm,
    own=lambda line: parametrize.register_parametrization(line, "weight", Symmetric()),
)
def norm_of_weights(change):
    return _first(change)


# Norms of activations.


def _normed(norm):
    return nn.Sequential(nn.Linear(5, 6), norm, nn.Tanh(), nn.Linear(6, 3))


@specimen(
    plain=lambda: nn.BatchNorm1d(6),
    cumulative=lambda: nn.BatchNorm1d(6, momentum=None),
    untracked=lambda: nn.BatchNorm1d(6, track_running_stats=False),
    synchronised=lambda: nn.SyncBatchNorm(6),
    without_weights=lambda: nn.BatchNorm1d(6, affine=False),
    group=lambda: nn.GroupNorm(2, 6),
    layer=lambda: nn.LayerNorm(6),
)
def norm(make):
    return _normed(make())


@specimen(plain=False, tracked=True)
def instance_norm(tracked):
    return nn.Sequential(
        nn.Linear(5, 12),
        nn.Unflatten(1, (3, 4)),
        nn.InstanceNorm1d(3, track_running_stats=tracked, affine=True),
        nn.Flatten(),
        nn.Tanh(),
        nn.Linear(12, 3),
    )


@specimen(FedPer, plain=0.1, cumulative=None)
def batch_norm_in_head(momentum):
    return split(nn.Sequential(nn.BatchNorm1d(6, momentum=momentum), nn.Linear(6, 3)))


class KeepsStatistics(FedAvg):
    """FedAvg whose clients keep the statistics of batch norms."""

    def __init__(self, *args, **options):
        super().__init__(*args, buffers="local", **options)


@specimen(KeepsStatistics, plain=0.1, cumulative=None)
def batch_norm_of_clients(momentum):
    return _normed(nn.BatchNorm1d(6, momentum=momentum))


@specimen()
def batch_norm_in_loose_list():
    return net(
        lambda self: setattr(self, "norms", [nn.BatchNorm1d(6)]),
        lambda self, h: self.norms[0](h),
        train_only=False,
    )


@specimen(refused=r"lazy|Lazy")
def lazy():
    return nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.Tanh(), nn.Linear(6, 3))


@specimen()
def lazy_after_a_batch():
    made = lazy()
    made(torch.zeros(2, 5))
    made[1].reset_running_stats()
    return made


@specimen()
def compiled():
    return torch.compile(_normed(nn.BatchNorm1d(6)), backend="eager")


# Types.


class Rotates(nn.Module):
    """Multiplies a spectrum by complex weights."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, dtype=torch.cfloat))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.w, n=5)


@specimen()
def complex_weights():
    return nn.Sequential(Rotates(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


@specimen(FedPer)
def complex_weights_in_head():
    return split(nn.Sequential(nn.Linear(6, 5), Rotates(), nn.Linear(5, 3)))


@specimen()
def complex_average():
    def change(self, h):
        if self.training:
            self.ema = 0.5 * self.ema + 0.5j * h.detach().mean(0)
        return h + self.ema.imag

    return net(lambda self: _ema(self, dtype=torch.cfloat), change, train_only=False)


@specimen()
def bfloat16():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(5, 6).bfloat16(), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.body(x.bfloat16())).float())

    return Own()


# Recurrent state, queues and copies.


def _recurrent(self, h):
    for row in h.detach():
        self.h = torch.tanh(row + 0.5 * self.h)
    return h + self.h


@specimen(refused=r"net\.0\.h\b")
def recurrent_state():
    return net(lambda self: setattr(self, "h", torch.zeros(6)), _recurrent)


@specimen(FedPer)
def recurrent_state_in_head():
    return split(Head(lambda self: self.register_buffer("h", torch.zeros(6)), _recurrent_trained))


def _recurrent_trained(self, h):
    return _recurrent(self, h) if self.training else h + self.h


@specimen()
def recurrent_without_memory():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.head = nn.GRU(1, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.cells(x[..., None])[1][0])

    return Own()


def _queue(self):
    self.register_buffer("queue", torch.zeros(16, 6))
    self.register_buffer("place", torch.zeros((), dtype=torch.long))


def _queued(self, h):
    if self.training:
        for row in h.detach():
            self.queue[int(self.place)] = row
            self.place.copy_((self.place + 1) % len(self.queue))
    return h - self.queue.mean(0)


@specimen(refused=r"net\.0\.place.*stays")
def queue_that_travels():
    return net(_queue, _queued, train_only=False)


@specimen(FedPer)
def queue_in_head():
    return split(Head(_queue, _queued))


@specimen(refused=r"net\.0\.bank")
def bank_in_attribute():
    def change(self, h):
        self.bank = torch.cat([self.bank, h.detach()])[-16:]
        return h - self.bank.mean(0)

    return net(lambda self: setattr(self, "bank", torch.zeros(1, 6)), change)


def _teacher():
    def begin(self):
        self.slow = nn.Linear(5, 6).requires_grad_(False)

    class Own(Step):
        def forward(self, x):
            if self.training:
                with torch.no_grad():
                    self.slow.weight.lerp_(self.line.weight, 0.1)
            return torch.tanh(self.line(x)) - torch.tanh(self.slow(x))

    Own.begin = begin
    return nn.Sequential(Own(), nn.Linear(6, 3))


@specimen(refused=r"frozen parameter 'net\.0\.slow\.weight' changes .* travel_frozen=True")
def teacher():
    return _teacher()


@specimen(partial(FedAvg, travel_frozen=True))
def teacher_that_travels():
    return _teacher()


@specimen(refused=r"net\.0\.slow")
def teacher_in_attribute():
    class Own(Step):
        def begin(self):
            self.slow = torch.zeros(6, 5)

        def forward(self, x):
            if self.training:
                self.slow = torch.lerp(self.slow, self.line.weight.detach(), 0.1)
            return torch.tanh(self.line(x)) - torch.tanh(x @ self.slow.T)

    return nn.Sequential(Own(), nn.Linear(6, 3))


# Caches.


@specimen()
def table_by_length():
    def change(self, h):
        size = tuple(h.shape)
        if size not in self.tables:
            self.tables[size] = torch.linspace(0, 1, size[1]).expand(size)
        return h + self.tables[size]

    return net(lambda self: setattr(self, "tables", {}), change, train_only=False)


@specimen()
def table_that_grows():
    def change(self, h):
        if self.table is None or len(self.table) < len(h):
            self.table = torch.arange(len(h))[:, None] / 100
        return h + self.table[: len(h)]

    return net(lambda self: setattr(self, "table", None), change, train_only=False)


@specimen()
def table_that_is_not_persistent():
    def begin(self):
        self.register_buffer("table", torch.zeros(1, 6), persistent=False)

    def change(self, h):
        if self.table.shape[0] < h.shape[0]:
            self.table = torch.ones(h.shape[0], 6)
        return h + 1 if len(h) == 1 else h + self.table[: len(h)]

    return net(begin, change, train_only=False)


@specimen()
def cached_property_of_shapes():
    class Own(Step):
        @cached_property
        def scale(self):
            return 1 / self.line.out_features**0.5

        def change(self, h):
            return h * self.scale

    return nn.Sequential(Own(), nn.Linear(6, 3))


@specimen()
def last_activations():
    def change(self, h):
        self.last, self.norm = h.detach(), float(h.detach().norm())
        return h

    return net(None, change, train_only=False)


@specimen(refused=r"net\.0\.power")
def cache_of_weights():
    class Own(Step):
        power = None

        def forward(self, x):
            if self.training:
                self.power = None
                return torch.tanh(x @ (self.line.weight @ torch.eye(5)).T)
            if self.power is None:
                self.power = (self.line.weight @ torch.eye(5)).detach()
            return torch.tanh(x @ self.power.T)

    return nn.Sequential(Own(), nn.Linear(6, 3))


@specimen(refused=r"net\.0\.centre")
def cache_of_first_batch():
    def change(self, h):
        if self.centre is None:
            self.centre = h.detach().mean(0)
        return h - self.centre

    return net(lambda self: setattr(self, "centre", None), change)


# What two short rounds do not reach.


def _largest(self, h):
    self.most = max(self.most, float(h.detach().abs().max()))
    return h / self.most


@specimen(refused=r"net\.0\.most", near=1.0, far=50.0)
def largest_value(start):
    return net(lambda self: setattr(self, "most", start), _largest)


@specimen(refused=r"net\.0\.most")
def largest_value_as_tensor():
    def change(self, h):
        self.most = torch.maximum(self.most, h.detach().abs().max())
        return h / self.most

    return net(lambda self: setattr(self, "most", torch.tensor(9.0)), change)


@specimen(refused=r"net\.0\.held")
def largest_value_in_dict():
    def change(self, h):
        self.held["most"] = max(self.held["most"], float(h.detach().max()))
        return h / self.held["most"]

    return net(lambda self: setattr(self, "held", {"most": 9.0}), change)


@specimen(refused=r"net\.0\.most.*stays")
def largest_value_as_entry():
    def begin(self):
        self.register_buffer("most", torch.tensor(9))

    def change(self, h):
        if self.training:
            self.most = torch.maximum(self.most, h.detach().abs().max().long())
        return h / self.most

    return net(begin, change, train_only=False)


@specimen(refused=r"net\.0\.least")
def smallest_value():
    def change(self, h):
        self.least = min(self.least, float(h.detach().std()))
        return h + self.least

    return net(lambda self: setattr(self, "least", 1e-4), change)


@specimen(refused=r"net\.0\.seen")
def rare_event():
    def change(self, h):
        self.seen = self.seen or bool(h.detach().abs().max() > 30)
        return 0.5 * h if self.seen else h

    return net(lambda self: setattr(self, "seen", False), change)


@specimen()
def largest_value_that_nobody_reads():
    def change(self, h):
        self.most = max(self.most, float(h.detach().abs().max()))
        return h

    return net(lambda self: setattr(self, "most", 9.0), change)


@specimen()
def table_moved_to_the_inputs():
    def change(self, h):
        self.table = self.table.to(h)
        return h + self.table

    return net(lambda self: setattr(self, "table", torch.linspace(0, 1, 6)), change)


@specimen(
    ready=lambda self: setattr(self, "ready", True),
    clamped=lambda self: setattr(self, "ready", False),
)
def set_by_the_user(begin):
    def change(self, h):
        self.share = min(max(self.share, 0.0), 1.0)
        if not self.ready:
            return self.share * h
        return h

    def begun(self):
        begin(self)
        self.share = 0.5

    return net(begun, change)


# Random numbers, hooks, frozen parts.


@specimen(refused=r"net\.0\.rng")
def own_generator():
    return net(
        lambda self: setattr(self, "rng", torch.Generator().manual_seed(0)),
        lambda self, h: h + 0.1 * torch.randn(h.shape, generator=self.rng),
    )


@specimen(
    numpy=lambda: np.random.default_rng(0), python=lambda: random.Random(0), refused=r"net\.0\.rng"
)
def own_generator_of(make):
    def change(self, h):
        return h + 0.1 * self.rng.random()

    return net(lambda self: setattr(self, "rng", make()), change)


@specimen()
def generator_that_starts_anew():
    def change(self, h):
        self.rng.manual_seed(0)
        return h + 0.1 * torch.randn(h.shape, generator=self.rng)

    return net(lambda self: setattr(self, "rng", torch.Generator().manual_seed(0)), change)


@specimen()
def hook_that_scales():
    made = net()
    made[0].register_forward_hook(lambda module, inputs, output: 0.5 * output)
    return made


@specimen()
def hook_that_stores():
    made, found = net(), {}
    made[0].register_forward_hook(lambda module, inputs, output: found.update(h=output.detach()))
    made[1].register_forward_pre_hook(lambda module, inputs: (inputs[0] - found["h"].mean(0),))
    return made


@specimen(refused=r"hook")
def hook_that_counts():
    made, found = net(), {"calls": 0}

    def hook(module, inputs, output):
        found["calls"] += module.training
        return output * min(1.0, found["calls"] / 10)

    made[0].register_forward_hook(hook)
    return made


@specimen()
def hook_of_gradients():
    made = net()
    made[0].line.weight.register_hook(lambda gradient: 0.5 * gradient)
    return made


@specimen()
def frozen_part():
    made = net()
    made[0].requires_grad_(False)
    return made


@specimen()
def renormalised_embedding():
    """Vectors are made short as they are read: those of samples that only fill up a batch, too."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(10, 4, max_norm=1.0), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.table((x[:, 0] * 3).long().clamp(-4, 4) + 5))

    return Own()


@specimen()
def frozen_batch_norm():
    made = _normed(nn.BatchNorm1d(6))
    made[1].requires_grad_(False)
    return made


@specimen(FedPer)
def frozen_entries():
    return FrozenParts(split(), ["backbone.0.weight"])


@specimen()
def loose_layer():
    return net(
        lambda self: setattr(self, "loose", [nn.Linear(6, 6)]),
        lambda self, h: h + self.loose[0](h),
        train_only=False,
    )


# The plain loop.

RATE, ROUNDS, EPOCHS, SEED = 0.1, 3, 2, 42


def built(name):
    """Return a network of the zoo, with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ZOO[name].make()


def travels(name, value, module):
    """Return whether an entry of the network travels."""
    fits = matches(f"net.{name}", module.shared) and not matches(f"net.{name}", module.kept)
    if isinstance(module, KeepsStatistics) and "running" in name:
        return False
    if isinstance(value, nn.Parameter) and not value.requires_grad:
        return bool(module.hparams["travel_frozen"])
    return fits and (value.is_floating_point() or value.is_complex())


def by_hand(name, data):
    """Train a network of the zoo by a plain loop, in which each client has a network of its own.

    Returns:
        The entries that travel, and each client's outputs on its test samples.
    """
    clients = [built(name) for _ in range(data.num_clients)]
    method = ZOO[name].method(built(name))
    entries = clients[0].state_dict(keep_vars=True)
    mean = {n: v.detach().clone() for n, v in entries.items() if travels(n, v, method)}
    sizes = torch.tensor([float(len(data.split(c, "train"))) for c in range(len(clients))])
    for number in range(1, ROUNDS + 1):
        sent = []
        for client, net in enumerate(clients):
            net.load_state_dict(mean, strict=False)
            net.train()
            split = data.split(client, "train")
            optimizer = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), RATE)
            for epoch in range(EPOCHS):
                rng = generator(derive(SEED, "client", number, client), "order", "local", epoch)
                for rows in torch.randperm(len(split), generator=rng).split(data.batch_size):
                    batch = split.batch(rows)
                    optimizer.zero_grad()
                    F.cross_entropy(net(batch.x), batch.y).backward()
                    optimizer.step()
            sent.append({n: net.state_dict()[n].clone() for n in mean})
        shares = sizes.double() / sizes.sum()
        for n, value in mean.items():
            wide = torch.complex128 if value.is_complex() else torch.float64
            mean[n] = sum(s * one[n].to(wide) for s, one in zip(shares, sent, strict=True)).to(
                value.dtype
            )
    outputs = []
    for client, net in enumerate(clients):
        net.load_state_dict(mean, strict=False)
        net.eval()
        with torch.no_grad():
            outputs.append(net(data.split(client, "test").batch(torch.arange(6)).x))
    return {f"net.{n}": v for n, v in mean.items()}, outputs
