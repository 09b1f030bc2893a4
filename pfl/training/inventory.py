"""A check before a run: what training changes in a module travels, stays, or matters to nobody.

Every job starts from the initial values, from what the client kept and from the broadcast. So what
a network remembers beside them is lost, or passes from one client to the next, as engines happen to
share copies. Whether code remembers anything is not asked of its declarations: two short rounds
are played on copies, and all that can be reached from the module is compared. What they do not
reach, such as a largest value that begins above all others, is tried with weights and inputs of
other sizes.

A cache may change, too. It is told from a memory by what it does: a client's numbers are the same
with what other clients left behind as on a fresh copy.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pfl.core.batch_norms import batch_norms, read_counters
from pfl.core.client import ClientModule
from pfl.core.constants import equal_copies, is_frozen, lazy_copy
from pfl.core.data_view import stand_in
from pfl.core.devices import on_host
from pfl.core.failure import error_line, failure_line
from pfl.core.seeds import everything_scoped
from pfl.core.server import Server
from pfl.core.state import as_real, averages, equal, flattened, matches
from pfl.core.types import Job, Plan, State
from pfl.training import client_round
from pfl.training.context import Context
from pfl.training.contexts import Contexts
from pfl.training.declaration import MethodError, wrapped
from pfl.training.excerpt import excerpt, scaled
from pfl.training.own_scores import OwnScorer
from pfl.training.reach import NOT_PERSISTENT, CopyError, Leaf, Place, Reach, lengthened
from pfl.training.server_round import Coordinator
from pfl.training.trial import largest_difference, of_pairs, one_by_one, played

# By the type of numbers: largest difference of equal computations, relative to the largest value.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-2}
# Counts at which code may begin to do something else; a play adds two or more.
COUNTS = (
    *(0, 2, 4, 6, 8, 10, 14, 18, 22, 30, 48, 62, 98, 126, 198, 254, 298, 498, 510),
    *(998, 1022, 1998, 4998, 9998, 99_998, 999_998, 10**9),
)

# Factors of weights and inputs, for what two short rounds do not reach.
SIZES = (1e3, 0.0)
# Factor of the weights with which the second client begins.
_LATER = 1.25

_UNSEEDED = (
    "which no seed of the run sets: equal runs will differ. Take a layer of dropout, Phase.noise, "
    "or a generator of pfl.core.seeds"
)

# What computes with entries, where a method has its own.
_COMPUTING = ("plan", "adapt", "upload", "receive", "personalise", "server")
_BASE = {name: getattr(ClientModule, name) for name in _COMPUTING}

# Numbers of one play by name; an error is a text.
Numbers = Mapping[str, Tensor | str]


def check_states(contexts: Contexts) -> None:
    """Refuse a module by :func:`check_state`, with each of its networks.

    Raises:
        MethodError: See there.
    """
    for context in contexts.each():
        check_state(context)


def check_state(context: Context) -> None:
    """Refuse a module whose training changes something that neither travels nor stays.

    A warning says if the rounds cannot be played, and what LightningModules with steps of their own
    remember beside their state dict, which begins anew with each job. Numbers of the module, random
    streams and attributes are as before. Where samples cannot be read, only storages under two
    names are looked for; a site plays the rounds.

    Raises:
        MethodError: There is such a thing, or two entries are one tensor, of which one stays and
            the other does not; the message names it, and the line that would declare it.
    """
    _check_roles(context)
    _check_complex(context)
    if stand_in(context.data):
        return
    with _undisturbed(context):
        told = _check_played(context)
    if told:
        warnings.warn(told, stacklevel=2)


def _check_roles(context: Context) -> None:
    """Refuse a storage under two names, one that stays with a client and one that does not."""
    module, entries = context.module, context.entries
    travels, stays = set(module.shared_names()), set(module.kept_names())
    for parts in _storages(entries):
        # The furthest end of what stays, and of what does not, so far.
        ends = {True: (0, ""), False: (0, "")}
        for start, end, name in sorted(parts):
            furthest, other = ends[name not in stays]
            if start < furthest:
                home, away = (name, other) if name in stays else (other, name)
                does = "travels" if away in travels else "does not"
                raise MethodError(
                    f"{away!r} and {home!r} are one tensor, but {home!r} stays with the client and "
                    f"{away!r} {does}: {type(module).__name__} cannot give it both roles. Give "
                    "each part weights of its own, or take a method that shares or keeps both"
                )
            ends[name in stays] = max(ends[name in stays], (end, name))


def _check_complex(context: Context) -> None:
    """Refuse complex numbers where a method computes with entries otherwise than with their parts.

    Squares, distances and signs of complex numbers are others than those of pairs of real ones. So
    two rounds are played with both.
    """
    module = context.module
    found = [name for name, value in context.entries.items() if value.is_complex()]
    own = [name for name in _COMPUTING if getattr(type(module), name) is not _BASE[name]]
    if not (found and own):
        return
    with _undisturbed(context), everything_scoped(0, context.fabric.device):
        try:
            pairs = dict(played(excerpt(of_pairs(context), double=True), one_by_one))
        except Exception:
            # The network itself needs complex entries, so that there is nothing to compare with.
            pairs = {}
        try:
            whole = dict(played(excerpt(context, double=True), one_by_one))
            apart = largest_difference(whole, pairs)
        except Exception as error:
            apart = error_line(error)
    if apart is not None:
        raise MethodError(
            f"{type(module).__name__} computes with entries in its own {' and '.join(own)}, and "
            f"{found[0]!r} has complex numbers, with which it does something else than with pairs "
            f"of real ones ({apart}): take a method that only averages or keeps, or hold the pairs "
            "(torch.view_as_real)"
        )


def _storages(entries: State) -> Iterable[list[tuple[int, int, str]]]:
    """Return the first and the last address of each entry, by the storage that holds them."""
    found: dict[tuple[torch.device, int], list[tuple[int, int, str]]] = {}
    for name, value in entries.items():
        if value.numel():
            pairs = zip(value.shape, value.stride(), strict=True)
            span = sum((length - 1) * stride for length, stride in pairs) + 1
            # Addresses within a storage, as some devices tell no others.
            start = int(value.storage_offset()) * value.element_size()
            place = value.device, value.untyped_storage()._cdata
            end = start + span * value.element_size()
            found.setdefault(place, []).append((start, end, name))
    return found.values()


@contextmanager
def _undisturbed(context: Context) -> Iterator[None]:
    """Give back the random streams, and what code outside of the module remembers."""
    before = random.getstate(), np.random.get_state()
    outside = Reach(context.module)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        outside.restore()
        outside.give_back(Reach(context.module))
        random.setstate(before[0])
        np.random.set_state(before[1])


def _check_played(context: Context) -> str:
    """Refuse what is remembered in the wrong place; return what must be told, or nothing."""
    try:
        used = _Player(context)
        numbers = used.play(used.first)
    except CopyError as error:
        raise MethodError(f"{error}{_then(context, error.name, False)}") from error
    except Exception as error:
        # The run may go on, as with larger batches; otherwise it says why, with the client.
        return (
            f"{type(context.module).__name__} was not checked for what it remembers in the wrong "
            "place, because two short rounds on a few samples cannot be played: "
            f"{failure_line(error) or error_line(error)}"
        )
    forgotten = used.given_back()
    _check_kept(context, used)
    once = used.reach()
    if used.start.has_code:
        used.stretch(used.first)
    stretched = used.reach()
    if used.changed or used.places(used.start, stretched):
        _check_changed(context, used, once, stretched)
    method, told = type(context.module).__name__, []
    if used.drew and not context.own_nets:
        told.append(f"{method} draws from {' and '.join(sorted(used.drew))}, {_UNSEEDED}")
    elif not alike(used.replay(used.first), numbers) and on_host(context.fabric.device):
        told.append(
            f"{method} gives other numbers each time that it is played from the same start: it "
            f"draws from a source of its own or remembers something out of sight, {_UNSEEDED}"
        )
    if forgotten:
        told.append(_forgotten_text(context, used, forgotten))
    return "; ".join(filter(None, told))


def _check_changed(context: Context, used: _Player, once: Reach, stretched: Reach) -> None:
    """Refuse something that has changed and neither travels nor stays, if numbers depend on it."""
    used.replay(used.first)
    twice = used.reach()
    grown = used.places(once, twice)
    changed = used.places(used.start, once) | used.places(used.start, stretched) | grown
    fresh = _Player(context, used)
    right = fresh.replay(fresh.second)
    kept = {name: used.values[name] for name in used.changed}
    fault = None
    if changed and not alike(used.replay(used.second), right):
        name = _culprit(context, used, [*grown, *changed], right)
        fault = _place_text(context, name, changed[name], used.start)
    if fault is None:
        fault = _entry_fault(context, used, kept, right)
    if fault is None:
        fault = _count_fault(context, used, once, twice, right)
    if fault is not None:
        raise MethodError(fault)


def _forgotten_text(context: Context, used: _Player, names: Mapping[str, Place]) -> str:
    """Return what a job would read of what a LightningModule remembered before; or nothing."""
    right = used.replay(used.second)

    def matters(some: Sequence[str]) -> bool:
        other = _Player(context, used)
        other.remember(some)
        other.replay(other.first)
        return not alike(other.replay(other.second), right)

    if not matters([*names]):
        return ""
    # Most often it is one of them.
    found, *others = names
    if others:
        found = next((name for name in names if matters([name])), found)
    owner, method = type(names[found].owner).__name__, type(context.module).__name__
    then = _then(context, found, _whole(names[found]))
    return (
        f"{names[found].what} {found!r} changes while {method} trains or tests, and what follows "
        f"would depend on it; but it is no entry of the state dict, so that {owner} finds it as it "
        "was built in each round and in each test. To keep it, write self.register_buffer("
        f'"{found.rpartition(".")[2]}", ...) in {owner}{then}'
    )


def _check_kept(context: Context, used: _Player) -> None:
    """Refuse an entry that the server sends over the value that the client kept, which is lost.

    A method with a ``receive`` of its own, or whose server chooses what it sends, may need the
    value in another round.
    """
    module, sent, kept = context.module, used.first.broadcast, used.kept
    chooses = type(module.server()).broadcast is not Server.broadcast
    if chooses or type(module).receive is not ClientModule.receive:
        return
    both = [name for name in kept if sent is not None and name in sent.shared]
    if not both:
        return
    others = {name: value for name, value in kept.items() if name not in both}
    found = [used.replay(replace(used.first, kept=one)) for one in (kept, others)]
    if alike(*found):
        raise MethodError(
            f"{type(module).__name__} names the entry {both[0]!r} in both shared and kept, and the "
            "value that a client kept changes nothing, as what the server sends replaces it: leave "
            "it out of one of them"
        )


def play(context: Context, job: Job | None = None) -> tuple[Numbers, Job]:
    """Return the numbers of a client's short round and tests, on a copy, and its job.

    Args:
        context: The context.
        job: The job to play; ``None`` makes that of the second client.
    """
    player = _Player(context)
    job = job or player.first
    return player.replay(job), job


class _Player:
    """A small copy of a context, which plays jobs of two clients.

    Attributes:
        start: What could be reached before the first job.
        first: The first client's job.
        second: The job of another client in the same round.
        changed: Entries that neither travel nor stay, and that functions of the plan, ``forward``
            or an optimiser changed.
        values: The values that they had then.
        kept: What the last client kept.
        drew: Sources of random numbers that no seed of a run sets, from which a play drew.

    Args:
        context: The context.
        played: A player whose jobs are used.
    """

    def __init__(self, context: Context, played: _Player | None = None) -> None:
        if played is not None:
            played.start.restore(cached=False)
        self.start: Reach
        self._context = small = excerpt(context)
        module = small.module
        carried = {*module.shared_names(), *module.kept_names()}
        counters = {f"{name}.num_batches_tracked" for name in batch_norms(module)}
        counters -= read_counters(module)
        self._watched = {n for n, _ in module.named_buffers()} | {*small.template}
        self._watched -= carried | counters
        self.changed: set[str] = set()
        self.values: State = {}
        self.kept: State = {}
        self.drew: set[str] = set()
        self._trained: Reach | None = None
        small.plan, small.adapt = self._watching(small.plan), self._watching(small.adapt)
        self.start = Reach(module)
        if played is None:
            coordinator = Coordinator(small, rounds=2, seed=0)
            state = coordinator.start()
            self.first, second = (
                coordinator.job(state, client, 1, {}, ("test",)) for client in (1, 0)
            )
            self.second = self._later(second)
        else:
            self.first, self.second = played.first, played.second

    def _later(self, job: Job) -> Job:
        """Return a job whose client begins with other weights, as in a later round."""

        def moved(values: State) -> State:
            return {n: v * _LATER if averages(v) else v for n, v in values.items()}

        small, sent = self._context, job.broadcast
        weights = small.trainable & {*small.module.kept_names(job.info)}
        if sent is not None:
            sent = replace(sent, shared=moved(sent.shared))
        kept = moved({name: small.template[name] for name in weights})
        return replace(job, broadcast=sent, kept=kept)

    def reach(self) -> Reach:
        """Return what the next job finds."""
        self._context.load({})
        return Reach(self._context.module)

    def given_back(self) -> dict[str, Place]:
        """Return attributes of LightningModules with own steps that a round changes, and ends."""
        if self._trained is None:
            return {}
        left = self.places(self.start, self.reach())
        return {
            name: place
            for name, place in self.places(self.start, self._trained).items()
            if name not in left and place.what != NOT_PERSISTENT and place.owner is not None
        }

    def remember(self, names: Iterable[str]) -> None:
        """Let jobs find some attributes as the last job left them."""
        split = (name.rpartition(".") for name in names)
        module = self._context.module
        self._context.remembered = {(module.get_submodule(path), leaf) for path, _, leaf in split}

    def stretch(self, job: Job) -> None:
        """Play a job with weights and inputs of other sizes; see :data:`SIZES`."""
        changed, values = set(self.changed), dict(self.values)
        for size in SIZES:
            with scaled(self._context, size):
                sent = job.broadcast
                if sent is not None:
                    start = self._context.template
                    shared = {name: start.get(name, value) for name, value in sent.shared.items()}
                    sent = replace(sent, shared=shared)
                self.replay(replace(job, broadcast=sent))
        self.changed |= changed
        self.values |= values

    def places(self, one: Reach, other: Reach) -> dict[str, Place]:
        """Return the places that differ between two moments."""
        return {
            name: place
            for name, place in other.places.items()
            if one.places.get(name) != place and not name.startswith("_")
        }

    def play(self, job: Job) -> Numbers:
        """Play a test, a client's round and a test; return all numbers."""
        small = self._context
        with everything_scoped(0, small.fabric.device):
            streams = _default_streams()
            before = self._test(job)
            result = client_round.train(small, job)
            if small.own_nets:
                self._trained = Reach(small.module)
            self._compare({n: v for n, v in small.template.items() if n in small.trainable})
            after = self._test(job)
            self.drew |= {who for who, now in _default_streams().items() if now != streams[who]}
        self.kept = result.kept
        upload = result.upload
        parts: dict[str, State] = {
            "upload": {} if upload is None else {**upload.shared, **upload.extra},
            "kept": result.kept,
            "losses": {n: torch.tensor(v) for n, v in {**result.train, **result.logged}.items()},
            "tested": {"before": before, "after": after},
        }
        return {f"{part} {name}": value for (part, name), value in flattened(parts).items()}

    def replay(self, job: Job) -> Numbers:
        """Play a job; an error is its result."""
        try:
            return self.play(job)
        except Exception as error:
            return {"error": type(error).__name__}

    def taking(self, name: str, other: _Player) -> bool:
        """Take an attribute or buffer of another player's module; return whether it has one."""
        path, _, leaf = name.rpartition(".")
        ours, theirs = (one._context.module.get_submodule(path) for one in (self, other))
        for table, source in ((ours._buffers, theirs._buffers), (vars(ours), vars(theirs))):
            if leaf in source:
                table[leaf] = copy.deepcopy(source[leaf])
                return True
        return False

    def carrying(self, values: State, job: Job) -> Numbers:
        """Play a job that starts with other values of what neither travels nor stays."""
        small, template = self._context, self._context.template
        small.load({})
        outside = {n: small.module.get_buffer(n) for n in values if n not in template}
        before = {name: buffer.data for name, buffer in outside.items()}
        try:
            for name, buffer in outside.items():
                buffer.data = values[name].clone()
            small.template = {**template, **{n: v for n, v in values.items() if n in template}}
            return self.replay(job)
        finally:
            small.template = template
            small.load({})
            for name, buffer in outside.items():
                buffer.data = before[name]

    def _test(self, job: Job) -> Tensor:
        """Return the outputs of a test, or the scores of a module that tests itself."""
        client_round.become_tested(self._context, job)
        small, before = self._context, self._held()
        if isinstance(small.scorer, OwnScorer):
            found = client_round.on_splits(small, job.info.client, ("test",)).get("test", {})
            outputs = torch.tensor([*cast(Mapping[str, float], found).values()])
        else:
            # Not in inference mode: what a cache holds from there, no training could use.
            with torch.no_grad():
                split = small.data.split(job.info.client, "test")
                outputs, _ = client_round.outputs(small, split)
        self._compare(before)
        return outputs

    def _held(self) -> State:
        entries = {**self._context.entries, **dict(self._context.module.named_buffers())}
        held = {name: entries[name] for name in self._watched if name in entries}
        # Most often what is constant is large, and nothing writes to it.
        return {
            name: value.detach().clone() if name in self._context.template else lazy_copy(value)
            for name, value in held.items()
        }

    def _compare(self, before: State) -> None:
        for name, value in self._held().items():
            if name in before and not equal_copies(before[name], value):
                self.changed.add(name)
                self.values[name] = value

    def _watching(self, plan: Plan) -> Plan:
        def watch(function: Callable[..., Any], name: str, who: str) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:  # noqa: ANN401
                before = self._held()
                result = function(*arguments)
                self._compare(before)
                return result

            return call

        return wrapped(plan, watch) if self._watched else plan


