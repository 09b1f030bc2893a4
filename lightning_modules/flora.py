"""FLoRA: the server stacks the clients' low-rank products, whose sum everybody adds to the weights.

Wang et al., "FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank
Adaptations", NeurIPS 2024, arXiv 2409.05976.

Departs from the authors' code in: factors are told apart by name, and ranks are those of the stack;
a client that has missed a stack is sent the weights instead of all the stacks since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl

Layers: TypeAlias = Mapping[str, tuple[str, str]]
"""Names of the factors A and B of each weight."""


class FLoRA(fl.ClientModule):
    """Low-rank adapters that are stacked by the server, folded into the weights, and drawn anew.

    In each round a client draws a new A, with B = 0, trains both, and sends them. The server stacks
    them: the rows ``p_i A_i`` and the columns ``s_i B_i``, whose product is ``sum p_i s_i B_i A_i``
    for any ranks. Everybody adds it to the weights W of the adapted layers. Clients may have
    networks of different ranks (:class:`Ranks`).

    Args:
        net: A network adapted by :class:`LoRA`, changed in place.
        broadcast: What a client receives: the last round's stack, which it adds to the W that it
            keeps (or all W, if it has missed a stack), or always all W (``dense``); then it keeps
            nothing, and simulations need less memory.
        head: Whether what is trained beside the adapters is averaged (``shared``), stays with the
            client (``kept``), or is a constant (``frozen``).
        options: See :class:`ClientModule`.

    Raises:
        TypeError: The network is not adapted, or not by :class:`LoRA`.
    """

    record = fl.MethodRecord(
        name="FLoRA",
        family="Adapters on a frozen network",
        travels="A and B up, their stack down; head",
        stays="weights with all stacks",
        apart="the server stacks the products, for any ranks, and all add them to the weights",
        paper=fl.Paper(
            (
                "{FLoRA}: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank "
                "Adaptations"
            ),
            (
                "Wang, Ziyao and Shen, Zheyu and He, Yexiao and Sun, Guoheng and Wang, Hongyi and "
                "Lyu, Lingjuan and Li, Ang"
            ),
            "NeurIPS",
            2024,
            "https://arxiv.org/abs/2409.05976",
        ),
        shown=None,
    )

    global_model = True
    one_model = True
    vectorizable = True
    needs = (fl.ADAPTERS,)

    def __init__(
        self,
        net: nn.Module,
        *,
        broadcast: Literal["stacked", "dense"] = "stacked",
        head: Literal["shared", "kept", "frozen"] = "shared",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        factors = fl.factors_of(net)
        if foreign := [name for name in factors.down if not name.endswith(".down")]:
            raise TypeError(
                f"FLoRA adds to the weights of layers that LoRA adapted, but {foreign[0]} is of "
                "another adapter: adapt the network with lightning_modules.LoRA"
            )
        self.seed = fl.seed_of(net)
        self.layers: Layers = {
            f"{down.removesuffix('.down')}.weight": (down, up)
            for down, up in zip(factors.down, factors.up, strict=True)
        }
        for one in net.nets if isinstance(net, fl.Variants) else [net]:
            for name in self.layers:
                layer = one.get_submodule(name.split(".", 1)[1].rpartition(".")[0])
                fl.as_buffer(layer, "weight")
                # What it was tied to, such as an embedding, stays as it is.
                layer.weight = cast(Tensor, layer.weight).clone()
            if head == "frozen":
                fl.make_constant(one, tuple(name.removeprefix("net.") for name in factors.others))
        self.factors, self.sends, self.head = factors, broadcast, head
        if broadcast == "stacked":
            self.folded = nn.Buffer(torch.zeros((), dtype=torch.int64))

    @property
    def shared(self) -> fl.Patterns:
        """The weights of adapted layers, and the head if it is averaged."""
        return (*self.layers, *(self.factors.others if self.head == "shared" else ()))

    @property
    def kept(self) -> fl.Patterns:
        """The weights with all stacks so far, and their number; the head, if it stays."""
        own = self.factors.others if self.head == "kept" else ()
        return (*own, *((*self.layers, "folded") if self.sends == "stacked" else ()))

    @property
    def extra(self) -> tuple[str, ...]:
        """Both factors."""
        return (*self.factors.down, *self.factors.up)

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Fold the stack into the weights, and draw new adapters."""
        self._fold(broadcast)
        rng = fl.generator(self.seed, "adapters", info.client, info.round)
        entries = self.state_dict()
        for down in self.factors.down:
            entries[down].copy_(fl.uniform_rows(entries[down].shape, rng))

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return the factors, with s in B, and the head if it is averaged."""
        sent = super().upload(info)
        head = {name: v for name, v in sent.shared.items() if name not in self.layers}
        for up in self.factors.up:
            layer = self.net.get_submodule(up.removeprefix("net.").removesuffix(".up"))
            sent.extra[up] *= cast(fl.LowRank, layer).scale
        return replace(sent, shared=head)

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Fold the stack into the weights, without adapters."""
        if broadcast is not None:
            self._fold(broadcast)

    def load_global(self, broadcast: fl.Broadcast) -> None:
        """Fold the stack into the weights, without adapters."""
        self._fold(broadcast)

    def server(self) -> fl.Server[StackState]:
        """Return a server that stacks."""
        return StackServer(self.weighting, self.layers, self.sends == "stacked")

    def _fold(self, broadcast: fl.Broadcast) -> None:
        """Load what the server sent, without adapters; a stack is added to the weights, once."""
        entries = self.state_dict()
        none = {name: torch.zeros_like(entries[name]) for name in self.extra}
        fl.assign(self, {**broadcast.shared, **none})
        if not broadcast.extra:
            return
        number = int(next(iter(broadcast.extra)).partition(".")[0])
        stack = {name.partition(".")[2]: value for name, value in broadcast.extra.items()}
        if self.folded < number:
            fl.assign(self, with_products(entries, stack, self.layers))
        self.folded.fill_(number)


