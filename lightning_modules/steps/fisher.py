"""The trace of the empirical Fisher information, from statistics that are summed over batches.

"Empirical" means with the labels of the data, not with labels drawn from the model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lightning_modules.losses import cross_entropy
from lightning_modules.losses.numerics import full_precision
from pfl import method as fl

FisherEstimator: TypeAlias = Literal["batch_sum", "per_sample_mean", "full_data"]


def fisher_share(
    net: nn.Module,
    batch: fl.Batch,
    estimator: FisherEstimator = "batch_sum",
    objective: Callable[[Tensor, Tensor, Tensor | None], Tensor] = cross_entropy,
) -> fl.State:
    """Compute one batch's contribution to the sums that :func:`fisher_trace` takes.

    Gradients are taken with respect to all parameters of the network, frozen ones included, in its
    current mode and never in half precision. Runs under ``torch.func.vmap``.

    Args:
        net: A network with (B, D) outputs.
        batch: A batch; padding does not change the result.
        estimator: See :func:`fisher_trace`.
        objective: The loss, of outputs, targets and weights.
    """
    parameters = {name: value.detach() for name, value in net.named_parameters()}
    dtype = next(iter(parameters.values())).dtype
    real = batch.weight
    if real is None:
        real = torch.ones(len(batch.y), dtype=dtype, device=batch.y.device)

    def loss(parameters: fl.State, x: fl.Inputs, y: Tensor, weight: Tensor | None) -> Tensor:
        return objective(functional_call(net, parameters, (x,)), y, weight)

    with full_precision(batch.y):
        if estimator == "per_sample_mean":
            # Each sample is a batch of its own.
            of_each = vmap(grad(partial(loss, weight=None)), in_dims=(None, 0, 0))
            x = fl.each(itemgetter((slice(None), None)), batch.x)
            slopes = of_each(parameters, x, batch.y[:, None])
            squares = torch.stack([slope.flatten(1).square().sum(1) for slope in slopes.values()])
            return {"squares": (squares.sum(0) * real).sum(), "samples": real.sum()}
        slopes = grad(loss)(parameters, batch.x, batch.y, batch.weight)
        if estimator == "full_data":
            return {name: slope * real.sum() for name, slope in slopes.items()}
        return {"squares": _squared_norm(slopes)}


def fisher_trace(totals: fl.State, estimator: FisherEstimator = "batch_sum") -> Tensor:
    """Compute the trace, a scalar, from the sums of :func:`fisher_share` over all batches.

    Args:
        totals: The sums, by name.
        estimator: Let l_j be the negative log-likelihood of sample j, and all gradients be with
            respect to all parameters. ``batch_sum`` is ``sum_b ||grad mean_{j in b} l_j||^2`` (the
            code of FedAS; it grows with the data and depends on the batches), ``per_sample_mean``
            is ``1/n sum_j ||grad l_j||^2`` (the textbook form), and ``full_data`` is ``||grad sum_j
            l_j||^2`` (FedAS, Eqs. 5-6, as printed).

    Example:
        >>> net = nn.Linear(1, 2)
        >>> _ = nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
        >>> batch = fl.Batch(torch.tensor([[3.0]]), torch.tensor([0]))
        >>> fisher_trace(fisher_share(net, batch))  # ||(1/2, 1/2) - (1, 0)||^2 (3^2 + 1)
        tensor(5.)
    """
    if estimator == "full_data":
        return _squared_norm(totals)
    if estimator == "per_sample_mean":
        return totals["squares"] / totals["samples"]
    return totals["squares"]


def _squared_norm(slopes: fl.State) -> Tensor:
    return torch.stack([slope.square().sum() for slope in slopes.values()]).sum()
