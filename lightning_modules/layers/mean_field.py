"""A network whose weights are all Gaussian, for pFedBayes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lightning_modules.layers.variational import check_noise, draw_noise, softplus_std
from lightning_modules.losses import Moments
from pfl.method import at_least_one

NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


class MeanFieldNet(nn.Module):
    """A network whose weights and biases are independent Gaussians.

    Used by pFedBayes (Zhang et al., "Personalized Federated Learning via Variational Bayesian
    Inference", ICML 2022, arXiv 2206.07977). The parameters of ``mean`` are the means mu;
    ``raw_std`` contains rho under the same names; the standard deviations are ``softplus(rho)``.
    Parameters of normalisation layers have no rho and stay plain numbers (our choice).

    Args:
        net: The network; it becomes ``mean``.
        init_raw_std: Initial rho; -3 is a standard deviation of 0.049.
        init_mean_std: Standard deviation of the normal draws that initialise the means (pFedBayes:
            0.1); ``None`` keeps the network's values.

    Example:
        >>> net = MeanFieldNet(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
        >>> [name for name, _ in net.raw_std.named_parameters()]
        ['0.weight', '0.bias', '2.weight', '2.bias']
        >>> x = torch.rand(6, 4)
        >>> net(x).shape, net(x, samples=3).shape
        (torch.Size([6, 2]), torch.Size([3, 6, 2]))
    """

    def __init__(
        self, net: nn.Module, init_raw_std: float = -3.0, init_mean_std: float | None = None
    ) -> None:
        super().__init__()
        self.mean = net
        self.raw_std = _raw_stds(net, init_raw_std)
        if init_mean_std is not None:
            with torch.no_grad():
                for mean, _ in self.moments().values():
                    mean.normal_(0, init_mean_std)

    def forward(
        self, x: Tensor, samples: int | None = None, noise: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return the logits at the means, or for S draws of all weights, each shared by the batch.

        Args:
            x: (B, ...).
            samples: S; ``None`` without ``noise`` uses the means.
            noise: Standard normal draws with the shapes of :meth:`noise_shapes`, from which the
                weights are computed; ``None`` lets the network draw them.

        Returns:
            (B, C) at the means, (S, B, C) for draws. Batch norms in train mode update their running
            statistics once per draw.

        Raises:
            ValueError: ``samples`` is below one, or ``noise`` has other shapes.
        """
        if noise is None:
            if samples is None:
                logits: Tensor = self.mean(x)
                return logits
            noise = draw_noise(self.noise_shapes(samples), next(self.mean.parameters()))
        count = check_noise(noise, samples, self.noise_shapes)
        moments = self.moments()
        return torch.stack(
            [
                functional_call(
                    self.mean,
                    {name: mean + std * noise[name][k] for name, (mean, std) in moments.items()},
                    (x,),
                )
                for k in range(count)
            ]
        )

    def noise_shapes(self, samples: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the normal draws that ``samples`` draws of the weights need.

        Raises:
            ValueError: ``samples`` is below one.
        """
        at_least_one(samples=samples)
        return {n: (samples, *raw.shape) for n, raw in self.raw_std.named_parameters()}

    def moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the mean and standard deviation of every Gaussian weight, by name."""
        means = dict(self.mean.named_parameters())
        return {
            name: (means[name], softplus_std(raw)) for name, raw in self.raw_std.named_parameters()
        }


def constant(moments: Moments) -> Moments:
    """Detach the moments."""
    return {name: (mean.detach(), std.detach()) for name, (mean, std) in moments.items()}


def _raw_stds(net: nn.Module, value: float, seen: set[nn.Parameter] | None = None) -> nn.Module:
    """Return a module tree with the names of ``net``, with every Gaussian weight set to ``value``.

    A weight that two layers share is one Gaussian, under its first name.
    """
    tree, seen = nn.Module(), set() if seen is None else seen
    if not isinstance(net, NORMALISATIONS):
        for name, parameter in net.named_parameters(recurse=False):
            if parameter not in seen:
                tree.register_parameter(name, nn.Parameter(torch.full_like(parameter, value)))
            seen.add(parameter)
    for name, child in net.named_children():
        tree.add_module(name, _raw_stds(child, value, seen))
    return tree
