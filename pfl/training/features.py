"""Features of a frozen backbone, computed once for each sample.

Where a network begins with constant parts, these give the same for a sample each time. It is
computed once, kept beside the split, and passed through from then on. What such parts are is seen
in what they do: on a few samples, in training and in tests. Whether the method reads its data only
through them is seen in two short rounds, which must have the same numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from pfl.core import per_client
from pfl.core.constants import frozen_size
from pfl.core.data import ClientSplit, members
from pfl.core.data_view import DataView, stand_in
from pfl.core.state import constants, each
from pfl.core.types import NO_CLIENT, Batch, DataSplit, Inputs, Split
from pfl.disk.room import Room
from pfl.training.context import Context
from pfl.training.contexts import Contexts
from pfl.training.excerpt import excerpt
from pfl.training.inventory import alike, play

MOST = 2**30
"""Bytes of features up to which they are kept in memory, and beyond which in files."""
_FEW = 4
# Prefixes that are tried, from the longest.
_TRIED = 8


class _NotCachedError(Exception):
    """There is a reason to compute features in each step."""


def hold_features(contexts: Contexts, scope: ExitStack, folder: Path | None = None) -> str:
    """Compute the features of a frozen backbone once, in the data of all contexts.

    Args:
        contexts: The contexts; engines are given them afterwards.
        scope: Gives the module its own computation back.
        folder: Folder of files for features that are too large for memory; ``None`` uses the
            system's folder for temporary files.

    Returns:
        What the header says: where features begin, or why there are none; empty if nothing is
        frozen.
    """
    if not frozen_size(contexts.module.net):
        return ""
    try:
        return _hold(contexts, scope, folder)
    except _NotCachedError as error:
        return f"computed in each step: {error}"


def _hold(contexts: Contexts, scope: ExitStack, folder: Path | None) -> str:
    context, data = contexts.first, contexts.data
    _check_data(contexts)
    prefix, part = _prefix(context)
    size = _samples(contexts) * prefix.shape.numel() * next(_floats(part)).element_size()
    room = Room(size, MOST, folder)
    right, job = play(context)
    with ExitStack() as undo:
        for one in _copies(context.module, part):
            undo.enter_context(_Passing(one, prefix))
        undo.callback(setattr, contexts, "data", data)
        view = DataView.of(data)
        made = _Features(view, part, prefix, room)
        contexts.data = replace(view, split=made, pooled_test=made.pooled_test)
        found, _ = play(context, job)
        if "error" in right or not alike(found, right):
            method = type(context.module).__name__
            raise _NotCachedError(f"{method} has other numbers on features of {prefix}")
        scope.push(undo.pop_all())
    files = f", {size / 1e6:,.0f} MB in files" if room.in_files else ""
    return f"cached: {prefix} is computed once for each sample, {tuple(prefix.shape)}{files}"


def _check_data(contexts: Contexts) -> None:
    """Refuse data and networks whose samples are not the same tensors each time."""
    data, context = contexts.data, contexts.first
    if stand_in(data):
        raise _NotCachedError("samples cannot be read here")
    if per_client.count(context.module) > 1:
        raise _NotCachedError("clients have several networks")
    if context.own_nets:
        raise _NotCachedError("the network trains itself")
    if context.fabric.strategy.precision.precision not in ("32-true", "64-true"):
        raise _NotCachedError("precision is mixed")
    if any(data.split(one, "train").augmented for one in members(data)):
        raise _NotCachedError("data are augmented")


def _samples(contexts: Contexts) -> int:
    """Return the number of all samples of the clients."""
    data, names = contexts.data, tuple[Split, ...](("train", "val", "test"))
    return sum(len(data.split(one, name)) for one in members(data) for name in names)


@dataclass(frozen=True)
class _Prefix:
    """The frozen parts that begin a network, and what they give.

    Attributes:
        within: Name of the part of the network that takes its inputs.
        parts: What this part calls until features are there: names within it, and the shape of what
            each gives for a sample. Features are those of the last.
        blank: (1, ...) inputs of zeros.
    """

    within: str
    parts: Mapping[str, torch.Size]
    blank: Inputs

    @property
    def last(self) -> str:
        """Name of the part that gives features; empty if it takes the inputs itself."""
        return [*self.parts][-1]

    @property
    def shape(self) -> torch.Size:
        """Shape of a sample's features."""
        return self.parts[self.last]

    def __str__(self) -> str:
        """Name the prefix."""
        return f"net.{self.within}".rstrip(".") + (f" up to {self.last}" if self.last else "")


