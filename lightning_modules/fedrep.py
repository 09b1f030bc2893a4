"""FedRep: a shared backbone and a private head, trained one after the other, the head first.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021,
arXiv 2102.07078.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class FedRep(fl.ClientModule):
    """A shared backbone and a private head, trained one after the other, the head first.

    Each participant trains its head for many epochs on the received backbone, then the backbone for
    a few epochs. While the head is trained, the backbone is in eval mode, and its features are
    computed once. The backbone travels both ways; the head stays.

    Args:
        net: A ``SplitNet``, unless ``personal_layers`` is given.
        personal_layers: Number of last layers that are the head; ``None`` is the network's head.
        head_epochs: Epochs of the head; ``None`` means ``epochs - body_epochs``, as the official
            code counts.
        body_epochs: Epochs of the backbone.
        final_head_epochs: Before each test, every client trains the head of a copy for this many
            more epochs. With 10 (or ``head_epochs``, if larger) the last test is that of the
            official code, which ends with such a round.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number of epochs is negative, or ``epochs`` is less than ``body_epochs``,
            which leaves no epoch for the head.
    """

    record = fl.MethodRecord(
        name="FedRep",
        family="A part of the network stays with the client",
        travels="backbone",
        stays="head",
        apart="the head is trained first, then the backbone",
        paper=fl.Paper(
            "Exploiting Shared Representations for Personalized Federated Learning",
            "Collins, Liam and Hassani, Hamed and Mokhtari, Aryan and Shakkottai, Sanjay",
            "ICML",
            2021,
            "https://arxiv.org/abs/2102.07078",
        ),
    )

    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        personal_layers: int | None = None,
        head_epochs: fl.NotNegative[int] | None = 10,
        body_epochs: fl.NotNegative[int] = 1,
        final_head_epochs: fl.NotNegative[int] = 0,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        if personal_layers is None:
            self.needs = ("parts",)
        self.personal_layers = personal_layers
        if head_epochs is None and self.epochs < body_epochs:
            raise ValueError(
                f"epochs is {self.epochs}, of which body_epochs takes {body_epochs}, and the head "
                "the rest: give more epochs, or head_epochs"
            )
        self.head_epochs = self.epochs - body_epochs if head_epochs is None else head_epochs
        self.body_epochs = body_epochs
        self.final_head_epochs = final_head_epochs

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return epochs of head and backbone, up to the authors'."""
        return (
            fl.Dimension("head_epochs", choices=(1, 5, 10)),
            fl.Dimension("body_epochs", choices=(1, 5)),
        )

    @property
    def shared(self) -> fl.Patterns:
        """All but the head."""
        return fl.halves_of(self.net, self.personal_layers).body

    @property
    def kept(self) -> fl.Patterns:
        """The head."""
        return fl.halves_of(self.net, self.personal_layers).head

    def plan(self) -> fl.Plan:
        """Declare training of the head, then of the backbone."""
        return [self._phase("head", self.head_epochs), self._phase("body", self.body_epochs)]

    def adapt(self) -> fl.Plan:
        """Declare more epochs of the head."""
        return [self._phase("head", self.final_head_epochs, "final_head")]

    def _phase(self, part: fl.Part, epochs: float, name: str | None = None) -> fl.Phase:
        layers = self.personal_layers
        halves = None if layers is None else fl.halves_of(self.net, layers)
        return fl.part_phase(self, part, epochs, name=name, halves=halves)
