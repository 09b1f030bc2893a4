"""FedFomo: a client moves towards those models of others that lower its own validation loss.

Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021,
arXiv 2012.08565; the authors' code, PFLlib and FL-bench where they agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lightning_modules import base as fl

NOBODY = -1
"""Number of a missing candidate."""


class FedFomo(fl.ClientModule):
    """Private models, each mixed with others' models by how much these lower the client's loss.

    A client receives up to M models of others. Each of these and its own is rated by the decrease
    of the loss on the client's validation data, relative to ``baseline``, the model from which the
    client started its last training, per unit of distance. The client starts training from the mean
    of those rated above zero, weighted by their ratings. The server adds up all ratings and sends a
    client the models with the highest sums, some exchanged at random.

    The data need validation samples (``val_fraction: 0.2``). Without any, a client trains alone.

    Args:
        net: The network.
        candidates: M, the number of others' models that a client receives.
        explore: epsilon, the initial probability that one of them is drawn at random.
        explore_decay: Decrease of this probability in each round.
        fallback: The initial model of training if none is rated above zero: the client's own as
            ``trained`` (PFLlib, FL-bench), or the ``baseline`` (the authors).
        weigh_on: The data on which losses are compared; ``train`` favours the client's own model.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedFomo",
        family="A separate network for each client or group",
        travels="networks of M others",
        stays="network, baseline",
        apart="begins with others' networks that lower its own validation loss",
        paper=fl.Paper(
            "Personalized Federated Learning with First Order Model Optimization",
            (
                "Zhang, Michael and Sapra, Karan and Fidler, Sanja and Yeung, Serena and "
                "Alvarez, Jose M."
            ),
            "ICLR",
            2021,
            "https://arxiv.org/abs/2012.08565",
        ),
        shown={"data.init_args.val_fraction": 0.2},
    )

    shared = ("net.*", "others.*")
    kept = ("net.*", "baseline.*")
    extra = ("who", "rated")
    global_model = False
    vectorizable = True
    needs = ("sample_losses",)

    def __init__(
        self,
        net: nn.Module,
        *,
        candidates: fl.AtLeastOne = 5,
        explore: fl.Fraction = 0.3,
        explore_decay: fl.NotNegative[float] = 0.05,
        fallback: Literal["trained", "baseline"] = "trained",
        weigh_on: Literal["val", "train"] = "val",
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        self.explore = explore, explore_decay
        self.fallback, self.weigh_on = fallback, weigh_on
        self.baseline = fl.frozen(net)
        self.others = nn.ModuleList(fl.frozen(net) for _ in range(candidates))
        self.who = nn.Buffer(torch.full((candidates,), NOBODY, dtype=torch.int32))
        self.rated = nn.Buffer(torch.zeros(1 + candidates))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return M, and the probability of a random candidate."""
        return (fl.Dimension("candidates", choices=(3, 5, 9)), fl.Dimension("explore", 0.0, 0.5))

    @property
    def extra_within(self) -> Mapping[str, str]:
        """Numbers of clients, or that of nobody."""
        return {"who": f"[{NOBODY}, inf)"}

    def plan(self) -> fl.Plan:
        """Declare rating and mixing, storing the result as baseline, and training."""
        start = fl.Pass(name="begin", then=lambda totals: self._entries("baseline.module."))
        local = fl.Phase(name="local", objective=self.losses, epochs=self.epochs, trains=("net.*",))
        return [*self.adapt(), start, local]

    def adapt(self) -> fl.Plan:
        """Declare rating and mixing the candidates."""
        return [
            fl.Pass(name="mix", split=self.weigh_on, statistic=self._losses, then=self._mixed),
        ]

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return the trained model, and the ratings of the candidates."""
        sent = super().upload(info)
        return replace(sent, shared=fl.select(sent.shared, ("net.*",)))

    def server(self) -> fl.Server[FomoState]:
        """Return a server that chooses each client's candidates."""
        return FomoServer(self.weighting, len(self.others), *self.explore)

    def _models(self) -> list[nn.Module]:
        return [self.baseline, self.net, *self.others]

    def _losses(self, batch: fl.Batch) -> fl.State:
        rows = torch.stack(
            [self.task.sample_losses(model(batch.x), batch.y) for model in self._models()]
        )
        weight = torch.ones_like(rows[0]) if batch.weight is None else batch.weight
        return {"loss": (rows * weight).sum(1), "count": weight.sum()}

    def _mixed(self, totals: fl.Totals) -> fl.State:
        """Return the mean of the candidates, weighted by their ratings, and the ratings."""
        losses = totals.sums["loss"] / totals.sums["count"]
        start, own, *others = self._vectors()
        apart = torch.stack([(one - start).norm() for one in (own, *others)])
        there = torch.cat([torch.ones_like(self.who[:1]), self.who + 1]) > 0
        rated = (losses[0] - losses[1:]) / (apart + 1e-5)
        rated = torch.where(there & (apart > 0), rated, 0.0).to(self.rated)
        wanted = rated.clamp(min=0)
        models = [module.state_dict() for module in self._models()[1:]]
        models = [{n.removeprefix("module."): v for n, v in one.items()} for one in models]
        if wanted.sum() > 0:
            shares = wanted / wanted.sum()
            mixed = {
                name: torch.tensordot(shares.to(value), torch.stack([m[name] for m in models]), 1)
                for name, value in models[0].items()
                if value.is_floating_point()
            }
        else:
            mixed = self.baseline.module.state_dict() if self.fallback == "baseline" else {}
        return {"rated": rated, **{f"net.{name}": value for name, value in mixed.items()}}

    def _vectors(self) -> list[Tensor]:
        copies = [fl.frozen_parameters(one, self.net) for one in (self.baseline, *self.others)]
        start, *others = [torch.cat([v.flatten() for v in one]) for one in copies]
        own = torch.cat([value.detach().flatten() for value in self.net.parameters()])
        return [start, own, *others]

    def _entries(self, prefix: str) -> fl.State:
        return {f"{prefix}{name}": value for name, value in self.net.state_dict().items()}


@dataclass(frozen=True, kw_only=True)
class FomoState(fl.ServerState):
    """The last model of each client; ``shared`` has a leading axis of N.

    Attributes:
        wanted: (N, N) P, the sum of a client's ratings (row) of each client's models.
        known: (N,) whether a client has uploaded.
    """

    wanted: Tensor
    known: Tensor


@dataclass(eq=False)
class FomoServer(fl.ModelsServer[FomoState]):
    """A server that sends each client the models that it rated highest; arguments as in FedFomo."""

    reports: ClassVar = {}
    candidates: int = 5
    explore: float = 0.3
    explore_decay: float = 0.05

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> FomoState:
        """Start every client from the common model, with a rating only for itself."""
        own, count = fl.select(shared, ("net.*",)), len(clients)
        like = next(iter(own.values()))
        known = torch.zeros(count, dtype=torch.bool, device=like.device)
        wanted = torch.eye(count).to(like)
        return FomoState(shared=fl.repeated(own, count), wanted=wanted, known=known)

    def broadcast(self, state: FomoState, client: int, round: int) -> fl.Broadcast:
        """Send models of others that have uploaded; none before the client's own first upload."""
        (sent,) = self.broadcasts(state, [client], round)
        return sent

    def broadcasts(
        self, state: FomoState, clients: Sequence[int], round: int
    ) -> list[fl.Broadcast]:
        """Return the messages to several clients; what decides leaves the device in one copy."""
        known, *wanted = torch.cat(
            [state.known[None].to(state.wanted), state.wanted[[*clients]]]
        ).tolist()
        return [
            self._sent(state, self._chosen(known, row, client, round) if known[client] else [])
            for client, row in zip(clients, wanted, strict=True)
        ]

    def _chosen(
        self, known: Sequence[float], wanted: Sequence[float], client: int, round: int
    ) -> list[int]:
        """Return the candidates of a client, given who has uploaded and its own row of P."""
        rng = fl.generator(self.seed, "explore", round, client)
        drawn = torch.randperm(len(known), generator=rng).tolist()
        others = [n for n in drawn if known[n] and n != client]
        # A stable sort leaves ties in their random order.
        order = sorted(others, key=lambda n: -wanted[n])
        chosen, rest = order[: self.candidates], order[self.candidates :]
        chance = max(0.0, self.explore - (round - 1) * self.explore_decay)
        for place, draw in enumerate(torch.rand(len(chosen), generator=rng).tolist()):
            if draw < chance and rest:
                pick = int(torch.randint(len(rest), (), generator=rng))
                chosen[place], rest[pick] = rest[pick], chosen[place]
        return chosen

    def _sent(self, state: FomoState, chosen: Sequence[int]) -> fl.Broadcast:
        device = state.known.device
        who = torch.full((self.candidates,), NOBODY, dtype=torch.int32, device=device)
        who[: len(chosen)] = torch.tensor(chosen, dtype=who.dtype, device=who.device)
        return fl.Broadcast(fl.as_others(state.shared, dict(enumerate(chosen))), {"who": who})

    def begin(self, state: FomoState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the models after the round, and the ratings."""
        ratings = fl.Uploads(shared=(), extra=("who", "rated"))
        return {**super().begin(state, senders), "ratings": ratings}

    def finish(self, state: FomoState, folded: fl.Folded) -> FomoState:
        """Store the models, and add the ratings."""
        wanted, known = state.wanted.clone(), state.known.clone()
        uploads = folded["ratings"]
        candidates = fl.received(uploads, "who").tolist()
        known[[upload.client for upload in uploads]] = True
        for upload, who in zip(uploads, candidates, strict=True):
            rated = {upload.client: 0} | {n: 1 + k for k, n in enumerate(who) if n != NOBODY}
            found = upload.extra["rated"][[*rated.values()]]
            wanted[upload.client, [*rated]] += found.to(wanted)
        return replace(state, shared=folded["rows"], wanted=wanted, known=known)

    def welcome(
        self,
        state: FomoState,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Send the models with the highest total ratings, and the mean of all as initial model."""
        known = state.known if state.known.any() else torch.ones_like(state.known)
        columns = state.wanted.sum(0).where(known, -torch.inf)
        order = columns.argsort(descending=True, stable=True)[: int(known.sum())].tolist()
        mean = {name: value[known].mean(0) for name, value in state.shared.items()}
        start = {n.replace("net.", "baseline.module.", 1): v for n, v in mean.items()}
        return self._sent(state, order[: self.candidates]), mean | start