def _prefix(context: Context) -> tuple[_Prefix, nn.Module]:
    """Return the longest prefix that is sound, and a copy of the part that takes the inputs.

    It must have most of what is frozen.
    """
    small = excerpt(context)
    net, split = small.module.net, small.data.split(0, "train")
    x = split.batch(torch.arange(_FEW) % len(split)).x
    x = _fitting(next(_floats(net)).dtype, x)
    for name, value in small.module.named_parameters():
        value.requires_grad_(name in small.trainable)
    try:
        found, changed = _found(net, x)
        with torch.no_grad():
            right = net.eval()(x)
    except Exception as error:
        why = f"the network does not take inputs alone ({type(error).__name__})"
        raise _NotCachedError(why) from error
    first: _NotCachedError | None = None
    for prefix in found[: -_TRIED - 1 : -1]:
        part = net.get_submodule(prefix.within)
        if 2 * sum(_held(part.get_submodule(name)) for name in prefix.parts) < _held(net):
            break
        try:
            features = _checked(part, prefix, x)
            _check_alone(net, part, prefix, features, right)
            return prefix, part
        except _NotCachedError as error:
            first = first or error
    raise first or _NotCachedError(
        f"training changes net.{changed} before most of what is frozen is computed"
        if changed
        else "the network does not begin with a frozen part that takes its inputs"
    )


def _found(net: nn.Module, x: Inputs) -> tuple[list[_Prefix], str]:
    """Return the prefixes of a network, from the shortest, and what ends them.

    They are found as it calls its parts with inputs; see :func:`_called`. What its code computes
    between the parts must not depend on what is trained.
    """
    takers, given, ended = _called(net, x)
    found, shapes = list[_Prefix](), dict[str, torch.Size]()
    blank = each(lambda value: torch.zeros_like(value[:1]), x)
    for name, output in given.items():
        part = net.get_submodule(name)
        if not _of_samples(output) or "forward" in vars(part):
            if _held(part):
                break
            continue
        # What it called itself is computed with it.
        shapes = {one: shape for one, shape in shapes.items() if not _within(one, name)}
        shapes[name] = output.shape[1:]
        around = [one for one in takers if _within(f"{name}.", one)]
        if around and _held(part) and output.is_floating_point():
            stem = around[-1]
            inner = {n: shape for n, shape in shapes.items() if _within(f"{n}.", stem)}
            relative = {n.removeprefix(stem).removeprefix("."): s for n, s in inner.items()}
            found.append(_Prefix(stem, relative, blank))
    return found, ended


