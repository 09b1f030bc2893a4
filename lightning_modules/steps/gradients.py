"""Gradients at weights other than the network's own, for objectives that take inner steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from lightning_modules.losses import cross_entropy, linear
from pfl import method as fl

# The defaults of torch.optim.Adam.
BETAS, EPS = (0.9, 0.999), 1e-8


def slopes_at(
    net: nn.Module,
    parameters: fl.State,
    buffers: Mapping[str, Tensor],
    batch: fl.Batch,
    objective: Callable[[Tensor, Tensor, Tensor | None], Tensor] = cross_entropy,
) -> tuple[fl.State, Tensor, fl.State]:
    """Return the gradient and value of a loss, and the buffers after the forward pass.

    The network's own parameters and buffers do not change, and the results are detached. Runs under
    ``torch.func.vmap``.

    Args:
        net: A network with (B, D) outputs.
        parameters: Values at which the gradient is taken, by the names of the network's parameters.
        buffers: Batch-norm statistics to start from, by the names of the network's buffers.
        batch: A batch; padding does not change the gradient.
        objective: The loss, of outputs, targets and weights.

    Example:
        >>> net = nn.Linear(1, 2, bias=False)
        >>> batch = fl.Batch(torch.tensor([[3.0]]), torch.tensor([0]))
        >>> slopes, value, _ = slopes_at(net, {"weight": torch.zeros(2, 1)}, {}, batch)
        >>> slopes["weight"].flatten().tolist(), value  # 3 (1/2 - 1), 3 * 1/2
        ([-1.5, 1.5], tensor(0.6931))
    """

    def loss(parameters: fl.State) -> tuple[Tensor, tuple[Tensor, fl.State]]:
        after = {name: value.clone() for name, value in buffers.items()}
        outputs = functional_call(net, {**parameters, **after}, (batch.x,))
        value = objective(outputs, batch.y, batch.weight)
        return value, (value, after)

    parameters = {name: value.detach() for name, value in parameters.items()}
    if torch._C._functorch.peek_interpreter_stack() is not None:
        slopes, (value, after) = grad(loss, has_aux=True)(parameters)
        return slopes, value, after
    # Outside vmap, autograd gives the same numbers; torch.func takes half of a small step's time.
    leaves = {name: value.requires_grad_() for name, value in parameters.items()}
    with torch.enable_grad():
        value, (_, after) = loss(leaves)
    slopes = torch.autograd.grad(value, [*leaves.values()], materialize_grads=True)
    after = {name: entry.detach() for name, entry in after.items()}
    # In PyTorch 2.8, the zero gradient of an unused weight itself requires a gradient.
    fixed = (slope.detach() for slope in slopes)
    return dict(zip(leaves, fixed, strict=True)), value.detach(), after


def with_gradient(value: Tensor, parameters: Iterable[Tensor], slopes: Iterable[Tensor]) -> Tensor:
    """Return a constant with a given gradient with respect to parameters.

    Args:
        value: The constant.
        parameters: At least one tensor.
        slopes: The gradient with respect to each parameter.

    Example:
        >>> w = nn.Parameter(torch.tensor([2.0]))
        >>> loss = with_gradient(torch.tensor(5.0), [w], [torch.tensor([3.0])])
        >>> loss.item(), *torch.autograd.grad(loss, w)
        (5.0, tensor([3.]))
    """
    surrogate = linear(parameters, slopes)
    return value + surrogate - surrogate.detach()


def adam_step(
    values: fl.State, slopes: fl.State, moments: tuple[fl.State, fl.State], step: Tensor, lr: float
) -> tuple[fl.State, tuple[fl.State, fl.State]]:
    """Take one step of Adam as a pure function, identical to a step of ``torch.optim.Adam``.

    Args:
        values: Values to update.
        slopes: Their gradient.
        moments: Running means of the gradient and of its square, zeros before the first step.
        step: Number of this step, starting at 1.
        lr: Learning rate.

    Returns:
        The new values and moments.
    """
    first = {n: torch.lerp(slopes[n], mean, BETAS[0]) for n, mean in moments[0].items()}
    second = {n: torch.lerp(slopes[n].square(), s, BETAS[1]) for n, s in moments[1].items()}
    after = {}
    # 1 - beta ** step, without the cancellation in float32.
    unbias = [-torch.expm1(step * math.log(beta)) for beta in BETAS]
    scale = -lr / unbias[0]
    for name, value in values.items():
        root = (second[name] / unbias[1]).sqrt_().add_(EPS)
        after[name] = torch.addcdiv(value, first[name] * scale, root)
    return after, (first, second)