def with_products(weights: fl.State, stack: fl.State, layers: Layers) -> fl.State:
    """Return the weights plus the products of a stack, for the layers that it has."""
    return {
        weight: weights[weight]
        + (stack[up].flatten(1) @ stack[down].flatten(1)).view_as(weights[weight])
        for weight, (down, up) in layers.items()
        if down in stack
    }


@dataclass(frozen=True, kw_only=True)
class StackState(fl.ServerState):
    """The weights and the head, and what clients know of them.

    Attributes:
        stack: (R, ...) and (..., R) factors of the last round by name, R = sum r_i.
        folded: Number of stacks that the weights have.
        known: For each member, the number of stacks in the weights that it keeps.
    """

    stack: fl.State
    folded: int
    known: tuple[int, ...]


@dataclass(eq=False)
class StackServer(fl.Server[StackState]):
    """A server that stacks low-rank products and adds them to the weights; see :class:`FLoRA`.

    Attributes:
        layers: Names of the factors A and B of each weight.
        stacked: Whether clients that know all weights but the last stack receive that alone.
    """

    layers: Layers = field(default_factory=dict)
    stacked: bool = True

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> StackState:
        """Return the state before the first round, when everybody has the initial weights."""
        return StackState(shared=shared, stack={}, folded=0, known=(0,) * len(clients))

    def broadcast(self, state: StackState, client: int, round: int) -> fl.Broadcast:
        """Return the head and what the client lacks: nothing, the last stack, or all weights."""
        known = state.known[client] if client < len(state.known) else -1
        if not self.stacked:
            return fl.Broadcast(state.shared)
        head = {name: value for name, value in state.shared.items() if name not in self.layers}
        if known == state.folded:
            return fl.Broadcast(head)
        if known == state.folded - 1:
            stack = {f"{state.folded}.{name}": value for name, value in state.stack.items()}
            return fl.Broadcast(head, stack)
        # The number that the weights have, in a name, as values are what travels.
        return fl.Broadcast(state.shared, {f"{state.folded}.": torch.zeros(0, dtype=torch.int64)})

    def begin(self, state: StackState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the mean of what is averaged, and hold the factors, which are stacked."""
        return {**super().begin(state, senders), "factors": fl.Uploads(shared=())}

    def finish(self, state: StackState, folded: fl.Folded) -> StackState:
        """Return the state with the products of the uploads folded into the weights."""
        p, uploads, stack = folded.shares, folded["factors"], {}
        for down, up in self.layers.values():
            rows = [k * one.extra[down] for k, one in zip(p.tolist(), uploads, strict=True)]
            stack[down] = torch.cat(rows)
            stack[up] = torch.cat([one.extra[up] for one in uploads], 1)
        sent = {upload.client for upload in uploads}
        return replace(
            state,
            shared={
                **folded.mean,
                **with_products(state.shared, stack, self.layers),
            },
            stack=stack,
            folded=state.folded + 1,
            known=tuple(state.folded if c in sent else n for c, n in enumerate(state.known)),
            client_report=self.reported(folded),
        )
