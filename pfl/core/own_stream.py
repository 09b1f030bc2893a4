"""A random stream for one thread, for layers that can only draw from torch's default stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Names of functions that draw: the operators that they call get the generator. The others are
# called unchanged, which costs a microsecond.
_DRAWING = {
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout"),
    *("feature_alpha_dropout", "dropout_", "alpha_dropout_", "feature_dropout_"),
    *("feature_alpha_dropout_", "rrelu", "rrelu_", "multi_head_attention_forward"),
    *("scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu", "gumbel_softmax"),
    *("fractional_max_pool2d", "fractional_max_pool3d", "bernoulli", "bernoulli_", "binomial"),
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
    *("normal", "normal_", "uniform_", "random_", "exponential_", "geometric_", "cauchy_"),
    *("log_normal_", "multinomial", "poisson", "_standard_gamma", "_sample_dirichlet"),
}


class OwnStream(TorchFunctionMode):
    """Let code in this scope and thread draw from a generator, not from torch's default stream.

    The draws are those of the default stream with the same seed, bit for bit, also inside attention
    and recurrent layers. The default stream does not advance, so that several threads can each have
    a scope.

    Args:
        seed: Seed of the generator, on the CPU.

    Example:
        >>> from pfl.core.seeds import scoped
        >>> with OwnStream(1):
        ...     own = torch.nn.functional.dropout(torch.ones(4))
        >>> with scoped(1):
        ...     bool((own == torch.nn.functional.dropout(torch.ones(4))).all())
        True
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._below = _Given(torch.Generator().manual_seed(seed))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call a function; give it the generator if it draws."""
        if getattr(func, "__name__", "") not in _DRAWING:
            return func(*args, **(kwargs or {}))
        with self._below:
            return func(*args, **(kwargs or {}))


class _Given(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes a generator to every operator that accepts one and got none."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        given = dict(kwargs or {})
        if not _takes_generator(func):
            # Functions that create tensors have a separate overload with a generator.
            name = func._overloadname
            other = "generator" if name == "default" else f"{name}_generator"
            if other not in func.overloadpacket.overloads():
                return func(*args, **given)
            func = getattr(func.overloadpacket, other)
        place = [argument.name for argument in func._schema.arguments].index("generator")
        if place < len(args):
            args = [*args[:place], args[place] or self._generator, *args[place + 1 :]]
        elif given.get("generator") is None:
            given["generator"] = self._generator
        return func(*args, **given)


def _takes_generator(func: Any) -> bool:  # noqa: ANN401
    return any(argument.name == "generator" for argument in func._schema.arguments)