def _default_streams() -> Mapping[str, object]:
    """Return the states of the default streams of Python and NumPy."""
    kind, numbers, *rest = cast(tuple[Any, ...], np.random.get_state())
    states = {"Python's": random.getstate(), "NumPy's": (kind, numbers.tobytes(), *rest)}
    return {f"{who} default stream": state for who, state in states.items()}


def _culprit(context: Context, used: _Player, names: Sequence[str], right: Numbers) -> str:
    """Return the place that alone makes another client's numbers differ, or else the first."""
    for name in dict.fromkeys(names) if len({*names}) > 1 else ():
        fresh = _Player(context, used)
        with suppress(Exception):  # What is outside of the module has no owner.
            if fresh.taking(name, used) and not alike(fresh.replay(used.second), right):
                return name
    return names[0]


def _entry_fault(context: Context, used: _Player, values: State, right: Numbers) -> str | None:
    """Return a refusal of an entry whose changes matter, but are forgotten after the round."""
    template, probes = context.template, dict[str, list[Tensor]]()
    for name, value in values.items():
        right_form = template.get(name, value)
        if (value.shape, value.dtype) == (right_form.shape, right_form.dtype):
            counts = value.numel() == 1 and not averages(value)
            filled = [torch.full_like(value, n) for n in _counts(value.dtype)] if counts else []
            probes[name] = [value, *filled]
    # Most often nothing reads them, which one play with all of them shows.
    if not probes or alike(
        used.carrying({name: found[0] for name, found in probes.items()}, used.second), right
    ):
        probes = {name: found[1:] for name, found in probes.items()}
    for name, found in probes.items():
        if any(not alike(used.carrying({name: one}, used.second), right) for one in found):
            if name in template:
                return _entry_text(context, name, values[name])
            return _place_text(context, name, used.start.places[name], used.start)
    return None


