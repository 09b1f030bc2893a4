"""Layers of the methods: a linear layer with Gaussian weights, frozen copies, GPFL's valve."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules.losses import gaussian_kl
from pfl.checks import at_least_one, not_negative, positive
from pfl.state import assign

MIN_STD = 1e-6


class VariationalLinear(nn.Module):
    """A linear layer whose weights and biases are independent Gaussians.

    Every scalar has a mean and a standard deviation, ``softplus(raw_std)`` but at least 1e-6.
    pFedVEM (Zhu et al., "Confidence-aware Personalized Federated Learning via Variational
    Expectation Maximization", CVPR 2023) makes it the head of every client.

    Args:
        in_features: D.
        out_features: C.
        init_std: Standard deviation of every weight and bias at the start.
        init_mean_std: The means start as normal draws around zero with this standard deviation.
            pFedVEM's 1 gives logits of size ``sqrt(D)``.

    Raises:
        ValueError: ``init_std`` is not positive, or ``init_mean_std`` negative.

    Example:
        >>> layer = VariationalLinear(4, 3, init_std=0.1)
        >>> z = torch.ones(2, 4)
        >>> layer(z).shape, layer(z, samples=5).shape
        (torch.Size([2, 3]), torch.Size([5, 2, 3]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        init_std: float = 1.0,
        init_mean_std: float = 1.0,
    ) -> None:
        super().__init__()
        positive(init_std=init_std)
        not_negative(init_mean_std=init_mean_std)
        self.in_features = in_features
        self.out_features = out_features
        shape = (out_features, in_features)
        raw = inverse_softplus(init_std)
        self.mean_weight = nn.Parameter(torch.randn(shape) * init_mean_std)
        self.mean_bias = nn.Parameter(torch.randn(out_features) * init_mean_std)
        self.raw_std_weight = nn.Parameter(torch.full(shape, raw))
        self.raw_std_bias = nn.Parameter(torch.full((out_features,), raw))

    @property
    def std_weight(self) -> Tensor:
        """(C, D) standard deviations of the weights."""
        return softplus_std(self.raw_std_weight)

    @property
    def std_bias(self) -> Tensor:
        """(C,) standard deviations of the biases."""
        return softplus_std(self.raw_std_bias)

    def forward(
        self,
        z: Tensor,
        samples: int | None = None,
        noise: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Logits at the means, or for K draws of weights and biases, each shared by the batch.

        Args:
            z: (B, D).
            samples: K; ``None`` without ``noise`` for the means.
            noise: Standard normal draws of :meth:`noise_shapes`, from which the weights follow;
                ``None`` lets the layer draw.
            generator: Where the layer draws from; ``None`` is torch's default stream.

        Returns:
            (B, C) at the means, (K, B, C) for draws.

        Raises:
            ValueError: ``samples`` is below one, or ``noise`` does not have its shapes.
        """
        if noise is None:
            if samples is None:
                return F.linear(z, self.mean_weight, self.mean_bias)
            noise = draw_noise(self.noise_shapes(samples), self.mean_weight, generator)
        check_noise(noise, samples, self.noise_shapes)
        weight = self.mean_weight + self.std_weight * noise["weight"]
        bias = self.mean_bias + self.std_bias * noise["bias"]
        return z @ weight.mT + bias[:, None, :]

    def noise_shapes(self, samples: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the standard normal draws that ``samples`` draws of the weights need.

        Raises:
            ValueError: ``samples`` is below one.
        """
        at_least_one(samples=samples)
        shape = (samples, self.out_features)
        return {"weight": (*shape, self.in_features), "bias": shape}

    def kl(self, prior_weight: Tensor, prior_bias: Tensor, prior_std: Tensor | float) -> Tensor:
        """KL divergence of these Gaussians from a prior with one standard deviation for all.

        Args:
            prior_weight: (C, D) prior means of the weights.
            prior_bias: (C,) prior means of the biases.
            prior_std: One number (pFedVEM: ``tau ** -0.5``).
        """
        return gaussian_kl(
            self.mean_weight, self.std_weight, prior_weight, prior_std
        ) + gaussian_kl(self.mean_bias, self.std_bias, prior_bias, prior_std)

    def extra_repr(self) -> str:
        """What ``print`` shows in the brackets."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


class Frozen(nn.Module):
    """A module that is in eval mode whatever it is told; see :func:`frozen`.

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
        """What the module says; a gradient flows to ``x`` if it wants one."""
        output: Tensor = self.module(x)
        return output


def frozen(module: nn.Module, batch_statistics: bool = False) -> Frozen:
    """A deep copy that no training changes: a teacher, an anchor, a previous model.

    Its parameters are buffers: no optimiser sees them and they take no gradient, but they are part
    of the state dict, under ``module.``, so that they can stay with a client or be stacked over
    clients. Refresh its values with :func:`copy_into`.

    Args:
        module: What to copy; it stays as it is.
        batch_statistics: Batch norms of the copy normalise with each batch's own statistics, as in
            train mode, and keep no running ones. Without it they use the copied running statistics.

    Example:
        >>> teacher = frozen(nn.Linear(2, 1)).train()
        >>> list(teacher.parameters()), list(teacher.state_dict()), teacher.module.training
        ([], ['module.weight', 'module.bias'], False)
    """
    duplicate = copy.deepcopy(module)
    for part in duplicate.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach())
        if batch_statistics and isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
    return Frozen(duplicate)


def copy_into(frozen_copy: Frozen, module: nn.Module) -> None:
    """Give a frozen copy the present values of a module, in place.

    Args:
        frozen_copy: Made by :func:`frozen` from ``module`` or one of the same make.
        module: Where the values are taken from.

    Raises:
        ValueError: The module lacks an entry of the copy.
    """
    values = module.state_dict()
    names = frozen_copy.module.state_dict().keys()
    if missing := sorted(names - values.keys()):
        raise ValueError(
            f"{type(module).__name__} has no entry {missing[0]!r}, which the frozen "
            f"{type(frozen_copy.module).__name__} has"
        )
    assign(frozen_copy.module, {name: values[name] for name in names})


def frozen_parameters(frozen_copy: Frozen, module: nn.Module) -> list[Tensor]:
    """A frozen copy's values of a module's parameters, in their order.

    Args:
        frozen_copy: Made by :func:`frozen` from ``module`` or one of the same make.
        module: Says which entries are parameters; the copy knows only buffers.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> [tuple(value.shape) for value in frozen_parameters(frozen(net), net)]
        [(3, 2), (3,), (3,), (3,)]
    """
    values = dict(frozen_copy.module.named_buffers())
    return [values[name] for name, _ in module.named_parameters()]


class ConditionalValve(nn.Module):
    """GPFL's conditional valve (CoV): scales and shifts features as a condition tells.

    ``ReLU(z * (gamma + 1) + beta)`` with gamma and beta each ``LayerNorm(ReLU(Linear(condition)))``
    (Zhang et al., ICCV 2023, arXiv 2308.10279). ``2 (D^2 + D) + 4 D`` parameters.

    Args:
        features: D.

    Example:
        >>> ConditionalValve(8)(torch.rand(5, 8), torch.rand(8)).shape
        torch.Size([5, 8])
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = self._branch(features)
        self.shift = self._branch(features)

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """(B, D) features under a condition.

        Args:
            z: (B, D).
            condition: (D,) for the whole batch, or (B, D).
        """
        return F.relu(z * (self.scale(condition) + 1) + self.shift(condition))

    @staticmethod
    def _branch(features: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.LayerNorm(features))


def softplus_std(raw: Tensor) -> Tensor:
    """Standard deviations of raw parameters: ``log(1 + e^raw)``, at least 1e-6."""
    return F.softplus(raw).clamp_min(MIN_STD)


def inverse_softplus(value: float) -> float:
    """The raw parameter whose softplus is ``value``."""
    return value + math.log(-math.expm1(-value))


def draw_noise(
    shapes: Mapping[str, tuple[int, ...]], like: Tensor, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Standard normal draws by name.

    Args:
        shapes: Shape of each draw.
        like: Gives type and device.
        generator: On the CPU or on that device; ``None`` is torch's default stream.
    """
    device = like.device if generator is None else generator.device
    return {
        name: torch.randn(shape, generator=generator, device=device, dtype=like.dtype).to(like)
        for name, shape in shapes.items()
    }


def check_noise(
    noise: Mapping[str, Tensor],
    samples: int | None,
    shapes: Callable[[int], dict[str, tuple[int, ...]]],
) -> int:
    """The number of draws that ``noise`` holds.

    Args:
        noise: By name; the first dimension counts the draws.
        samples: How many there should be; ``None`` for as many as there are.
        shapes: From that number to the shape of each draw.

    Raises:
        ValueError: Names, shapes or the number are not the expected ones.
    """
    found = {name: tuple(draw.shape) for name, draw in noise.items()}
    count = next((shape[0] for shape in found.values()), 0) if samples is None else samples
    if found != (expected := shapes(count)):
        raise ValueError(f"noise must have the shapes {expected}, got {found}")
    return count
