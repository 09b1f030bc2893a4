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
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pfl.core.noise import bernoulli
from pfl.core.seeds import scoped

# Keys are below this number.
_KEYS = 2**63 - 1


@contextmanager
def layer_draws(
    layers: Sequence[nn.Module], seed: int, device: torch.device, own: bool = False
) -> Iterator[None]:
    """Seed what some layers of one client draw inside this scope.

    Args:
        layers: Those that draw, such as dropout and attention.
        seed: Of the draws.
        device: Where the layers compute.
        own: Whether a generator on the CPU stands in for torch's default stream, which then does
            not advance, so that several threads can each have a scope. The numbers are the same.
    """
    if own:
        with replaced(layers, torch.Generator().manual_seed(seed)):
            yield
    else:
        with scoped(seed, device), replaced(layers, None):
            yield


def keys_of(generator: torch.Generator | None, count: int = 1) -> Tensor:
    """Return (1, count) keys of masks; ``None`` draws them from torch's default stream."""
    return torch.randint(_KEYS, (1, count), generator=generator)


@contextmanager
def replaced(
    layers: Sequence[nn.Module],
    generator: torch.Generator | None,
    keys: Callable[[], Tensor] | None = None,
) -> Iterator[None]:
    """Replace what layers draw in train mode.

    Args:
        layers: Those that draw.
        generator: Stands in for torch's default stream, unless ``None``.
        keys: Gives the (K, 1) keys of a mask for K clients at once, which draw nothing else.
    """
    mode = _Draws(generator, keys)

    def enter(layer: nn.Module, inputs: object) -> None:
        if layer.training:
            mode.__enter__()  # type: ignore[no-untyped-call]

    def leave(layer: nn.Module, inputs: object, outputs: object) -> None:
        if layer.training:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    handles = [layer.register_forward_pre_hook(enter) for layer in layers]
    handles += [layer.register_forward_hook(leave, always_call=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws masks by keys; gives a generator to other operators that draw and got none.

    Args:
        generator: Stands in for torch's default stream, unless ``None``.
        keys: As in :func:`replaced`.
    """

    def __init__(
        self, generator: torch.Generator | None, keys: Callable[[], Tensor] | None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator, self._given = generator, keys is not None
        self._keys = keys or partial(keys_of, generator)

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
        if func is torch.ops.aten.bernoulli_.float:
            return args[0].copy_(self._mask(*args))
        if func is torch.ops.aten.bernoulli.p:
            return self._mask(*args).to(args[0].dtype)
        if func is torch.ops.aten.native_dropout.default and 0 < args[1] < 1:
            mask = self._mask(args[0], 1 - args[1])
            return args[0] * mask * (1 / (1 - args[1])), mask
        if self._given:
            raise RuntimeError(f"{func} draws for one client at a time")
        if self._generator is not None and _takes_generator(func):
            given.setdefault("generator", self._generator)
        return func(*args, **given)

    def _mask(self, like: Tensor, share: float = 0.5) -> Tensor:
        """Return a mask of the shape of a tensor, of which about a share is ``True``."""
        keys = self._keys().to(like.device)
        return bernoulli(keys, like.numel() // len(keys), share).view(like.shape)


def _takes_generator(func: Any) -> bool:  # noqa: ANN401
    return any(argument.name == "generator" for argument in func._schema.arguments)
