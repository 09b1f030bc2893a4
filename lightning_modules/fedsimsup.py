"""FedSimSup: a private supervisor beside an inter-learning model that the server stores and mixes.

"Personalized Federated Learning under Local Supervision", ICCV 2025. A client predicts with the sum
of the logits of two networks (Eq. 3). In a round it first trains the supervisor (Eqs. 4, 11), then
the inter-learning model (Eqs. 5, 12). The server stores one inter-learning model for each client:
those of this round's participants stay as uploaded (Eq. 6); the others move towards them, weighted
by label similarity, with a strength that fades late in training (Eqs. 7-10). With full
participation nothing is mixed, and every client trains alone. Clients may have supervisors of
several kinds (Table 4); scores are then averaged over the clients of each kind as well.

The appendix and the code are not public. ``docs/methods`` marks our assumptions, and our reading
where the text contradicts itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules import base as fl

AbsentRule: TypeAlias = Literal["similarity", "size_mix", "size_average", "none"]
BLOCK = 2**14
"""Number of entries of each model that are mixed at a time."""

LOGITS = "fedsimsup/logits/"
INPUT = "fedsimsup/input"
"""Names of a phase's inputs: a single input, and the frozen network's logits."""

ZeroSimilarity: TypeAlias = Literal["keep", "size_weighted", "uniform"]


class FedSimSup(fl.ClientModule):
    """A private supervisor network beside a network that the server mixes for each client.

    The inter-learning model ``net`` travels; the supervisor stays with its client. Each phase
    computes the other network's logits only once, unless data are augmented.

    Under a plain Lightning Trainer, before any broadcast, both networks are trained together.

    Args:
        net: theta, the inter-learning model; (B, C) logits.
        supervisor: s, the private model; (B, C) logits. In the paper it is about a sixth as large.
            Given a list, each client trains and keeps one of them; the clients of a kind form a
            group, named after the class of its network.
        supervisor_draw: Assignment of several supervisors to clients: at ``random``, or
            ``balanced``, so that each of k kinds occurs once among clients 0 to k - 1, k to 2 k - 1
            and so on. The draw depends on the initial values of ``net``, and so on the run's seed.
        lr_sup: eta_s, learning rate of the supervisor; replaces the optimiser's own.
        lr_inter: eta_theta, learning rate of the inter-learning model; likewise.
        sup_epochs: tau_s, length of the supervisor's phase.
        epochs: tau_theta (``inter_epochs``), length of the inter-learning model's phase.
        local_unit: Unit of the two lengths: epochs, or single optimiser steps.
        mix_C: C: mixing starts to fade at round ``C T^gamma``; 0 switches mixing off.
        mix_gamma: gamma.
        absent_rule: Treatment of the models of clients without an upload: they are mixed by Eq. 7
            with shares by ``similarity``, or by size (``size_mix``); they become the
            ``size_average`` of this round's uploads (Eq. 2); or they stay (``none``).
        zero_similarity: Treatment of an absent client that is similar to no participant: its model
            stays (``keep``), or is mixed with all of theirs, ``size_weighted`` or ``uniform``.
        eval_inter: The inter-learning model that is tested: the server's current copy, or the
            client's own from its last participation (before its first, the server's), which it then
            keeps; communication is the same.
        supervisor_init: Each client draws its ``own`` initial supervisor (all submodules that have
            ``reset_parameters``), or all start from the given one (``common``).
        sup_zero_init: Set the last layer of every initial supervisor to zero, so that a client that
            has never taken part predicts with its inter-learning model alone.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range, or there is no supervisor.
    """

    record = fl.MethodRecord(
        name="FedSimSup",
        family="A separate network for each client or group",
        travels="inter-learning network",
        stays="supervisor network",
        apart="the server keeps a network for each client and mixes them by label similarity",
        paper=fl.Paper(
            "Personalized Federated Learning under Local Supervision",
            "",
            "ICCV",
            2025,
        ),
        shown={"model.init_args.supervisor": {"class_path": "MLP", "init_args": {"hidden": 16}}},
    )

    global_model = False
    vectorizable = True
    needs = ("classes", "outputs")
    # The round at which mixing starts to fade depends on T.
    uses_rounds = True
    objects = (*fl.ClientModule.objects, "supervisor")

    def __init__(
        self,
        net: nn.Module,
        supervisor: nn.Module | list[nn.Module],
        *,
        supervisor_draw: Literal["random", "balanced"] = "random",
        lr_sup: fl.NotNegative[float] = 0.01,
        lr_inter: fl.NotNegative[float] = 0.01,
        sup_epochs: fl.NotNegative[int] = 5,
        epochs: float = 5,
        local_unit: Literal["epochs", "steps"] = "epochs",
        mix_C: fl.NotNegative[float] = 40.0,  # noqa: N803 (the paper's letter)
        mix_gamma: fl.NotNegative[float] = 3 / 7,
        absent_rule: AbsentRule = "similarity",
        zero_similarity: ZeroSimilarity = "keep",
        eval_inter: Literal["server_copy", "last_local"] = "server_copy",
        supervisor_init: Literal["own", "common"] = "own",
        sup_zero_init: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(net, epochs=epochs, **options)
        kinds = [supervisor] if isinstance(supervisor, nn.Module) else supervisor
        if not kinds:
            raise ValueError("supervisor needs at least one network, got an empty list")
        self.supervisor = kinds[0] if len(kinds) == 1 else nn.ModuleList(kinds)
        if not self.hparams["travel_frozen"]:
            fl.hold_frozen(self.supervisor)
        self.kinds = _labels(kinds) if len(kinds) > 1 else ()
        if self.kinds:
            # Clients whose networks differ in shape cannot be stacked.
            self.vectorizable = False
            self.kind = nn.Buffer(torch.tensor(0))
            drawn = fl.derive(fl.seed_of(net), "kinds", supervisor_draw)
            self.kinds_seed = nn.Buffer(torch.tensor(drawn))
        self.participated = nn.Buffer(torch.tensor(False))
        self.supervisor_draw = supervisor_draw
        self.lengths = {"supervisor": sup_epochs, "inter": epochs}
        self.rates = {
            "supervisor": fl.with_lr(self.optimizer, lr_sup),
            "inter": fl.with_lr(self.optimizer, lr_inter),
        }
        for name, given in (("sup_epochs", sup_epochs), ("epochs", epochs)):
            if local_unit == "steps" and given != int(given):
                raise ValueError(f"local_unit is steps, so {name} must be whole, got {given}")
        self.local_unit = local_unit
        self.mixing = mix_C, mix_gamma, absent_rule, zero_similarity
        self.eval_inter = eval_inter
        self.supervisor_init = supervisor_init
        self.sup_zero_init = sup_zero_init
        if sup_zero_init:
            for network in kinds:
                fl.zero_last_layer(network)

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return both rates, which replace the common one, and the server's C and gamma."""
        return (
            fl.Dimension("lr_sup", 0.001, 0.1, log=True),
            fl.Dimension("lr_inter", 0.001, 0.1, log=True),
            fl.Dimension("mix_C", choices=(10.0, 20.0, 40.0)),
            fl.Dimension("mix_gamma", choices=(1 / 3, 0.4, 3 / 7)),
        )

    @property
    def kept(self) -> fl.Patterns:
        """The supervisor; also the inter-learning model if the client's own is tested."""
        names = ("supervisor.*", "participated")
        return (*names, "net.*") if self.eval_inter == "last_local" else names

    def kept_names(self, info: fl.ClientInfo | None = None) -> tuple[str, ...]:
        """Return the names of a client's kept entries; of several supervisors, only its own."""
        names = super().kept_names(info)
        if info is None or not self.kinds:
            return names
        prefix = f"supervisor.{self.group(info)}."
        return tuple(n for n in names if n.startswith(prefix) or not n.startswith("supervisor."))

    @property
    def groups(self) -> tuple[str, ...]:
        """The kinds of supervisors, if there are several."""
        return self.kinds

    def group(self, info: fl.ClientInfo) -> int:
        """Return the kind of the client's supervisor."""
        seed, count = int(self.kinds_seed), len(self.kinds)
        if self.supervisor_draw == "random":
            return int(torch.randint(count, (), generator=fl.generator(seed, info.client)))
        block, place = divmod(info.client, count)
        return int(torch.randperm(count, generator=fl.generator(seed, block))[place])

    def forward(self, x: fl.Inputs) -> Tensor:
        """Return (B, C) logits, the sum over both networks; logits in ``x`` are reused."""
        return self._logits("net", x) + self._logits("supervisor", x)

    def plan(self) -> fl.Plan:
        """Train the supervisor against the received model, then that model."""
        supervisors = [
            self._phase("supervisor", f"supervisor.{kind}", "net", f"@{label}", kind)
            for kind, label in enumerate(self.kinds)
        ] or [self._phase("supervisor", "supervisor", "net")]
        return [*supervisors, self._phase("inter", "net", "supervisor")]

    def _phase(
        self, name: str, trained: str, still: str, ending: str = "", kind: int | None = None
    ) -> fl.Phase:
        """Return a phase that trains one network, for one kind of clients or for all."""
        length: fl.Count = self.lengths[name]
        if kind is not None:
            length = partial(self._of_kind, kind, self.lengths[name])
        return fl.Phase(
            name=name + ending,
            objective=self.losses,
            inputs=partial(self._with_logits, still),
            epochs=length,
            steps=length if self.local_unit == "steps" else None,
            trains=(f"{trained}.*",),
            evals=(still, f"{still}.*"),
            optimizer=self.rates[name],
        )

    def _of_kind(self, kind: int, length: float, entries: fl.State, info: fl.ClientInfo) -> float:
        """Return a phase's length for clients of one kind, zero for the others."""
        return length if self.group(info) == kind else 0

    def _with_logits(self, still: str, batch: fl.Batch) -> fl.Inputs:
        """Return the inputs, and the logits of the network that is not trained."""
        inputs = batch.x if isinstance(batch.x, dict) else {INPUT: batch.x}
        return {**inputs, f"{LOGITS}{still}": self._logits(still, batch.x)}

    def _logits(self, name: str, x: fl.Inputs) -> Tensor:
        """Return the logits of one network, from ``x`` if it contains them."""
        if isinstance(x, dict):
            if f"{LOGITS}{name}" in x:
                return x[f"{LOGITS}{name}"]
            given = {key: value for key, value in x.items() if not key.startswith(LOGITS)}
            x = given.get(INPUT, given)
        logits: Tensor = (self.net if name == "net" else self._own_supervisor())(x)
        return logits

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the server's copy; draw the supervisor at the first participation."""
        super().receive(broadcast, info)
        self._find_supervisor(info)
        self.participated.fill_(True)

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Load the inter-learning model that ``eval_inter`` names, beside the supervisor."""
        if broadcast is None:
            return
        if self.eval_inter == "server_copy" or not self.participated:
            fl.assign(self, broadcast.shared)
        self._find_supervisor(info)

    def _own_supervisor(self) -> nn.Module:
        if isinstance(self.supervisor, nn.ModuleList):
            return self.supervisor[int(self.kind)]
        return self.supervisor

    def _find_supervisor(self, info: fl.ClientInfo) -> None:
        if self.kinds:
            self.kind.fill_(self.group(info))
        if self.supervisor_init == "common" or self.participated:
            return
        supervisor = self._own_supervisor()
        # The seed depends on the given values and the client's number, so it is the same in every
        # process and after a resume.
        fl.redraw(supervisor, fl.derive(fl.seed_of(supervisor), "supervisor", info.client))
        if self.sup_zero_init:
            fl.zero_last_layer(supervisor)

    def server(self) -> fl.Server[SimSupState]:
        """Return a server that stores an inter-learning model for each client."""
        return SimSupServer(self.weighting, *self.mixing)


def _labels(kinds: Sequence[nn.Module]) -> tuple[str, ...]:
    """Return the class name of each network, numbered where a class occurs more than once."""
    names = [type(network).__name__ for network in kinds]
    return tuple(
        name if names.count(name) == 1 else f"{name}-{names[: place + 1].count(name)}"
        for place, name in enumerate(names)
    )


@dataclass(frozen=True, kw_only=True)
class SimSupState(fl.ServerState):
    """One inter-learning model for each of the n clients: ``shared`` has a leading axis of n.

    Attributes:
        similarity: (n, n) cosine similarities of label proportions, from 0 to 1; in float64 if the
            device has it.
        samples: (n,) training samples, m_i.
        rounds: T.
    """

    similarity: Tensor
    samples: Tensor
    rounds: int


@dataclass(eq=False)
class SimSupServer(fl.ModelsServer[SimSupState]):
    """A server that stores participants' models as uploaded and mixes those of absent clients.

    It needs n times the memory of ``net``.

    The arguments are those of :class:`FedSimSup`; ``weighting`` applies to averages by size.
    """

    reports: ClassVar = {"mix": "strength of mixing"}
    needs_label_counts = True
    mix_C: float = 40.0  # noqa: N815 (the paper's letter)
    mix_gamma: float = 3 / 7
    absent_rule: AbsentRule = "similarity"
    zero_similarity: ZeroSimilarity = "keep"

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> SimSupState:
        """Start every client from the common initial model, and compare label counts once.

        Raises:
            ValueError: The number of rounds is not known.
        """
        rounds = clients[0].rounds
        if rounds < 1:
            raise ValueError(f"FedSimSup needs the number of rounds, T >= 1, got {rounds}")
        counts = torch.stack([info.class_counts for info in clients])
        device = next(iter(shared.values())).device
        return SimSupState(
            shared=fl.repeated(shared, len(clients)),
            similarity=label_similarity(counts).to(fl.widest(device)),
            samples=torch.tensor([info.samples for info in clients]),
            rounds=rounds,
        )

    def welcome(
        self,
        state: SimSupState,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Send the mixture of all members' models, weighted by label similarity.

        A newcomer that is similar to no member gets their sample-weighted mean.
        """
        counts = torch.stack([one.class_counts for one in (info, *members)])
        shares = label_similarity(counts)[0, 1:]
        if not shares.any():
            shares = torch.tensor([float(one.samples) for one in members], dtype=torch.float64)
        return fl.Broadcast(self.mixture(state, shares / shares.sum())), {}

    def begin(self, state: SimSupState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Hold all uploads: their shares in the models of absent clients depend on all."""
        return {"uploads": fl.Uploads()}

    def finish(self, state: SimSupState, folded: fl.Folded) -> SimSupState:
        """Apply Eqs. 6-10."""
        uploads = folded["uploads"]
        fade = time_factor(state.round + 1, state.rounds, self.mix_C, self.mix_gamma)
        strength, partners = self._mixing(state, uploads, fade)
        participants = [upload.client for upload in uploads]
        strength[participants] = 0
        shared = {}
        for name, models in state.shared.items():
            sent = [upload.shared[name] for upload in uploads]
            shared[name] = _mix(models, sent, strength, partners)
            for client, value in zip(participants, sent, strict=True):
                shared[name][client] = value
        return replace(
            state,
            shared=shared,
            report={"time_factor": fade},
            client_report={"mix": dict(enumerate(strength.tolist()))},
        )

    def _mixing(
        self, state: SimSupState, uploads: Sequence[fl.Upload], fade: float
    ) -> tuple[Tensor, Tensor]:
        """Return (n,) alpha_i and (n, K) shares of the participants, each row summing to one."""
        by_size, count = self.shares(uploads), len(state.samples)
        strength = fade * size_factor(state.samples.cpu(), [upload.samples for upload in uploads])
        if self.absent_rule != "similarity":
            if self.absent_rule != "size_mix":
                strength = torch.full_like(strength, float(self.absent_rule == "size_average"))
            return strength, by_size.expand(count, -1)
        similar = state.similarity.cpu().double()[:, [upload.client for upload in uploads]]
        lonely = similar.sum(1, keepdim=True) == 0
        if self.zero_similarity == "keep":
            strength = torch.where(lonely[:, 0], 0, strength)
        instead = by_size if self.zero_similarity == "size_weighted" else torch.ones_like(by_size)
        partners = torch.where(lonely, instead, similar)
        return strength, partners / partners.sum(1, keepdim=True)


def label_similarity(label_counts: Tensor) -> Tensor:
    """Return (n, n) cosine similarities of (n, C) label counts; 0 for a client without data.

    Example:
        >>> label_similarity(torch.tensor([[3, 4], [30, 40], [0, 5]])).tolist()
        [[1.0, 1.0, 0.8], [1.0, 1.0, 0.8], [0.8, 0.8, 1.0]]
    """
    # The cosine is the same for counts as for proportions.
    directions = F.normalize(label_counts.double(), dim=1)
    return (directions @ directions.T).clamp(0, 1)


def size_factor(samples: Tensor, uploaded: Sequence[int]) -> Tensor:
    """Return (n,) lambda_i = M / (M + K m_i).

    ``samples`` are the (n,) sizes m_i; M is the sum of the K sizes ``uploaded``.

    Example:
        >>> size_factor(torch.tensor([10, 30]), [10, 10]).tolist()
        [0.5, 0.25]
    """
    together = torch.tensor(sum(uploaded), dtype=torch.float64)
    return together / (together + len(uploaded) * samples.double())


def time_factor(round: int, rounds: int, mix_C: float, mix_gamma: float) -> float:  # noqa: N803
    """Return beta: 1 before round ``C T^gamma``, then ``(C T^gamma / t)^2`` in round t.

    Example:
        >>> time_factor(50, 100, 10, 0.5), time_factor(200, 400, 5, 0.5)
        (1.0, 0.25)
    """
    turn = mix_C * rounds**mix_gamma
    return 1.0 if round < turn else (turn / round) ** 2


def _mix(models: Tensor, sent: Sequence[Tensor], strength: Tensor, partners: Tensor) -> Tensor:
    """Apply Eq. 7 to one entry: move (n, ...) models towards their shares of K uploads (...).

    Models are mixed in blocks: all at once in the widest type would need several times their
    memory.
    """
    wide, mixed = fl.widest(models.device), fl.empty_alike(models)
    alpha = strength.to(models.device, wide)[:, None]
    shares = partners.to(models.device, wide)
    old, after = models.flatten(1), mixed.view(len(models), -1)
    uploads = [value.flatten() for value in sent]
    for start in range(0, old.shape[1], BLOCK):
        block = slice(start, start + BLOCK)
        new = torch.stack([value[block] for value in uploads]).to(models.device, wide)
        after[:, block] = (1 - alpha) * old[:, block].to(wide) + alpha * (shares @ new)
    return mixed