def _counts(dtype: torch.dtype) -> Sequence[int]:
    """Return the counts that an integer type has."""
    largest = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    return [n for n in COUNTS if n <= largest]


def _count_fault(
    context: Context, used: _Player, once: Reach, twice: Reach, right: Numbers
) -> str | None:
    """Return a refusal of something that grows with each batch, if code looks at how far it is."""
    for name in used.places(once, twice).keys() & once.places.keys():
        before, after = once.places[name].leaves, twice.places[name].leaves
        # What is new in a list or a dictionary counts by its number.
        for key in before.keys() & after.keys():
            if before[key] == after[key]:
                continue
            for value in _probes(after[key]):
                # Each play may replace what holds the value.
                now = used.reach().places.get(name)
                if now is None or key not in now.leaves or (put := now.leaves[key].put) is None:
                    break
                put(value)
                if not alike(used.replay(used.second), right):
                    return _place_text(context, name, twice.places[name], used.start)
    return None


def _probes(leaf: Leaf) -> Sequence[Any]:
    """Return values that something may have after many batches."""
    value = leaf.value
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return COUNTS
    if isinstance(value, float):
        return [float(n) for n in COUNTS]
    if isinstance(value, Tensor) and value.numel() == 1:
        return [torch.full_like(value, n) for n in COUNTS]
    if isinstance(value, np.ndarray) and value.size == 1:
        return [np.full_like(value, n) for n in COUNTS]
    if isinstance(value, np.ndarray):
        return [value * 100, np.zeros_like(value)]
    if isinstance(value, Tensor):
        return [value.detach() * 100, torch.zeros_like(value)]
    longer = lengthened(value)
    return [] if longer is None else [longer]


