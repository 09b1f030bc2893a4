"""A linear layer with Gaussian weights, and functions to draw such weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules.losses import gaussian_kl
from pfl.method import at_least_one, positive

MIN_STD = 1e-6


class VariationalLinear(nn.Module):
    """A linear layer whose weights and biases are independent Gaussians.

    Every scalar has a mean and a standard deviation, which is ``softplus(raw_std)`` but at least
    1e-6. pFedVEM (Zhu et al., "Confidence-aware Personalized Federated Learning via Variational
    Expectation Maximization", CVPR 2023) uses this layer as the head of every client.

    Args:
        in_features: D.
        out_features: C.
        init_std: Initial standard deviation of every weight and bias. The means start as standard
            normal draws, which give logits of size ``sqrt(D)``.

    Raises:
        ValueError: ``init_std`` is not positive.

    Example:
        >>> layer = VariationalLinear(4, 3, init_std=0.1)
        >>> z = torch.ones(2, 4)
        >>> layer(z).shape, layer(z, samples=5).shape
        (torch.Size([2, 3]), torch.Size([5, 2, 3]))
    """

    def __init__(self, in_features: int, out_features: int, init_std: float = 1.0) -> None:
        super().__init__()
        positive(init_std=init_std)
        self.in_features = in_features
        self.out_features = out_features
        shape = (out_features, in_features)
        raw = inverse_softplus(init_std)
        self.mean_weight = nn.Parameter(torch.randn(shape))
        self.mean_bias = nn.Parameter(torch.randn(out_features))
        self.raw_std_weight = nn.Parameter(torch.full(shape, raw))
        self.raw_std_bias = nn.Parameter(torch.full((out_features,), raw))

    @property
    def std_weight(self) -> Tensor:
        """Return the (C, D) standard deviations of the weights."""
        return softplus_std(self.raw_std_weight)

    @property
    def std_bias(self) -> Tensor:
        """Return the (C,) standard deviations of the biases."""
        return softplus_std(self.raw_std_bias)

    def forward(
        self, z: Tensor, samples: int | None = None, noise: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return the logits at the means, or for K draws of the weights, each shared by the batch.

        Args:
            z: (B, D).
            samples: K; ``None`` without ``noise`` uses the means.
            noise: Standard normal draws with the shapes of :meth:`noise_shapes`, from which the
                weights are computed; ``None`` lets the layer draw them.

        Returns:
            (B, C) at the means, (K, B, C) for draws.

        Raises:
            ValueError: ``samples`` is below one, or ``noise`` has other shapes.
        """
        if noise is None:
            if samples is None:
                return F.linear(z, self.mean_weight, self.mean_bias)
            noise = draw_noise(self.noise_shapes(samples), self.mean_weight)
        check_noise(noise, samples, self.noise_shapes)
        weight = self.mean_weight + self.std_weight * noise["weight"]
        bias = self.mean_bias + self.std_bias * noise["bias"]
        return z @ weight.mT + bias[:, None, :]

    def noise_shapes(self, samples: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the normal draws that ``samples`` draws of the weights need.

        Raises:
            ValueError: ``samples`` is below one.
        """
        at_least_one(samples=samples)
        shape = (samples, self.out_features)
        return {"weight": (*shape, self.in_features), "bias": shape}

    def kl(self, prior_weight: Tensor, prior_bias: Tensor, prior_std: Tensor | float) -> Tensor:
        """Compute the KL divergence from a prior with one standard deviation for all weights.

        Args:
            prior_weight: (C, D) prior means of the weights.
            prior_bias: (C,) prior means of the biases.
            prior_std: One number (pFedVEM: ``tau ** -0.5``).
        """
        return gaussian_kl(
            self.mean_weight, self.std_weight, prior_weight, prior_std
        ) + gaussian_kl(self.mean_bias, self.std_bias, prior_bias, prior_std)

    def extra_repr(self) -> str:
        """Return the sizes, for ``print``."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


def softplus_std(raw: Tensor) -> Tensor:
    """Return the standard deviations of raw parameters: ``log(1 + e^raw)``, at least 1e-6."""
    return F.softplus(raw).clamp_min(MIN_STD)


def softplus_std_slope(raw: Tensor, std: Tensor, slope: Tensor) -> Tensor:
    """Return the gradient with respect to raw parameters; zero where ``std`` is at its bound.

    Args:
        raw: (...) the raw parameters.
        std: (...) their standard deviations, from :func:`softplus_std`.
        slope: (...) the gradient with respect to the standard deviations.
    """
    # Beyond 20, torch's softplus is the identity.
    inner = torch.where(std > MIN_STD, slope, 0.0)
    result: Tensor = torch.ops.aten.softplus_backward(inner, raw, 1, 20)
    return result


def inverse_softplus(value: float) -> float:
    """Return the raw parameter whose softplus is ``value``."""
    return value + math.log(-math.expm1(-value))


def draw_noise(
    shapes: Mapping[str, tuple[int, ...]], like: Tensor, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Draw standard normal noise, by name.

    Args:
        shapes: Shape of each draw.
        like: A tensor with the type and device of the result.
        generator: Random generator, on the CPU or on that device; ``None`` is torch's default.
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
    """Check the shapes of ``noise``, and return its number of draws.

    Args:
        noise: Draws by name; the first dimension is the number of draws.
        samples: The expected number of draws; ``None`` accepts any.
        shapes: Maps a number of draws to the shape of each entry.

    Raises:
        ValueError: Names, shapes or the number of draws are not as expected.
    """
    drawn = {name: tuple(draw.shape) for name, draw in noise.items()}
    count = next((shape[0] for shape in drawn.values()), 0) if samples is None else samples
    if drawn != (expected := shapes(count)):
        raise ValueError(f"noise must have the shapes {expected}, got {drawn}")
    return count
