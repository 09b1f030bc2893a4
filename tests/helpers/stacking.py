"""Objectives and networks under ``torch.func.vmap`` over clients, compared with single clients."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from pfl.core.seeds import generator
from pfl.core.state import total
from pfl.core.types import Batch


class _Objective(nn.Module):
    def __init__(self, module, objective):
        super().__init__()
        self.module = module
        self.objective = objective

    def forward(self, batch):
        return total(self.objective(batch))


def check_vmap(module, objective, states, batches):
    """Check that values and gradients agree, with unequal batches padded to the longest.

    Args:
        module: The method.
        objective: One of its objectives.
        states: One state dict per client.
        batches: One batch per client, without weight.
    """
    target = _Objective(module, objective)
    trained = [name for name, _ in module.named_parameters()]

    def loss(parameters, rest, x, y, weight, noise):
        batch = Batch(x, y, weight, noise or None)
        state = {f"module.{n}": v for n, v in {**rest, **parameters}.items()}
        return functional_call(target, state, (batch,))

    def split(state):
        return {n: state[n] for n in trained}, {n: v for n, v in state.items() if n not in trained}

    step = grad_and_value(loss)
    alone = [
        step(*split(state), batch.x, batch.y, None, batch.noise)
        for state, batch in zip(states, batches, strict=True)
    ]
    stacked = {n: torch.stack([state[n] for state in states]) for n in states[0]}
    gradients, values = vmap(step)(*split(stacked), *_padded(batches))
    for client, (gradient, value) in enumerate(alone):
        torch.testing.assert_close(values[client], value)
        for name, expected in gradient.items():
            torch.testing.assert_close(gradients[name][client], expected)


def check_stacked(nets, shape, **tolerance):
    """Check that stacked networks give the logits and buffers of each network alone."""
    parameters, buffers = stack_module_state(nets)
    x = torch.rand(len(nets), 5, *shape, dtype=next(nets[0].parameters()).dtype)
    together = vmap(lambda p, b, x: functional_call(nets[0], (p, b), (x,)))(parameters, buffers, x)
    for client, net in enumerate(nets):
        torch.testing.assert_close(net(x[client]), together[client], **tolerance)
        for name, buffer in net.named_buffers():
            torch.testing.assert_close(buffer, buffers[name][client])


def clients(module, sizes=(2, 5, 1), dim=5, classes=3):
    """Return a state dict for each client, close to the module's own, and a batch of its size."""
    rng = generator(4, "clients")

    def near(value):
        if not value.is_floating_point():
            return value
        return value + 0.3 * torch.randn(value.shape, generator=rng, dtype=value.dtype)

    states = [{name: near(value) for name, value in module.state_dict().items()} for _ in sizes]
    inputs = [torch.randn(size, dim, generator=rng, dtype=torch.float64) for size in sizes]
    return states, [Batch(x, torch.arange(len(x)) % classes, noise={}) for x in inputs]


def _padded(batches):
    size = max(len(batch.y) for batch in batches)
    x = torch.stack([_rows(batch.x, size) for batch in batches])
    y = torch.stack([_rows(batch.y, size) for batch in batches])
    real = torch.stack([torch.arange(size) < len(batch.y) for batch in batches]).to(x.dtype)
    names = batches[0].noise or ()
    return x, y, real, {n: torch.stack([batch.noise[n] for batch in batches]) for n in names}


def _rows(values, size):
    return torch.cat([values, values.new_ones(size - len(values), *values.shape[1:])])
