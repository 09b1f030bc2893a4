"""LP-FT: FedAvg, tested after linear probing followed by fine-tuning.

Kumar et al., "Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution",
ICLR 2022, arXiv 2202.10054, for the two phases; "A Closer Look at Personalized Fine-Tuning in
Heterogeneous Federated Learning", 2025, arXiv 2511.12695, for their use on a federated model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from typing_extensions import Unpack

from lightning_modules import base as fl
from lightning_modules.fedavg import FedAvg


class LPFT(FedAvg):
    """FedAvg whose global model each client probes linearly, then fine-tunes, before each test.

    On a copy, each client first trains the head on fixed features, then the whole network from that
    head; this distorts the features less than immediate fine-tuning. Training is FedAvg's: the
    whole network travels both ways, and nothing stays with the client, as the copy is discarded
    after the test.

    Args:
        net: A ``SplitNet``.
        lp_epochs: Epochs of the head alone, under the frozen backbone in eval mode.
        lp_lr: Learning rate of these epochs; ``None`` means the training rate.
        ft_epochs: Epochs of the whole network.
        ft_lr: Learning rate of these epochs; ``None`` means a tenth of the training rate.
        ft_bn: Whether batch norms use the federation's running statistics (``eval``) or those of
            each batch (``train``) while the whole network is trained.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is negative, or the optimiser has several learning rates.
    """

    record = fl.MethodRecord(
        name="LP-FT",
        family="One model for all, and where to tune it",
        travels="network",
        apart="FedAvg; before the test the head is tuned, then the whole network",
        paper=fl.Paper(
            "Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution",
            (
                "Kumar, Ananya and Raghunathan, Aditi and Jones, Robbie and Ma, Tengyu and "
                "Liang, Percy"
            ),
            "ICLR",
            2022,
            "https://arxiv.org/abs/2202.10054",
        ),
    )

    needs = ("parts",)

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        lp_epochs: fl.NotNegative[int] = 5,
        lp_lr: fl.NotNegative[float] | None = None,
        ft_epochs: fl.NotNegative[int] = 10,
        ft_lr: fl.NotNegative[float] | None = None,
        ft_bn: Literal["eval", "train"] = "eval",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        rate = fl.learning_rate(self.configure_optimizers())
        self.lp_epochs = lp_epochs
        self.lp_optimizer = fl.with_lr(self.optimizer, rate if lp_lr is None else lp_lr)
        self.ft_epochs = ft_epochs
        self.ft_optimizer = fl.with_lr(self.optimizer, rate / 10 if ft_lr is None else ft_lr)
        self.ft_bn = ft_bn

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return epochs of head and network, up to the second paper's 15."""
        return (
            fl.Dimension("lp_epochs", choices=(1, 5)),
            fl.Dimension("ft_epochs", choices=(1, 5, 10)),
        )

    def adapt(self) -> fl.Plan:
        """Declare training the head, then the whole network, each with its own optimiser."""
        norms = fl.batch_norms(self) if self.ft_bn == "eval" else ()
        return [
            fl.part_phase(self, "head", self.lp_epochs, name="probe", optimizer=self.lp_optimizer),
            fl.part_phase(
                self,
                "all",
                self.ft_epochs,
                name="fine_tune",
                optimizer=self.ft_optimizer,
                evals=norms,
            ),
        ]