def _place_text(context: Context, name: str, place: Place, start: Reach) -> str:
    """Return a refusal of an attribute, buffer, hook or variable, which is not as at the start."""
    module = context.module
    method = type(module).__name__
    part = ""
    if place.owner is None and name in start.places:
        before = start.places[name].leaves
        changed = [key for key, leaf in place.leaves.items() if before.get(key) != leaf]
        part = f" ({changed[0].strip()})" if changed and changed[0].strip() else ""
    text = (
        f"{place.what} {name!r}{part} changes while {method} trains or tests, and what follows "
        "depends on it; but it is no entry of the state dict, so that one client would leave it to "
        "the next, or not, as the engine shares copies: "
    )
    if place.owner is None:
        return f"{text}hold it in a buffer of the module (self.register_buffer)"
    leaf = name.rpartition(".")[2]
    if place.what == NOT_PERSISTENT and is_frozen(module, name):
        return (
            f"the frozen parameter {name!r} changes while {method} trains or tests, and what "
            "follows depends on it; but a parameter with requires_grad=False is constant: give "
            f"travel_frozen=True as an argument of {method}, so that it travels and is averaged, "
            f"or {_line(context, name)}, so that it stays with the client"
        )
    if place.what == NOT_PERSISTENT:
        return f"{text}register it with persistent=True{_then(context, name, _whole(place))}"
    value = next(iter(place.leaves.values())).value
    if isinstance(value, torch.Generator | random.Random | np.random.Generator):
        return (
            f"{text}draw from a generator that each forward makes anew, declare Phase.noise, or "
            "take a layer of dropout"
        )
    return (
        f'{text}write self.register_buffer("{leaf}", ...) in {type(place.owner).__name__}'
        f"{_then(context, name, _whole(place))}"
    )


