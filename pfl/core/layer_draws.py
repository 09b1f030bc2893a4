"""What layers draw in a forward pass: dropout, which takes no generator.

Masks are functions of a key and of the places in the tensor (``pfl.core.noise``). So they are the
same in every layout of memory, on every device and processor, and a stack draws at once what each
of its clients draws alone. Keys come from torch's default stream or from a generator that stands in
for it, as do the numbers that other layers draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pfl.core.noise import Masks, bernoulli
from pfl.core.seeds import scoped

MASKED_AT_ONCE = 2**18
"""Draws up to which the masks of a step are made at once; larger ones are made one by one."""
# Keys are below this number.
_KEYS = 2**63 - 1
# Makes the mask of a layer, in the shape of a tensor, of which about a share is ``True``.
_Mask: TypeAlias = Callable[[nn.Module, Tensor, float], Tensor]


def keys_of(generator: torch.Generator | None, count: int = 1) -> Tensor:
    """Return (1, count) keys of masks; ``None`` draws them from torch's default stream."""
    return torch.randint(_KEYS, (1, count), generator=generator)


class LayerDraws:
    """What some layers of one client draw.

    Each mask takes the next key of a stream. The masks of a step are made in one call, from the
    keys that come next if the step goes as those before it: a mask is a function of its key, so
    masks that nobody asks for, or asks for twice, as checkpointing does, change nothing.

    Args:
        layers: Those that draw, such as dropout and attention.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers
        self._generator: torch.Generator | None = None
        # Draws and share of each layer's mask, in the order of a step.
        self._asked: dict[nn.Module, tuple[int, float]] = {}
        self._masks: tuple[torch.device, Masks] | None = None
        # Made ahead, by keys.
        self._ahead: dict[int, tuple[float, Tensor]] = {}

    @contextmanager
    def of(self, seed: int, device: torch.device, own: bool = False) -> Iterator[None]:
        """Seed what the layers draw inside this scope.

        Args:
            seed: Of the draws.
            device: Where the layers compute.
            own: Whether a generator on the CPU stands in for torch's default stream, which then
                does not advance, so that several threads can each have a scope. The numbers are
                the same.
        """
        if own:
            self._generator = torch.Generator().manual_seed(seed)
            with self._replaced():
                yield
        else:
            self._generator = None
            with scoped(seed, device), self._replaced():
                yield

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        own = {layer: forward for layer in self._layers if (forward := self._forward(layer))}
        others = [layer for layer in self._layers if layer not in own]
        for layer, forward in own.items():
            # Beside the module's own tensors and hooks, which are the user's.
            vars(layer)["forward"] = partial(forward, layer)
        try:
            with _hooked(others, self._mode()):
                yield
        finally:
            for layer in own:
                del vars(layer)["forward"]
            self._ahead = {}

    def _forward(self, layer: nn.Module) -> Callable[..., Any] | None:
        """Return what runs in place of a layer's forward; ``None`` if the layer is not torch's."""
        if "forward" in vars(layer):
            return None
        if type(layer) is nn.Dropout and not layer.inplace:
            return self._dropped
        return self._attended if type(layer) is nn.MultiheadAttention else None

    def _mode(self) -> _Draws:
        return _Draws(self._mask, self._generator)

    def _dropped(self, layer: nn.Dropout, x: Tensor) -> Tensor:
        """Return what a dropout layer returns, by the operations that torch has for it."""
        if not layer.training or not 0 < layer.p < 1 or x.numel() == 0:
            return nn.Dropout.forward(layer, x)
        if torch._C._are_functorch_transforms_active():
            # A tensor is not what it seems: the operators see the whole.
            with self._mode().within(layer):
                return nn.Dropout.forward(layer, x)
        return x * self._mask(layer, x, 1 - layer.p).to(x.dtype).div_(1 - layer.p)

    def _attended(
        self,
        layer: nn.MultiheadAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what attention returns: that of a sequence to itself, without a mode."""
        given = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        if not layer.training:
            return nn.MultiheadAttention.forward(layer, query, key, value, *given)
        plain = query is key is value and layer._qkv_same_embed_dim and query.dim() == 3
        asked = need_weights or is_causal or layer.add_zero_attn or layer.bias_k is not None
        masked = key_padding_mask is not None or attn_mask is not None
        usual = plain and not asked and not masked and 0 < layer.dropout < 1
        if not usual or torch._C._are_functorch_transforms_active():
            with self._mode().within(layer):
                return nn.MultiheadAttention.forward(layer, query, key, value, *given)
        x = query if layer.batch_first else query.transpose(0, 1)
        projected = F.linear(x, layer.in_proj_weight, layer.in_proj_bias)
        heads = projected.view(*x.shape[:2], 3, layer.num_heads, layer.head_dim)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) * layer.head_dim**-0.5, -1)
        mask = self._mask(layer, weights, 1 - layer.dropout).to(weights.dtype)
        attended = (weights * mask.div_(1 - layer.dropout) @ v).transpose(1, 2).flatten(2)
        outputs = F.linear(attended, layer.out_proj.weight, layer.out_proj.bias)
        return outputs if layer.batch_first else outputs.transpose(0, 1), None

    def _mask(self, layer: nn.Module, like: Tensor, share: float) -> Tensor:
        key, count = keys_of(self._generator), like.numel()
        known, ofs = self._asked.get(layer), self._ahead
        if known is None or known[1] != share or known[0] < count:
            self._asked[layer] = (count, share)
            self._masks = None
            return bernoulli(key.to(like.device), count, share).view(like.shape)
        if (number := int(key)) not in ofs:
            ofs = self._ahead = self._made(layer, key, like.device)
        made = ofs.get(number)
        if made is None or made[0] != share or len(made[1]) < count:
            # Made for another layer, where the step does not go as those before it.
            return bernoulli(key.to(like.device), count, share).view(like.shape)
        # A mask begins with that of a smaller batch.
        return made[1][:count].view(like.shape)

    def _made(
        self, layer: nn.Module, key: Tensor, device: torch.device
    ) -> dict[int, tuple[float, Tensor]]:
        """Return masks by their keys, for a step that begins with a layer; none if too large."""
        wanted = [*self._asked.values()]
        if next(iter(self._asked)) is not layer or sum(n for n, _ in wanted) > MASKED_AT_ONCE:
            return {}
        if self._masks is None or self._masks[0] != device:
            self._masks = device, Masks(wanted, device)
        coming = torch.Generator()
        stream = torch.default_generator if self._generator is None else self._generator
        coming.set_state(stream.get_state())
        keys = torch.cat([key, keys_of(coming, len(wanted) - 1)], 1)[0]
        drawn = self._masks[1].drawn(keys.to(device))
        shares = (share for _, share in wanted)
        return dict(zip(keys.tolist(), zip(shares, drawn, strict=True), strict=True))


