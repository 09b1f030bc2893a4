"""pFedVEM whose confidence comes from one of its two terms alone.

Zhu, Ma and Blaschko, "Confidence-aware Personalized Federated Learning via Variational Expectation
Maximization", CVPR 2023, Tables 2 and 3.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from lightning_modules import base as fl
from lightning_modules.pfedvem import PFedVEM, inverse_mean


class PFedVEMVariant(PFedVEM):
    """pFedVEM whose confidence comes from the uncertainty of the head, or its deviation, alone.

    pFedVEM itself takes both terms of ``rho^2 = (tr Sigma + ||mu - w||^2) / d``. What travels and
    what stays is the same. If the term is zero, as the deviation in the first round, tau is 1.

    Args:
        net: As in :class:`PFedVEM`.
        tau_terms: The term: the first (``uncertainty``) or the second (``deviation``).
        options: See :class:`PFedVEM`.
    """

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        tau_terms: Literal["uncertainty", "deviation"] = "uncertainty",
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        self.tau_terms = tau_terms

    def tau(self, mean: Tensor, std: Tensor, prior: Tensor) -> Tensor:
        """Compute the confidence from one of the two sums."""
        if self.tau_terms == "uncertainty":
            return inverse_mean(std.square())
        return inverse_mean((mean - prior).square())
