"""Fine-tuning before the test, which turns a method into its ``-P`` variant.

FedAS (Yang et al., CVPR 2024) compares with FedAvg-P and FedProx-P; FedBABU (Oh et al., ICLR 2022,
arXiv 2106.06042) personalises in this way only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import nn

from lightning_modules import base as fl


class FineTuned(fl.ClientModule, ABC):
    """Base of the ``-P`` variants, whose clients are tested with a fine-tuned copy.

    Every client trains a copy of the model on its own training data, is tested with that copy, and
    discards it. Training, what travels and what stays are the method's own. A variant derives from
    this class before the method, as in ``class FedProxP(FineTuned, FedProx)``, and defines
    ``ft_objective``.

    Args:
        net: The network; a ``SplitNet`` if only a part is fine-tuned.
        ft_epochs: Epochs of fine-tuning; ``None`` means the local epochs of a round.
        ft_part: Part that is fine-tuned. The rest is frozen, in eval mode.
        ft_lr: Learning rate of fine-tuning in the first round; it decays like that of training.
            ``None`` means the learning rate of training.
        ft_bn: Mode of the batch norms in the fine-tuned part: ``train`` uses the statistics of each
            batch and updates the running ones; ``eval`` uses the federation's running statistics,
            for clients with only one or two batches.
        p_mode: ``all_clients`` fine-tunes every client. ``participants_only`` follows the released
            code of FedAS for its ``-P`` rows: no client is fine-tuned, and clients are tested
            before the next broadcast, this round's participants with the model that they just
            trained, the others with the model that they received.
        options: See the method, and :class:`ClientModule`.

    Raises:
        ValueError: A number is negative.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        ft_epochs: fl.EpochCount | None = None,
        ft_part: fl.Part = "all",
        ft_lr: fl.NotNegative[float] | None = None,
        ft_bn: Literal["train", "eval"] = "train",
        p_mode: Literal["all_clients", "participants_only"] = "all_clients",
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        self.ft_epochs = self.epochs if ft_epochs is None else ft_epochs
        self.ft_part: fl.Part = ft_part
        self.ft_optimizer = None if ft_lr is None else fl.with_lr(self.optimizer, ft_lr)
        self.ft_bn = ft_bn
        self.p_mode = p_mode

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return the method's own options, and the epochs of fine-tuning."""
        return (*super().space(), fl.Dimension("ft_epochs", choices=(1, 5, 10)))

    @property
    def evaluate_at(self) -> fl.EvaluationPoint:
        """Right after training with ``participants_only``, otherwise the method's own."""
        return "post_local" if self.p_mode == "participants_only" else super().evaluate_at

    def adapt(self) -> fl.Plan:
        """Declare fine-tuning, which runs on a copy."""
        if self.p_mode == "participants_only":
            return ()
        return [
            fl.part_phase(
                self,
                self.ft_part,
                self.ft_epochs,
                name="fine_tune",
                optimizer=self.ft_optimizer,
                objective=self.ft_objective(),
                evals=fl.batch_norms(self) if self.ft_bn == "eval" else (),
            )
        ]

    @abstractmethod
    def ft_objective(self) -> Callable[[fl.Batch], fl.Terms] | None:
        """Return the objective of fine-tuning; ``None`` is plain cross-entropy."""
