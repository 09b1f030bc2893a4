"""Class-conditional Gaussians of features with one covariance, and their linear classifier.

These are the computations of pFedFDA ("Personalized Federated Learning via Feature Distribution
Adaptation", NeurIPS 2024) on feature distributions. They run in float64, on the CPU if the device
has no float64.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from pfl import method as fl

CovarianceRegulariser: TypeAlias = Literal["official", "small"]

REGULARISERS: dict[CovarianceRegulariser, tuple[float, float]] = {
    "official": (1e-4, 1.0),
    "small": (0.0, 1e-4),
}
"""Numbers added to every entry and to the diagonal; both make a covariance positive definite."""


class Gaussians(NamedTuple):
    """One Gaussian per class.

    Attributes:
        means: (C, D).
        covariance: (D, D), common to all classes.
    """

    means: Tensor
    covariance: Tensor


class Fold(NamedTuple):
    """One part of the samples, and the Gaussians estimated from the other part."""

    z: Tensor
    y: Tensor
    others: Gaussians


def discriminant(gaussians: Gaussians, prior: Tensor, eps: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Return weight (C, D) and bias (C,) of the logits ``log N(z; m_y, S~) + log prior_y + const``.

    ``S~ = (1 - eps) S + eps (tr S / D) I``, ``A = M S~^-1``, logits ``z A^T - 1/2 rowsum(M * A) +
    log prior``.

    Args:
        gaussians: M and S.
        prior: (C,) positive class probabilities.
        eps: Fraction of the isotropic part.

    Example:
        >>> unit = Gaussians(torch.tensor([[2.0], [0.0]]), torch.eye(1))
        >>> weight, bias = discriminant(unit, torch.tensor([0.5, 0.5]))
        >>> weight.flatten().tolist(), (bias[0] - bias[1]).item()
        ([2.0, 0.0], -2.0)
    """
    weight = _solve(gaussians.covariance, gaussians.means, eps)
    return weight, prior.log() - 0.5 * (gaussians.means * weight).sum(1)


def estimate(
    z: Tensor, y: Tensor, common: Gaussians, regulariser: CovarianceRegulariser = "official"
) -> Gaussians:
    """Estimate class means, and the scatter around them over ``n - 1``, plus a regulariser.

    A class with at most two samples keeps the common mean; with at most one sample in total, the
    covariance is the common one. The result is positive definite by construction.

    Args:
        z: (n, D) features.
        y: (n,) labels.
        common: The global Gaussians.
        regulariser: ``official`` adds 1e-4 to every entry and 1 to the diagonal, as the released
            code does, which shrinks the classifier strongly; ``small`` adds 1e-4 to the diagonal,
            as was probably intended.
    """
    member = F.one_hot(y, len(common.means)).to(z)
    counts = member.sum(0)[:, None]
    means = torch.where(counts > 2, member.T @ z / counts.clamp_min(1), common.means)
    if len(z) <= 1:
        return Gaussians(means, common.covariance)
    apart = z - means[y]
    everywhere, diagonal = REGULARISERS[regulariser]
    identity = torch.eye(z.shape[1]).to(z)
    return Gaussians(means, apart.T @ apart / (len(z) - 1) + everywhere + diagonal * identity)


def blend(local: Gaussians, common: Gaussians, coefficients: Tensor) -> Gaussians:
    """Blend ``b own + (1 - b) common``, with one coefficient for means and one for the covariance.

    Args:
        local: The client's Gaussians.
        common: The global Gaussians.
        coefficients: (2,) in [0, 1].
    """
    b_mean, b_cov = coefficients
    return Gaussians(
        torch.lerp(common.means, local.means, b_mean),
        torch.lerp(common.covariance, local.covariance, b_cov),
    )


