"""KL divergences between diagonal Gaussians, for tensors or for the weights of whole networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Moments: TypeAlias = Mapping[str, tuple[Tensor, Tensor]]


def gaussian_kl(
    mean: Tensor, std: Tensor, prior_mean: Tensor | float, prior_std: Tensor | float
) -> Tensor:
    """Compute the KL divergence of one diagonal Gaussian from another, summed over all entries.

    ``sum log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2``, in a form that is exactly zero for
    equal Gaussians. Used by pFedVEM (Zhu et al., CVPR 2023, with one ``prior_std`` for all entries)
    and pFedBayes (Zhang et al., ICML 2022, arXiv 2206.07977).

    Args:
        mean: (...) m1.
        std: (...) s1, positive.
        prior_mean: (...) or a number, m2.
        prior_std: (...) or a number, s2, positive.

    Example:
        >>> gaussian_kl(torch.ones(3), torch.ones(3), 0.0, 1.0)  # 3 * 1/2
        tensor(1.5000)
    """
    ratio = (std / prior_std).square()
    distance = ((mean - prior_mean) / prior_std).square()
    return 0.5 * (ratio - 1 - ratio.log() + distance).sum()


def mean_field_kl(moments: Moments, prior: Moments) -> Tensor:
    """Compute the KL divergence between the Gaussians of two networks, over all weights.

    Args:
        moments: Mean and standard deviation of each weight, by name, as returned by
            :meth:`~lightning_modules.layers.MeanFieldNet.moments`.
        prior: The same for a network with the same weights.

    Raises:
        ValueError: The two have different weights.
    """
    if moments.keys() != prior.keys():
        name = sorted(moments.keys() ^ prior.keys())[0]
        raise ValueError(f"the weight {name!r} is a Gaussian in only one of the two networks")
    return torch.stack([gaussian_kl(*moments[name], *prior[name]) for name in moments]).sum()


def mean_field_kl_slopes(moments: Moments, prior: Moments) -> Moments:
    """Compute the gradient of :func:`mean_field_kl` with respect to means and standard deviations.

    ``(m1 - m2) / s2^2`` and ``((s1 / s2)^2 - 1) / s1``, in a form that is exactly zero for equal
    Gaussians.

    Args:
        moments: As in :func:`mean_field_kl`; the gradient is taken with respect to these.
        prior: As in :func:`mean_field_kl`.
    """
    slopes = {}
    for name, (mean, std) in moments.items():
        prior_mean, prior_std = prior[name]
        of_std = (std / prior_std).square().sub_(1).div_(std)
        slopes[name] = (mean - prior_mean).div_(prior_std.square()), of_std
    return slopes
