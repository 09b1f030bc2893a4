"""pFedHN: a hypernetwork at the server generates each client's network from an embedding.

Shamsian et al., "Personalized Federated Learning using Hypernetworks", ICML 2021, arXiv 2103.04628;
the authors' code. The change of a client's network is backpropagated through the hypernetwork like
a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lightning_modules import base as fl

CLIP = 50.0
"""Largest joint norm of the gradients of hypernetwork and embeddings."""


class PFedHN(fl.ClientModule):
    """Networks that a hypernetwork at the server generates, one for each client.

    The server sends theta_i = H(v_i; psi), the client takes K steps, and the server backpropagates
    theta_i minus the client's theta to psi and the client's embedding v_i. Every client is tested
    with its generated network. A client that joins later gets H of the members' mean embedding and
    takes K steps, by which the server takes one step of the newcomer's embedding.

    The authors train one client per round. They also clip a client's gradients at 50, which is
    ``loop.gradient_clip_val`` here. Only parameters are generated: statistics of batch norms stay
    with the client.

    Args:
        net: The network; its parameters are generated.
        private_head: Variant pFedHN-PC: only the backbone is generated, the head stays.
        steps: K, local steps of a round; ``None`` uses ``epochs`` instead.
        embedding: d, the size of an embedding; ``None`` is 1 + N / 4, rounded down.
        hidden: u, the width of the hypernetwork.
        hidden_layers: Its hidden layers after the first one.
        server_lr: Learning rate of psi and of the embeddings; the authors' with ``private_head`` is
            0.05.
        server_momentum: Their momentum.
        server_weight_decay: Their weight decay.
        order: With several clients in a round, the server takes one step of their mean gradient
            (``joint``), or a step for each in the order of their numbers, with gradients at the
            sent values (``sequential``).
        buffers: Always ``local``.
        weighting: As in :class:`ClientModule`, for the mean of the gradients.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="pFedHN",
        family="A separate network for each client or group",
        travels="network, generated",
        apart="a hypernetwork at the server makes each client's network",
        paper=fl.Paper(
            "Personalized Federated Learning using Hypernetworks",
            "Shamsian, Aviv and Navon, Aviv and Fetaya, Ethan and Chechik, Gal",
            "ICML",
            2021,
            "https://arxiv.org/abs/2103.04628",
        ),
    )

    global_model = False
    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        private_head: bool = False,
        steps: fl.AtLeastOne | None = 50,
        embedding: fl.AtLeastOne | None = None,
        hidden: fl.AtLeastOne = 100,
        hidden_layers: fl.NotNegative[int] = 3,
        server_lr: fl.NotNegative[float] = 0.01,
        server_momentum: fl.NotNegative[float] = 0.9,
        server_weight_decay: fl.NotNegative[float] = 1e-3,
        order: Literal["joint", "sequential"] = "joint",
        buffers: Literal["local"] = "local",
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, buffers=buffers, weighting=weighting, **options)
        self.private_head, self.steps = private_head, steps
        rates = server_lr, server_momentum, server_weight_decay
        self.hyper = embedding, (hidden,) * (hidden_layers + 1), order, *rates

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return the server's learning rate, around the authors' 0.01 and 0.05."""
        return (fl.Dimension("server_lr", 0.001, 0.1, log=True),)

    @property
    def shared(self) -> fl.Patterns:
        """The parameters that are generated."""
        return ("net.backbone.*",) if self.private_head else ("net.*",)

    @property
    def kept(self) -> fl.Patterns:
        """The head, if it is not generated."""
        return ("net.head.*",) if self.private_head else ()

    def plan(self) -> fl.Plan:
        """Declare K steps on all parameters."""
        return [fl.Phase(name="local", objective=self.losses, epochs=self.epochs, steps=self.steps)]

    def introduce(self) -> fl.Plan:
        """Declare the steps of a round, by which the server updates an embedding."""
        return self.plan()

    def server(self) -> fl.Server[HNState]:
        """Return a server with a hypernetwork."""
        return HNServer(self.weighting, *self.hyper)


class Hypernetwork(nn.Module):
    """H: linear layers with ReLU between them, and an output layer for each entry.

    Args:
        shapes: The entries' shapes.
        clients: N.
        size: d.
        widths: Widths of the hidden layers.
    """

    def __init__(
        self, shapes: Sequence[torch.Size], clients: int, size: int, widths: Sequence[int]
    ) -> None:
        super().__init__()
        self.shapes = shapes
        self.embeddings = nn.Parameter(torch.randn(clients, size))
        layers: list[nn.Module] = [nn.Linear(size, widths[0])]
        for width in widths[1:]:
            layers += [nn.ReLU(), nn.Linear(width, width)]
        self.body = nn.Sequential(*layers)
        self.outputs = nn.ModuleList(nn.Linear(widths[-1], prod(shape)) for shape in shapes)

    def forward(self, vector: Tensor) -> list[Tensor]:
        """Return the entries of a client with a (d,) embedding."""
        z = self.body(vector)
        pairs = zip(self.outputs, self.shapes, strict=True)
        return [output(z).view(shape) for output, shape in pairs]


@dataclass(frozen=True, kw_only=True)
class HNState(fl.ServerState):
    """The hypernetwork; ``shared`` has initial values of the entries, for their shapes.

    Attributes:
        hyper: psi and the embeddings, by name.
        velocity: Their momentum, by the same names.
        trained: (N,) whether a client has training data.
    """

    hyper: fl.State
    velocity: fl.State
    trained: Tensor


@dataclass(eq=False)
class HNServer(fl.Server[HNState]):
    """A server that generates networks, and backpropagates their changes; see :class:`PFedHN`."""

    embedding: int | None = None
    widths: Sequence[int] = (100, 100, 100, 100)
    order: Literal["joint", "sequential"] = "joint"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-3

    def _hyper(self, shared: fl.State, clients: int, size: int) -> Hypernetwork:
        return Hypernetwork([v.shape for v in shared.values()], clients, size, self.widths)

    def _generated(self, state: HNState, hyper: Mapping[str, Tensor], vector: Tensor) -> fl.State:
        with torch.device("meta"):  # the values are those of the state
            module = self._hyper(state.shared, *hyper["embeddings"].shape)
        made = functional_call(module, dict(hyper), (vector,))
        return dict(zip(state.shared, made, strict=True))

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> HNState:
        """Draw embeddings from N(0, 1), and layers as torch initialises them."""
        like = next(iter(shared.values()))
        trained = torch.tensor([one.samples > 0 for one in clients], device=like.device)
        size = self.embedding or 1 + int(trained.sum()) // 4
        with fl.scoped(fl.derive(self.seed, "init")):
            drawn = self._hyper(shared, len(clients), size).state_dict()
        hyper = {name: value.to(like) for name, value in drawn.items()}
        zero = {name: torch.zeros_like(value) for name, value in hyper.items()}
        return HNState(shared=shared, hyper=hyper, velocity=zero, trained=trained)

    def broadcast(self, state: HNState, client: int, round: int) -> fl.Broadcast:
        """Send a client's generated entries."""
        vector = state.hyper["embeddings"][client]
        return fl.Broadcast(self._generated(state, state.hyper, vector))

    def begin(self, state: HNState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare a step of SGD with the mean of the gradients, or one with each."""
        sizes = [float(one.samples) for one in senders]
        planned = sum(sizes) if self.weighting == "samples" else len(sizes)
        return {"steps": Descent(self, state, planned)}

    def finish(self, state: HNState, folded: fl.Folded) -> HNState:
        """Return the state after the step, or the steps."""
        after: HNState = folded["steps"]
        return replace(after, client_report=self.reported(folded))

    def welcome(
        self,
        state: HNState,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Send H of the mean embedding, or, after an introduction, of one a step away from it."""
        vector = state.hyper["embeddings"][state.trained].mean(0)
        if upload is not None:
            zero = torch.zeros_like(state.velocity["embeddings"][:1])
            alone = replace(
                state,
                hyper={**state.hyper, "embeddings": vector[None]},
                velocity={**state.velocity, "embeddings": zero},
            )
            descent = Descent(self, alone, self.weight(upload))
            descent.add(replace(upload, client=0))
            vector = descent.value().hyper["embeddings"][0]
        return fl.Broadcast(self._generated(state, state.hyper, vector)), {}

    def differentiated(
        self, state: HNState, leaves: fl.State, upload: fl.Upload, share: float
    ) -> None:
        """Add the gradient of an upload, times its share, to psi and the embeddings."""
        with torch.enable_grad():
            made = self._generated(state, leaves, leaves["embeddings"][upload.client])
            slopes = [share * (made[n].detach() - v) for n, v in upload.shared.items()]
            torch.autograd.backward([made[name] for name in upload.shared], slopes)

    def stepped(self, state: HNState, leaves: fl.State) -> HNState:
        """Return the state after a step of SGD with clipped gradients of psi and embeddings."""
        nn.utils.clip_grad_norm_(leaves.values(), CLIP)
        slopes = {name: cast(Tensor, leaf.grad) for name, leaf in leaves.items()}
        velocity = {
            name: state.velocity[name].mul(self.momentum).add(slope + self.weight_decay * value)
            for (name, value), slope in zip(state.hyper.items(), slopes.values(), strict=True)
        }
        hyper = fl.add(state.hyper, velocity, -self.lr)
        return replace(state, hyper=hyper, velocity=velocity)


class Descent(fl.Fold[HNState]):
    """Steps of SGD on the hypernetwork: one with the mean of all gradients, or one with each.

    Args:
        server: The server.
        state: Its state before the round, at which all gradients are taken.
        planned: The sum of the weights, if all send.
    """

    def __init__(self, server: HNServer, state: HNState, planned: float) -> None:
        self._server, self._state, self._planned = server, state, planned
        self._after, self._leaves, self._total = state, self._fresh(), 0.0

    def _fresh(self) -> fl.State:
        return {name: nn.Parameter(value.clone()) for name, value in self._state.hyper.items()}

    def add(self, upload: fl.Upload) -> None:
        """Add a client's gradient, or take a step with it."""
        joint, weight = self._server.order == "joint", self._server.weight(upload)
        share = weight / self._planned if joint else 1.0
        self._server.differentiated(self._state, self._leaves, upload, share)
        self._total += share
        if not joint:
            self._after = self._server.stepped(self._after, self._leaves)
            self._leaves = self._fresh()

    def value(self) -> HNState:
        """Return the state after the steps."""
        if self._server.order != "joint":
            return self._after
        if self._total != 1:
            for leaf in self._leaves.values():
                cast(Tensor, leaf.grad).div_(self._total)
        return self._server.stepped(self._after, self._leaves)
