"""An ordinary optimiser that trains several clients at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pfl.core.types import Phase, State
from pfl.engines.stack.stack import Stack
from pfl.training import optimizer_state

ELEMENTWISE = (SGD, Adam, AdamW)


class StackedOptimizer:
    """Optimises stacked (K, ...) parameters with an elementwise rule.

    Each client is updated as it would be alone: the optimiser of a single client is applied to rows
    of the stack instead of the module's parameters.

    Attributes:
        leaves: The trained parameters of the clients that a step computes; they share memory with
            the stack.

    Args:
        optimizer: An optimiser of the module's parameters, without state.
        trained: The parameters that this phase trains, by name.
        stack: The clients.
        clients: Number of rows that take part, from the first.
        phase: The phase.
        fixed: Whether all steps must call the same operations, on the device alone, so that they
            can be captured as a CUDA graph.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        trained: Mapping[str, nn.Parameter],
        stack: Stack,
        clients: int,
        phase: Phase,
        fixed: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self._phase = phase
        self._fixed = fixed
        self.clients = clients
        self.leaves = {
            name: stack.state[name][:clients].detach().requires_grad_() for name in trained
        }
        names = {id(parameter): name for name, parameter in trained.items()}
        for group in optimizer.param_groups:
            # Parameters that the phase does not train are left out: they get no gradient.
            trains = [names[id(p)] for p in group["params"] if id(p) in names]
            group["params"] = [self.leaves[name] for name in trains]
        last = [optimizer_state.read(phase.name, job.kept) for job in stack.jobs[:clients]]
        for name, leaf in self.leaves.items():
            for key in last[0].get(name, {}):
                values = [of_client[name][key].to(leaf.device) for of_client in last]
                optimizer.state[leaf][key] = torch.stack(values)

    def keep_first(self, clients: int) -> None:
        """Keep only the first ``clients`` rows; the other clients have finished."""
        if clients == self.clients:
            return
        self.clients = clients
        old = self.leaves
        self.leaves = {n: v.detach()[:clients].requires_grad_() for n, v in old.items()}
        successor = {id(old[name]): leaf for name, leaf in self.leaves.items()}
        for group in self._optimizer.param_groups:
            group["params"] = [successor[id(p)] for p in group["params"]]
        for name, leaf in self.leaves.items():
            state = self._optimizer.state.pop(old[name], {})
            self._optimizer.state[leaf] = {
                key: value[:clients] if _stacked(value, old[name]) else value
                for key, value in state.items()
            }

    def step(self, gradient_clip_val: float | None) -> None:
        """Clip each client's gradient by its norm if a limit is given, and take a step."""
        if gradient_clip_val is not None:
            clip([v.grad for v in self.leaves.values() if v.grad is not None], gradient_clip_val)
        self._optimizer.step()
        for leaf in self.leaves.values():
            leaf.grad = None
        if self._fixed:
            self._count_on_device()

    def _count_on_device(self) -> None:
        """Make Adam count its steps on the device from now on; its first step creates the counter.

        In float64, as the CPU does: powers of 0.999 in float32 have four digits of their distance
        from one.
        """
        for group in self._optimizer.param_groups:
            # Fused kernels already count there.
            if group.get("capturable", True) or group["fused"]:
                continue
            group["capturable"] = True
            for leaf in group["params"]:
                if state := self._optimizer.state.get(leaf):
                    state["step"] = state["step"].to(leaf.device, torch.float64)

    def kept(self, row: int) -> State:
        """Return a client's optimiser state, under the names by which it is kept."""
        return optimizer_state.written(
            self._phase.name,
            {
                name: {
                    key: value[row].clone()
                    for key, value in self._optimizer.state[leaf].items()
                    if isinstance(value, Tensor)
                }
                for name, leaf in self.leaves.items()
            },
        )


def clip(gradients: list[Tensor], limit: float) -> None:
    """Scale stacked gradients in place so that no client's total norm exceeds a limit."""
    norms = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in gradients]).norm(dim=0)
    factors = (limit / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


def _stacked(value: object, leaf: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == leaf.shape
