"""The client: an ordinary LightningModule that also declares what travels and what stays."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_modules.layers import batch_norms
from pfl.core.checks import known_words, not_negative, within
from pfl.core.client import Client
from pfl.core.server import Server
from pfl.core.state import assign, clone, entry, matches
from pfl.core.task import Classification, Task
from pfl.core.types import (
    Batch,
    Broadcast,
    ClientInfo,
    EvaluationPoint,
    OptimizerFactory,
    Patterns,
    Phase,
    Plan,
    Terms,
    Upload,
)

Schedule: TypeAlias = Literal["constant", "cosine"]


class ClientModule(Client):
    """One client of a federation; on its own, a plain supervised learner.

    A method is a subclass. It declares in ``shared`` what travels and in ``kept`` what stays with
    the client, and overrides the methods in which it differs from FedAvg. An entry that is in
    neither tuple does not survive the round: before each job the module is reset to its initial
    values and to those that the client kept. Everything that a client must remember, even within
    one round, is therefore a parameter or a buffer.

    Attributes:
        vectorizable: Whether objectives and statistics run under ``torch.func.vmap``. The contract
            test checks the claim.
        global_model: Whether the server holds a complete model that can be tested. ``None`` derives
            the answer: it does if every parameter of the network travels.
        receives_global: Whether the method's own :meth:`receive` loads the server's network
            unchanged and only stores more beside it. If so, that one model is tested for all
            clients.
        objects: Names of arguments that are objects; they are not saved as hyperparameters.

    Args:
        net: The network, with outputs of shape (B, D): logits in classification. Methods that split
            the network need a ``SplitNet``.
        optimizer: Builds the optimiser of a round from the parameters to train.
        epochs: Local epochs per round, E.
        buffers: Whether the batch-norm statistics of the part that travels are averaged with it
            (``average``) or stay with the client (``local``). Counters never travel.
        weighting: Whether the default server weights uploads by their samples or all equally.
        lr_decay: The learning rate of round t is multiplied by ``lr_decay ** (t - 1)``.
        lr_schedule: ``cosine`` also multiplies the learning rate by ``(1 + cos(pi (t - 1) / T)) /
            2``, where T is the planned number of rounds, so that it falls from its full value to
            almost zero.
        persist_optimizer: Keep the optimiser's state, such as momentum, from round to round instead
            of resetting it.
        task: What is predicted; the data module sets it. Classification if not given.

    Raises:
        ValueError: A number is out of range, a word is unknown, or a pattern matches nothing in the
            network.
    """

    vectorizable: bool = False
    global_model: bool | None = None
    receives_global: bool = False
    objects: tuple[str, ...] = ("net", "optimizer", "task")

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerFactory = lambda params: torch.optim.SGD(params, lr=0.01),
        epochs: int = 1,
        buffers: Literal["average", "local"] = "average",
        weighting: Literal["samples", "uniform"] = "samples",
        lr_decay: float = 1.0,
        lr_schedule: Schedule = "constant",
        persist_optimizer: bool = False,
        task: Task | None = None,
    ) -> None:
        super().__init__()
        not_negative(epochs=epochs)
        within("(0, 1]", lr_decay=lr_decay)
        self.save_hyperparameters(ignore=self.objects)
        known_words(type(self), self.hparams)
        self.net = net
        self.optimizer = optimizer
        self.epochs = epochs
        self.buffer_policy = buffers
        self.weighting = weighting
        self.lr_decay = lr_decay
        self.lr_schedule: Schedule = lr_schedule
        self.persist_optimizer = persist_optimizer
        self.task = Classification() if task is None else task
        self._matched: dict[tuple[object, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {}

    # Declarations of a method: class attributes, or properties where they depend on options.

    @property
    def shared(self) -> Patterns:
        """Patterns of the state-dict names that travel."""
        return ("net.*",)

    @property
    def kept(self) -> Patterns:
        """Patterns of the names that stay with the client from round to round."""
        return ()

    @property
    def extra(self) -> tuple[str, ...]:
        """Names of the values that :meth:`upload` sends in addition to ``shared``."""
        return ()

    @property
    def needs_classes(self) -> bool:
        """``True`` if the method works on classes and cannot serve other tasks."""
        return False

    @property
    def evaluate_at(self) -> EvaluationPoint:
        """When the method's personalised models are tested."""
        return "post_broadcast"

    @property
    def uses_rounds(self) -> bool:
        """``True`` if results depend on the planned number of rounds, as with ``cosine``."""
        return self.lr_schedule == "cosine"

    @property
    def groups(self) -> tuple[str, ...]:
        """Labels of groups of clients, for instance of clients with the same network.

        Scores are also averaged over each group (``test/personal/acc@<label>``).
        """
        return ()

    def group(self, info: ClientInfo) -> int:
        """Return the index in ``groups`` of a client's group, which is constant during a run."""
        return 0

    # The client's round, in the order in which the engine calls these methods.

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load what the server sent."""
        assign(self, broadcast.shared)

    def plan(self) -> Plan:
        """Declare the client's round after :meth:`receive`: by default one phase of :meth:`losses`.

        Called once, when entries have no values yet. Anything that differs between clients is a
        function in the plan (:attr:`pfl.core.types.Phase.epochs`,
        :attr:`pfl.core.types.Pass.when`).
        """
        return [Phase(name="local", objective=self.losses, epochs=self.epochs)]

    def lr_factor(self, info: ClientInfo) -> float:
        """Return the factor that multiplies every learning rate in this round."""
        done = max(0, info.round - 1)
        factor = self.lr_decay**done
        if self.lr_schedule == "cosine" and info.rounds > 0:
            factor *= (1 + math.cos(math.pi * done / info.rounds)) / 2
        return factor

    def upload(self, info: ClientInfo) -> Upload:
        """Return the message to the server, made of copies."""
        shared = clone({name: entry(self, name) for name in self.shared_names()})
        return Upload(client=info.client, samples=info.samples, shared=shared)

    # The model that is tested.

    def personalise(self, broadcast: Broadcast | None, info: ClientInfo) -> None:
        """Become the client's personalised model, given its kept state and a broadcast.

        Without a broadcast, that is right after training, the model stays as training left it.
        """
        if broadcast is not None:
            self.receive(broadcast, info)

    def adapt(self) -> Plan:
        """Declare what to run on the client's training data before the test.

        It runs after :meth:`personalise`, on a copy that is discarded after the test.
        """
        return ()

    def load_global(self, broadcast: Broadcast) -> None:
        """Become the server's global model."""
        assign(self, broadcast.shared)

    def server(self) -> Server[Any]:
        """Return the server's part of the method."""
        return Server(weighting=self.weighting)

    # The supervised learner.

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits of the model that is tested."""
        logits: Tensor = self.net(x)
        return logits

    def losses(self, batch: Batch) -> Terms:
        """Return the named terms of the objective; their sum is minimised."""
        return self.supervised(self(batch.x), batch)

    def supervised(self, outputs: Tensor, batch: Batch) -> Terms:
        """Return the task's loss of (B, D) outputs under its name, ``ce`` in classification."""
        return {self.task.loss_name: self.task.loss(outputs, batch.y, batch.weight)}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log loss and accuracy under a plain Trainer."""
        self._log_scores(Batch(*batch), "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log loss and accuracy under a plain Trainer."""
        self._log_scores(Batch(*batch), "test")

    def configure_optimizers(self) -> Optimizer:
        """Return the optimiser over all parameters that currently require a gradient."""
        return self.optimizer(p for p in self.parameters() if p.requires_grad)

    # Names of what travels and what stays.

    def shared_names(self) -> tuple[str, ...]:
        """Return the names of the entries that travel, with the buffer policy applied."""
        return self._names()[0]

    def kept_names(self, info: ClientInfo | None = None) -> tuple[str, ...]:
        """Return the names of the entries that stay with a client, with the buffer policy applied.

        Args:
            info: The client; ``None`` asks for all entries that any client keeps.
        """
        return self._names()[1]

    def has_global_model(self) -> bool:
        """Return ``True`` if :meth:`load_global` gives a complete model."""
        if self.buffer_policy == "local" and self._norm_statistics():
            # The server has no batch-norm statistics that fit its weights.
            return False
        if self.global_model is not None:
            return self.global_model
        shared = set(self.shared_names())
        return all(f"net.{name}" in shared for name, _ in self.net.named_parameters())

    def personal_is_global(self) -> bool:
        """Return ``True`` if clients are tested with the server's model and nothing of their own.

        That is the case if the whole network travels, the method overrides none of the methods that
        a test calls, and nothing is fitted before the test.
        """
        kind, own = type(self), self.kept_names()
        verbs = ["personalise", "load_global"]
        # A method may store more than the network, but must not test more than the network.
        verbs += ["forward"] if self.receives_global else ["receive"]
        plain = all(getattr(kind, verb) is getattr(ClientModule, verb) for verb in verbs)
        if self.receives_global:
            own = tuple(name for name in own if name.startswith("net."))
        else:
            plain = plain and type(self.server()).broadcast is Server.broadcast
        return plain and not own and not self.adapt() and self.has_global_model()

    def _names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what travels and what stays; cached, as the set of entries does not change."""
        key = self.shared, self.kept, self.buffer_policy
        if key not in self._matched:
            self._matched[key] = self._match()
        return self._matched[key]

    def _match(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        entries = self.state_dict()
        names = tuple(entries)
        for kind in ("shared", "kept"):
            for pattern in getattr(self, kind):
                if not any(matches(name, (pattern,)) for name in names):
                    raise ValueError(
                        f"{type(self).__name__}.{kind} has the pattern {pattern!r}, which matches "
                        f"nothing in the network; its entries are {', '.join(names[:6])}, ... "
                        "(a method that splits the network needs a lightning_modules.nets.SplitNet)"
                    )
        # Counters of batch norms do not travel: nothing averages them, and only a batch norm
        # without momentum reads them.
        travels = [
            name
            for name, value in entries.items()
            if matches(name, self.shared) and value.is_floating_point()
        ]
        stays = [name for name in names if matches(name, self.kept)]
        if self.buffer_policy == "local":
            # Only batch-norm statistics stay; prototypes and other buffers of a method still
            # travel.
            statistics = self._norm_statistics()
            stays += [n for n in travels if n in statistics and n not in stays]
            travels = [name for name in travels if name not in statistics]
        return tuple(travels), tuple(stays)

    def _norm_statistics(self) -> set[str]:
        """Return the names of all batch norms' buffers."""
        return {
            f"{norm}.{name}"
            for norm in batch_norms(self)
            for name, _ in self.get_submodule(norm).named_buffers()
        }

    def _log_scores(self, batch: Batch, split: str) -> None:
        names = self.task.scores_better
        values = zip(names, self.task.scores(self(batch.x), batch.y), strict=True)
        scores = {f"{split}/{name}": value for name, value in values}
        self.log_dict(scores, prog_bar=True, batch_size=len(batch.y))