def _whole(place: Place) -> bool:
    """Return whether a place holds whole numbers, which cannot be averaged."""
    values = [leaf.value for leaf in place.leaves.values()]
    return all(not averages(v) if isinstance(v, Tensor) else isinstance(v, int) for v in values)


def _then(context: Context, name: str, whole: bool) -> str:
    """Return what becomes of a buffer of this name, and the line that makes a client keep it."""
    module, line = context.module, _line(context, name)
    if matches(name, (*module.kept, *module.stays)):
        return "; it then stays with the client"
    if matches(name, module.shared) and not whole:
        return f"; it then travels and is averaged, or stays with the client by {line}"
    return f" and {line}, so that it stays with the client"


def _line(context: Context, name: str) -> str:
    """Return the line that makes each client keep an entry."""
    method = type(context.module).__name__
    if name.startswith("net."):
        return f'stays=["{name.removeprefix("net.")}"] as an argument of {method}'
    kept = ", ".join(repr(one) for one in (*context.module.kept, name))
    return f"kept = ({kept},) in a subclass of {method}"


def _entry_text(context: Context, name: str, value: Tensor) -> str:
    module = context.module
    method = type(module).__name__
    whole = not averages(value)
    why = "integers are not averaged, so that it does not travel" if whole else "it does not travel"
    if not matches(name, module.shared):
        why = "it does not travel"
    return (
        f"the entry {name!r} changes while {method} trains or tests, and what follows depends on "
        f"it; but {why}, and no client keeps it, so each round would start from its initial value: "
        f"give {_line(context, name)}"
    )


def alike(one: Numbers, other: Numbers) -> bool:
    """Return whether two plays gave the same numbers."""
    if one.keys() != other.keys():
        return False
    for name, value in one.items():
        right = other[name]
        if isinstance(value, str) or isinstance(right, str):
            if value != right:
                return False
        elif not _close(value, right):
            return False
    return True


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if equal(one, other):
        return True
    if not averages(one):
        return False
    a, b = as_real(one), as_real(other)
    if not torch.equal(a.isnan(), b.isnan()):
        return False
    a, b = a.nan_to_num(), b.nan_to_num()
    most = TOLERANCES.get(a.dtype, 0.0) * float(a.abs().max())
    return float((a - b).abs().max()) <= most
