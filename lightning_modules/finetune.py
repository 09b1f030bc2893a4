"""Fine-tuning before the test: what turns a method into its ``-P`` variant.

Every client trains a copy of the model to be tested on its own training data, is tested with that
copy, and discards it. FedAS (Yang et al., CVPR 2024) compares with FedAvg-P and FedProx-P; FedBABU
(Oh et al., ICLR 2022, arXiv 2106.06042) personalises in this way only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from lightning_modules.base import ClientModule
from lightning_modules.layers import batch_norms
from lightning_modules.steps.optimizers import with_lr
from lightning_modules.steps.phases import Part, part_phase
from pfl.core.checks import not_negative
from pfl.core.types import Batch, EvaluationPoint, Plan, Terms


class FineTuned(ClientModule, ABC):
    """The base of ``-P`` variants, which test a fine-tuned copy; it stands before the method.

    ``class FedProxP(FineTuned, FedProx)`` with its ``ft_objective`` is all that a variant needs.
    Nothing travels besides what the method sends, and training is the method's own.

    Args:
        net: The network; a ``SplitNet`` where only a part is tuned.
        ft_epochs: Epochs of fine-tuning; ``None`` takes the local epochs of a round.
        ft_part: What is tuned. The rest is frozen, in eval mode.
        ft_lr: Learning rate of the fine-tuning in the first round, from which it falls as that of
            training does; ``None`` takes that of training.
        ft_bn: Whether batch norms of the tuned part use the statistics of each batch (and move
            their running ones), or keep those of the federation. For clients of one or two batches.
        p_mode: ``all_clients`` is the definition above. ``participants_only`` is what the released
            code of FedAS does for its ``-P`` rows: nobody is fine-tuned, and all are tested before
            the next broadcast, this round's participants with what they just trained, the others
            with the model they received.
        options: See the method, and :class:`ClientModule`.

    Raises:
        ValueError: ``ft_epochs`` is negative.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        ft_epochs: int | None = None,
        ft_part: Part = "all",
        ft_lr: float | None = None,
        ft_bn: Literal["train", "eval"] = "train",
        p_mode: Literal["all_clients", "participants_only"] = "all_clients",
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        not_negative(ft_epochs=ft_epochs)
        self.ft_epochs = self.epochs if ft_epochs is None else ft_epochs
        self.ft_part: Part = ft_part
        self.ft_optimizer = None if ft_lr is None else with_lr(self.optimizer, ft_lr)
        self.ft_bn = ft_bn
        self.p_mode = p_mode

    @property
    def evaluate_at(self) -> EvaluationPoint:
        """Right after training with ``participants_only``; else as the method says."""
        return "post_local" if self.p_mode == "participants_only" else super().evaluate_at

    def adapt(self) -> Plan:
        """Declare fine-tuning, which happens on a copy."""
        if self.p_mode == "participants_only":
            return ()
        return [
            part_phase(
                self,
                self.ft_part,
                self.ft_epochs,
                name="fine_tune",
                optimizer=self.ft_optimizer,
                objective=self.ft_objective(),
                evals=batch_norms(self) if self.ft_bn == "eval" else (),
            )
        ]

    @abstractmethod
    def ft_objective(self) -> Callable[[Batch], Terms] | None:
        """Return the objective of fine-tuning; ``None`` is plain cross-entropy."""
