"""FFA-LoRA: of each low-rank product B A, the factor A stays at its random start; B is averaged.

Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024, arXiv 2403.12313.
There is no code of the authors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class FFALoRA(fl.ClientModule):
    """Low-rank adapters whose A is a constant, so that the mean of B is that of the products.

    A is the network's initial one, the same on all clients: in no message, no client's state and no
    optimiser. B and the head are trained and averaged, as in FedAvg.

    Args:
        net: A network adapted by :class:`LoRA` or by ``peft``, changed in place.
        head: Whether what is trained beside the adapters is averaged (``shared``), stays with the
            client (``kept``), or is a constant too (``frozen``).
        ranks: For clients of different ranks, these ranks, in turn: client i has the first r_i rows
            of A, and the columns of its B beyond are zero, so that the mean stays exact. One s is
            for all. ``None`` gives all clients the network's rank. No paper has this.
        init: A as the network has it (``kaiming``, of LoRA), or the nearest matrix with orthonormal
            rows.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: The network is not adapted, or each client has another one.
        ValueError: A rank is beyond that of the network.
    """

    record = fl.MethodRecord(
        name="FFA-LoRA",
        family="Adapters on a frozen network",
        travels="B of the adapters, head",
        apart="the factor A is a constant, so that averaging B is exact",
        paper=fl.Paper(
            "Improving {LoRA} in Privacy-preserving Federated Learning",
            "Sun, Youbang and Li, Zitao and Li, Yaliang and Ding, Bolin",
            "ICLR",
            2024,
            "https://arxiv.org/abs/2403.12313",
        ),
        shown=None,
    )

    vectorizable = True
    needs = (fl.ADAPTERS,)
    one_model = True

    def __init__(
        self,
        net: nn.Module,
        *,
        head: Literal["shared", "kept", "frozen"] = "shared",
        init: Literal["kaiming", "orthogonal"] = "kaiming",
        ranks: Sequence[int] | None = None,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        factors = fl.factors_of(net)
        if any(isinstance(part, fl.Variants) for part in net.modules()):
            raise TypeError("FFALoRA needs the same A on all clients: give it one network")
        for name in factors.down if init == "orthogonal" else ():
            fl.orthogonalise(net.get_parameter(name.removeprefix("net.")))
        still = factors.others if head == "frozen" else ()
        if ranks is None:
            still += factors.down
        else:
            most = min(len(net.get_parameter(n.removeprefix("net."))) for n in factors.down)
            if not ranks or min(ranks) < 1 or max(ranks) > most:
                raise ValueError(f"ranks must lie between 1 and {most}, got {[*ranks]}")
            # Entries, which begin anew with each job, as those of a client have its own rows.
            for name in factors.down:
                owner, _, leaf = name.removeprefix("net.").rpartition(".")
                fl.as_buffer(net.get_submodule(owner), leaf)
        self.ranks = tuple(ranks or ())
        fl.make_constant(net, tuple(name.removeprefix("net.") for name in still))
        self.factors, self.head = factors, head

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the message; leave the client the rows and columns of its rank."""
        super().receive(broadcast, info)
        if self.ranks:
            rank, entries = self._rank(info), self.state_dict()
            for down, up in zip(self.factors.down, self.factors.up, strict=True):
                entries[down][rank:] = 0
                entries[up][:, rank:] = 0

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return what travels, without what a private run's noise left beyond the client's rank."""
        sent = super().upload(info)
        if self.ranks:
            for up in self.factors.up:
                sent.shared[up][:, self._rank(info) :] = 0
        return sent

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Load the common model, with all its columns."""
        if broadcast is not None:
            super().receive(broadcast, info)

    def _rank(self, info: fl.ClientInfo) -> int:
        """Return a client's rank, of those that are given."""
        return self.ranks[info.client % len(self.ranks)]

    @property
    def shared(self) -> fl.Patterns:
        """Every B, and the head if it is averaged."""
        return (*self.factors.up, *(self.factors.others if self.head == "shared" else ()))

    @property
    def kept(self) -> fl.Patterns:
        """The head, if it stays."""
        return self.factors.others if self.head == "kept" else ()