def choose_coefficients(
    z: Tensor,
    y: Tensor,
    common: Gaussians,
    prior: Tensor,
    eps: float = 1e-4,
    regulariser: CovarianceRegulariser = "official",
) -> Tensor:
    """Choose the (2,) coefficients whose blend classifies held-out samples best.

    This is two-fold stratified cross-validation without the classes that have a single sample. The
    cross-entropy of both folds together is minimised, first on an 11 x 11 grid, then by L-BFGS-B.
    If no class has two samples, the result is 0, the global Gaussians. If only one class has, all
    coefficients are equally good, and the result is 1/2.

    Args:
        z: (n, D) float64 features.
        y: (n,) labels.
        common: The global Gaussians, in float64.
        prior: (C,) class probabilities of the client.
        eps: See :func:`discriminant`.
        regulariser: See :func:`estimate`.
    """
    counts = torch.bincount(y, minlength=len(prior))
    repeated = counts[y] >= 2
    if not repeated.any():
        return z.new_zeros(2)
    if (counts >= 2).sum() == 1:
        return z.new_full((2,), 0.5)
    folds = _folds(z[repeated], y[repeated], common, regulariser)
    shares = torch.linspace(0, 1, 11, dtype=z.dtype, device=z.device)
    losses = _losses_on_grid(folds, common, prior, eps, shares)
    best = int(losses.argmin())
    start = torch.stack([shares[best // len(shares)], shares[best % len(shares)]])

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            inner = torch.from_numpy(point).to(z).requires_grad_()
            loss = _loss(folds, common, prior, eps, inner)
            (slope,) = torch.autograd.grad(loss, inner)
        return float(loss.detach()), slope.cpu().numpy()

    optimum = minimize(
        objective,
        start.cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * 2,
        options={"maxiter": 10},
    )
    return torch.from_numpy(optimum.x).to(z).clamp(0, 1)


def pack(symmetric: Tensor) -> Tensor:
    """Return the D (D + 1) / 2 numbers of a symmetric matrix.

    Example:
        >>> pack(torch.tensor([[1.0, 2.0], [2.0, 3.0]])).tolist()
        [1.0, 2.0, 3.0]
    """
    size = len(symmetric)
    rows, columns = torch.tril_indices(size, size, device=symmetric.device)
    return symmetric[rows, columns]


def unpack(packed: Tensor) -> Tensor:
    """Return the symmetric matrix that :func:`pack` packed.

    Example:
        >>> unpack(torch.tensor([1.0, 2.0, 3.0])).tolist()
        [[1.0, 2.0], [2.0, 3.0]]
    """
    size = int((2 * len(packed)) ** 0.5)
    rows, columns = torch.tril_indices(size, size, device=packed.device)
    full = packed.new_zeros(size, size)
    full[rows, columns] = packed
    full[columns, rows] = packed
    return full


def wide(value: Tensor) -> Tensor:
    """Convert to float64, on the CPU if the device has no float64."""
    double = fl.widest(value.device) is torch.float64
    return value.double() if double else value.cpu().double()


def _solve(covariance: Tensor, means: Tensor, eps: float) -> Tensor:
    """Return (..., D) rows ``m^T S~^-1``."""
    identity = torch.eye(len(covariance)).to(covariance)
    smooth = (1 - eps) * covariance + eps * covariance.diagonal().mean() * identity
    return torch.cholesky_solve(means.mT, torch.linalg.cholesky(smooth)).mT


def _folds(
    z: Tensor, y: Tensor, common: Gaussians, regulariser: CovarianceRegulariser
) -> list[Fold]:
    # Scikit-learn takes a second to import, and other methods do not need it.
    from sklearn.model_selection import StratifiedKFold

    splitter = StratifiedKFold(2, shuffle=True, random_state=0)
    folds = []
    for rest, held in splitter.split(np.zeros(len(y)), y.cpu().numpy()):
        others = estimate(z[rest], y[rest], common, regulariser)
        folds.append(Fold(z[held], y[held], others))
    return folds


def _loss(
    folds: list[Fold], common: Gaussians, prior: Tensor, eps: float, coefficients: Tensor
) -> Tensor:
    """Compute the mean cross-entropy of all held-out samples."""
    losses = []
    for fold in folds:
        blended = blend(fold.others, common, coefficients)
        weight, bias = discriminant(blended, prior, eps)
        losses.append(F.cross_entropy(F.linear(fold.z, weight, bias), fold.y, reduction="sum"))
    return torch.stack(losses).sum() / sum(len(fold.y) for fold in folds)


def _losses_on_grid(
    folds: list[Fold], common: Gaussians, prior: Tensor, eps: float, shares: Tensor
) -> Tensor:
    """Compute (G, G) losses: rows are coefficients of the means, columns of the covariance.

    Each column needs one factorisation: for a given covariance, everything but the bias is linear
    in the means.
    """
    count = len(shares)
    losses = shares.new_zeros(count, count)
    for fold in folds:
        both = torch.cat([fold.others.means, common.means])
        for column, b_cov in enumerate(shares):
            covariance = torch.lerp(common.covariance, fold.others.covariance, b_cov)
            own, shared = _solve(covariance, both, eps).chunk(2)
            own_scores, shared_scores = fold.z @ own.T, fold.z @ shared.T
            for row, b_mean in enumerate(shares):
                means = torch.lerp(common.means, fold.others.means, b_mean)
                bias = prior.log() - 0.5 * (means * torch.lerp(shared, own, b_mean)).sum(1)
                logits = torch.lerp(shared_scores, own_scores, b_mean) + bias
                losses[row, column] += F.cross_entropy(logits, fold.y, reduction="sum")
    return losses / sum(len(fold.y) for fold in folds)