def _called(net: nn.Module, x: Inputs) -> tuple[list[str], dict[str, Any], str]:
    """Return the parts that are called with the inputs alone, and what constant parts give.

    They are noted, in order, until a part begins that has entries of its own; its name is the last
    thing returned.
    """
    parts = dict(net.named_modules())
    still = {name for name, part in parts.items() if not part.state_dict()}
    owners = {name for name, part in parts.items() if _own_entries(part)}
    takers, given, ended = list[str](), dict[str, Any](), ""

    def begin(name: str, part: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal ended
        ended = ended or (name if name in owners else "")
        if not ended and len(inputs) == 1 and inputs[0] is x and not named:
            takers.append(name)

    def end(name: str, part: nn.Module, inputs: object, output: object) -> None:
        if not ended and name in still:
            given.pop(name, None)
            given[name] = output

    with ExitStack() as hooks:
        for name, part in parts.items():
            before = part.register_forward_pre_hook(partial(begin, name), with_kwargs=True)
            hooks.callback(before.remove)
            hooks.callback(part.register_forward_hook(partial(end, name)).remove)
        net.train()(x)
    return takers, given, ended


def _of_samples(output: object) -> bool:
    """Return whether a part gave a row for each sample, which depends on nothing trained."""
    return isinstance(output, Tensor) and len(output) == _FEW and not output.requires_grad


def _within(name: str, part: str) -> bool:
    return name != part and (not part or name.startswith(f"{part}."))


def _own_entries(part: nn.Module) -> bool:
    """Return whether a module itself has entries of the state."""
    left = part._non_persistent_buffers_set
    return any(v is not None for v in part._parameters.values()) or any(
        value is not None and name not in left for name, value in part._buffers.items()
    )


def _checked(part: nn.Module, prefix: _Prefix, x: Inputs) -> Tensor:
    """Return features of some inputs; refuse what is no function of each sample alone."""
    stream, before = torch.get_rng_state(), {n: v.clone() for n, v in part.named_buffers()}
    with torch.no_grad():
        trained = _features(part.train(), prefix, x)
        tested = _features(part.eval(), prefix, x)
        alone = _features(part, prefix, each(lambda value: value[:1], x))
    same = torch.equal(trained, tested) and torch.equal(stream, torch.get_rng_state())
    if not (same and all(torch.equal(v, before[n]) for n, v in part.named_buffers())):
        raise _NotCachedError(f"{prefix} draws, or computes something else in training")
    if not torch.allclose(alone, trained[:1], rtol=1e-4, atol=1e-5):
        raise _NotCachedError(f"{prefix} does not compute each sample alone")
    if isinstance(x, Tensor) and x.shape[1:] == prefix.shape:
        raise _NotCachedError(f"{prefix} gives what looks like inputs")
    return tested


def _check_alone(
    net: nn.Module,
    part: nn.Module,
    prefix: _Prefix,
    features: Tensor,
    right: Any,  # noqa: ANN401
) -> None:
    """Refuse a prefix without which the network gives something else.

    Nothing may depend on what stands for its parts, however little, as an input that is added.
    """
    net.eval()
    try:
        with torch.no_grad(), _Passing(part, prefix):
            found = net(features)
        with torch.no_grad(), _Passing(part, prefix, filled=1.0):
            torch.testing.assert_close(net(features), found, rtol=0, atol=0)
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    except Exception as error:
        why = f"the network reads its inputs not only by {prefix}"
        raise _NotCachedError(why) from error


def _copies(module: nn.Module, part: nn.Module) -> list[nn.Module]:
    """Return the parts of a method that compute what ``part`` does."""
    values = constants(part)

    def same(one: nn.Module) -> bool:
        if type(one) is not type(part) or str(one) != str(part):
            return False
        own = constants(one)
        return own.keys() == values.keys() and all(torch.equal(own[n], values[n]) for n in own)

    return [one for one in module.modules() if same(one)]


def _fitting(dtype: torch.dtype, x: Inputs) -> Inputs:
    """Return inputs in the precision of a network, as loops give them."""
    return each(lambda value: value.to(dtype) if value.is_floating_point() else value, x)


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    """Read samples in the precision of the loops, whoever reads them first."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _floats(part: nn.Module) -> Iterator[Tensor]:
    return (value for value in constants(part).values() if value.is_floating_point())


def _held(part: nn.Module) -> int:
    """Count the constant numbers of a part."""
    return sum(value.numel() for value in _floats(part))


class _Passing:
    """Lets a network take features in place of inputs; of inputs, it computes what it did.

    Given features, its frozen parts compute nothing, so that what its code does between them costs
    little; the last gives the features.

    Args:
        net: The network.
        prefix: The prefix.
        filled: The number that stands for inputs and for what its other parts give.
    """

    def __init__(self, net: nn.Module, prefix: _Prefix, filled: float = 0.0) -> None:
        self._net, self._prefix, self._filled = net, prefix, filled
        self._given: Tensor | None = None

    def __enter__(self) -> None:
        for name in self._prefix.parts:
            part = self._net.get_submodule(name)
            vars(part)["forward"] = partial(self._part, name, part)
        vars(self._net)["forward"] = self._whole

    def __exit__(self, *_: object) -> None:
        for name in ("", *self._prefix.parts):
            vars(self._net.get_submodule(name)).pop("forward", None)

    def _whole(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        x, prefix = given[0] if len(given) == 1 and not named else None, self._prefix
        self._given = None
        if not (isinstance(x, Tensor) and x.is_floating_point() and x.shape[1:] == prefix.shape):
            return type(self._net).forward(self._net, *given, **named)
        if not prefix.last:
            return x
        self._given = x
        blank = each(partial(self._blank, x), prefix.blank)
        return type(self._net).forward(self._net, blank)

    def _blank(self, x: Tensor, one: Tensor) -> Tensor:
        """Return inputs that stand for those of features, from one of zeros."""
        one = one + self._filled if one.is_floating_point() else one
        return one.to(x.device).expand(len(x), *one.shape[1:])

    def _part(self, name: str, part: nn.Module, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        x = self._given
        if x is None:
            return type(part).forward(part, *given, **named)
        if name == self._prefix.last:
            self._given = None
            return x
        number = x.new_full((), self._filled)
        return number.expand(len(x), *self._prefix.parts[name])


class _ReachedError(Exception):
    """The features are there; what the network computes from them is not needed."""


def _features(net: nn.Module, prefix: _Prefix, x: Inputs) -> Tensor:
    """Return the features of inputs."""
    if not prefix.last:
        return cast(Tensor, net(x))
    part = net.get_submodule(prefix.last)

    def reached(*given: Any, **named: Any) -> None:
        raise _ReachedError(type(part).forward(part, *given, **named))

    vars(part)["forward"] = reached
    try:
        net(x)
    except _ReachedError as found:
        return cast(Tensor, found.args[0])
    finally:
        del vars(part)["forward"]
    raise _NotCachedError(f"{prefix} is not computed in each pass")


class _Features:
    """The splits of a federation with features in place of inputs, each computed when first read.

    Args:
        data: The data.
        part: Computes features of inputs.
        prefix: The prefix.
        room: Where features lie.
    """

    def __init__(self, data: DataView, part: nn.Module, prefix: _Prefix, room: Room) -> None:
        self._data, self._part, self._prefix = data, part.eval(), prefix
        self._room, self._dtype = room, next(_floats(part)).dtype
        self._made: dict[tuple[int, str], ClientSplit | None] = {}
        self._one = threading.RLock()

    def __call__(self, client: int, name: DataSplit) -> ClientSplit:
        """Return a split."""
        return cast(ClientSplit, self._of(client, name, lambda: self._data.split(client, name)))

    def pooled_test(self) -> ClientSplit | None:
        """Return the test samples of all clients."""
        return self._of(NO_CLIENT, "pooled", self._data.pooled_test)

    def _of(
        self, client: int, name: str, make: Callable[[], ClientSplit | None]
    ) -> ClientSplit | None:
        with self._one:
            if (client, name) not in self._made:
                split = make()
                self._made[client, name] = _FeatureSplit(split, self) if split else split
            return self._made[client, name]

    def of(self, split: ClientSplit) -> Batch:
        """Return the features and targets of all samples, by the batches of a test."""
        with self._one, _default(self._dtype), torch.inference_mode(False), torch.no_grad():
            found, ys, done = torch.empty(0), list[Tensor](), 0
            for rows in torch.split(torch.arange(len(split)), self._data.eval_batch_size):
                batch = split.batch(rows)
                part = self._part.to(batch.y.device)
                some = _features(part, self._prefix, _fitting(self._dtype, batch.x))
                if not done:
                    shape = torch.Size((len(split), *self._prefix.shape))
                    found = self._room.empty(shape, some)
                found[done : done + len(some)] = some
                done += len(some)
                ys.append(batch.y)
            return Batch(found, torch.cat(ys))

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs; it computes features of its own clients."""
        return {**vars(self), "_one": None, "_made": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _one=threading.RLock())


class _FeatureSplit:
    """A split with features in place of inputs."""

    augmented = False

    def __init__(self, split: ClientSplit, features: _Features) -> None:
        self.targets, self._split, self._features = split.targets, split, features
        self._all: Batch | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return the samples at ``positions``."""
        if self._all is None:
            self._all = self._features.of(self._split)
        x, y = self._all.x, self._all.y
        assert isinstance(x, Tensor)
        return Batch(x[positions.to(x.device)].to(y.device), y[positions.to(y.device)])