@contextmanager
def replaced(layers: Sequence[nn.Module], keys: Callable[[], Tensor]) -> Iterator[None]:
    """Replace what layers draw in train mode for K clients at once, which draw nothing else.

    Args:
        layers: Those that draw.
        keys: Gives the (K, 1) keys of a mask.
    """

    def mask(layer: nn.Module, like: Tensor, share: float) -> Tensor:
        found = keys().to(like.device)
        return bernoulli(found, like.numel() // len(found), share).view(like.shape)

    with _hooked(layers, _Draws(mask, None, alone=False)):
        yield


@contextmanager
def undropped(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Let dropout in layers keep all numbers, which it then enlarges by the same factor.

    Args:
        layers: Those that draw.
    """

    def mask(layer: nn.Module, like: Tensor, share: float) -> Tensor:
        return torch.ones_like(like, dtype=torch.bool)

    with _hooked(layers, _Draws(mask, None)):
        yield


def watched(module: nn.Module, play: Callable[[], object]) -> list[nn.Module]:
    """Return the modules in whose own forward something is drawn while a function runs.

    They are found by what they do, as nothing declares ``F.dropout`` within a forward.

    Args:
        module: The module whose parts are watched.
        play: Runs the module.
    """
    watch = _Watch(module)
    parts = [part for part in module.modules() if part is not module]
    handles = [part.register_forward_pre_hook(watch.enter) for part in parts]
    handles += [part.register_forward_hook(watch.leave, always_call=True) for part in parts]
    try:
        with watch:
            play()
    finally:
        for handle in handles:
            handle.remove()
    return [*watch.found]


class _Watch(TorchDispatchMode):
    """Notes in which module something is drawn.

    No class within a function, which would hold the module until Python looks for cycles.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside, self.found = [module], dict[nn.Module, None]()

    def enter(self, part: nn.Module, inputs: object) -> None:
        """Enter the forward of a part."""
        self._inside.append(part)

    def leave(self, *_: object) -> None:
        """Leave it."""
        self._inside.pop()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Run an operation."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.found[self._inside[-1]] = None
        return func(*args, **(kwargs or {}))


@contextmanager
def _hooked(layers: Sequence[nn.Module], mode: _Draws) -> Iterator[None]:
    """Enter a mode around the forward of layers in train mode."""

    def enter(layer: nn.Module, inputs: object) -> None:
        if layer.training:
            mode.enter(layer)

    def leave(layer: nn.Module, inputs: object, outputs: object) -> None:
        if layer.training:
            mode.leave()

    handles = [layer.register_forward_pre_hook(enter) for layer in layers]
    handles += [layer.register_forward_hook(leave, always_call=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes the masks of layers; gives a generator to other operators that draw and got none.

    Args:
        mask: Makes a mask.
        generator: Stands in for torch's default stream, unless ``None``.
        alone: Whether one client draws, and other draws than masks are allowed.
    """

    def __init__(self, mask: _Mask, generator: torch.Generator | None, alone: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mask, self._generator, self._alone = mask, generator, alone
        self._inside: list[nn.Module] = []

    def enter(self, layer: nn.Module) -> None:
        """Replace what a layer draws from now on."""
        self._inside.append(layer)
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """End what the last :meth:`enter` began."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._inside.pop()

    @contextmanager
    def within(self, layer: nn.Module) -> Iterator[None]:
        """Replace what a layer draws in this scope."""
        self.enter(layer)
        try:
            yield
        finally:
            self.leave()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        given = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **given)
        # The operators of dropout layers, on the CPU one by one or under vmap, and on a GPU.
        layer = self._inside[-1]
        if func is torch.ops.aten.bernoulli_.float:
            return args[0].copy_(self._mask(layer, args[0], args[1] if len(args) > 1 else 0.5))
        if func is torch.ops.aten.bernoulli.p:
            return self._mask(layer, args[0], args[1]).to(args[0].dtype)
        if func is torch.ops.aten.native_dropout.default and 0 < args[1] < 1:
            mask = self._mask(layer, args[0], 1 - args[1])
            return args[0] * mask * (1 / (1 - args[1])), mask
        if not self._alone:
            raise RuntimeError(f"{func} draws for one client at a time")
        if self._generator is not None and (seeded := _with_generator(func)) is not None:
            return seeded(*args, **{"generator": self._generator, **given})
        return func(*args, **given)


def _with_generator(func: Any) -> Any:  # noqa: ANN401
    """Return the overload of an operator that takes a generator; ``None`` if none does."""
    name = func._overloadname
    beside = "generator" if name == "default" else f"{name}_generator"
    overloads = (func, getattr(func.overloadpacket, beside, None))
    return next((one for one in overloads if one is not None and _takes_generator(one)), None)


def _takes_generator(func: Any) -> bool:  # noqa: ANN401
    return any(argument.name == "generator" for argument in func._schema.arguments)
