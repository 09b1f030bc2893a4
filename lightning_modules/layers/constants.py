"""Constant entries of a module, invisible to optimisers, engines and servers."""

from __future__ import annotations

from torch import Tensor, nn

from pfl.method import Patterns, State, batch_norms, hold_constant, matches


class Frozen(nn.Module):
    """A wrapper that keeps a module in eval mode.

    Args:
        module: (B, ...) -> (B, ...).
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.eval()

    def train(self, mode: bool = True) -> Frozen:
        """Stay in eval mode."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's output; gradients flow to ``x``, not to the module."""
        output: Tensor = self.module(x)
        return output


def as_buffer(module: nn.Module, name: str) -> None:
    """Turn a parameter of a module into a buffer, in place."""
    value = getattr(module, name).detach()
    delattr(module, name)
    module.register_buffer(name, value)


def statistics(net: nn.Module) -> State:
    """Return the buffers in a network's state dict: running statistics, but no constants."""
    entries = net.state_dict()
    return {name: value for name, value in net.named_buffers() if name in entries}


def make_constant(net: nn.Module, patterns: Patterns) -> None:
    """Make entries of a network constant, in place.

    A constant is a buffer outside the state dict. It neither travels nor stays with a client, no
    optimiser sees it, copies of the state leave it out, and clients that are trained as one stack
    share it. It follows the network to another device or precision. A batch norm whose running
    statistics are constant stays in eval mode.

    Args:
        net: The network.
        patterns: Patterns of names in its state dict.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        >>> make_constant(net, ("0.*", "1.*"))
        >>> list(net.train().state_dict()), net[1].module.training
        (['2.weight', '2.bias'], False)
    """
    entries = net.named_parameters(remove_duplicate=False), net.named_buffers()
    names = [name for found in entries for name, _ in found]
    hold_constant(net, {name for name in names if matches(name, patterns)})
    for name in batch_norms(net):
        norm = net.get_submodule(name)
        if norm.running_mean is not None and "running_mean" not in norm.state_dict():
            net.set_submodule(name, Frozen(norm))
