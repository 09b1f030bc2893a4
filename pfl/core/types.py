"""Plans, and the records that a round passes around.

They depend on no method, engine or data set. A ``State`` is a flat dictionary from names to
tensors, as ``Module.state_dict`` returns it. Records are frozen and have states and plain values
only, so that they can cross a process boundary unchanged.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor
from torch.optim import Optimizer

from pfl.core.checks import one_of, tuples
from pfl.core.seeds import derive
from pfl.disk.form import STRICT

State: TypeAlias = dict[str, Tensor]
Terms: TypeAlias = dict[str, Tensor]
Patterns: TypeAlias = tuple[str, ...]
OptimizerFactory: TypeAlias = Callable[[Iterable[Tensor]], Optimizer]
Count: TypeAlias = "float | Callable[[State, ClientInfo], float]"
Positions: TypeAlias = "Callable[[State, ClientInfo], Tensor]"
EvaluationPoint: TypeAlias = Literal["post_broadcast", "post_local"]
Split: TypeAlias = Literal["train", "val", "test", "pooled"]
# What data may be asked for: also samples that belong to no client, on which nobody is tested.
DataSplit: TypeAlias = Literal[Split, "public"]
# One tensor for a batch, or several by name; their first axis runs over the samples.
Inputs: TypeAlias = "Tensor | dict[str, Tensor]"


class Batch(NamedTuple):
    """One mini-batch of one client.

    ``Batch(*loader_item)`` accepts what an ordinary ``DataLoader`` over ``(x, y)`` yields.

    Attributes:
        x: (B, ...) inputs, normalised; several by name where the network takes a dictionary.
        y: (B, ...) targets, as the task has them; (B,) integer labels in classification.
        weight: (B,) one for a real sample, zero for padding; ``None`` when all samples are real.
            Loss terms that reduce over the batch use it, so that padded and unpadded batches give
            the same number.
        noise: Standard normal draws by name, as declared by :attr:`Phase.noise`; empty under a
            plain Trainer, where a layer draws its own.
        index: (B,) position of each sample among those of the phase or pass, for values that a
            client keeps for each sample; ``None`` under a plain Trainer and where single samples
            are private.
    """

    x: Any
    y: Tensor
    weight: Tensor | None = None
    noise: Mapping[str, Tensor] | None = None
    # Hides tuple.index, which nobody needs here.
    index: Tensor | None = None  # type: ignore[assignment]


class Outcome(NamedTuple):
    """The result of an objective that returns more than its loss terms.

    Attributes:
        terms: Named loss terms; their sum is minimised.
        entries: New values of entries of the module's state dict. The engine writes them after the
            step; the phase must not train them.
        rows: (B, ...) a row for each sample of the batch, by name. The engine joins the rows of all
            steps and passes them to the next pass (:attr:`Totals.rows`).
    """

    terms: Terms
    # Plain dictionaries, since vmap can stack their values; they are never written to.
    entries: State = {}  # noqa: RUF012
    rows: State = {}  # noqa: RUF012


@dataclass(frozen=True)
class Totals:
    """The sums and rows from which a pass computes.

    Attributes:
        sums: Of :attr:`Pass.statistic`, over the batches.
        rows: (n, ...) rows of :attr:`Pass.collect`, and those that phases collected since the last
            pass (:attr:`Outcome.rows`), in the order in which the samples were seen.
        steps: Optimiser steps that the client has taken in this job so far.
        samples: Training samples that it has seen, counted with repetition.
        rates: Of a LightningModule with its own optimisers, the sum of the learning rates of all
            steps of each parameter, by name; otherwise empty.
    """

    sums: State
    rows: State
    steps: int
    samples: int
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of local training: some parameters are trained on one objective for some epochs.

    Attributes:
        name: Unique within the plan; part of the phase's seeds and of the names of its losses.
        split: The samples that it trains on: the client's training data, or the ``public`` data,
            which belong to no client (``data.public``).
        subset: Returns the (m,) positions of the samples of ``split`` that the phase sees, in this
            order, given the client's own entries right before the phase and its info. They are then
            the samples of the phase, among which :attr:`Batch.index` counts. ``None`` is all.
        objective: The loss terms of a batch, as a function of the module's state and the batch that
            changes neither (batch norms' running statistics excepted).
        epochs: Epochs over these samples; zero skips the phase, and of a fraction of an epoch as
            large a share of the batches is used, rounded up. It may be a function of the client's
            own entries and its info, called right before the phase.
        steps: Number of optimiser steps instead of epochs (an epoch may end within them); may be
            such a function too.
        trains: Patterns of the parameter names that this phase trains. All others are left out of
            the optimiser and get no gradient.
        optimizer: Factory for this phase; ``None`` uses the module's ``configure_optimizers``.
        batch_size: Samples in a step; ``None`` uses the data module's batch size.
        full_batch: One step an epoch, over all samples.
        drop_last: Leave out the last batch if it is not full; ``None`` uses the data module's
            setting.
        share: Fraction of the samples that the phase sees, in (0, 1]; drawn anew for each client
            and round, at least one batch. Not with ``full_batch``.
        until: Called after each epoch with the losses of the last step of every epoch so far;
            ``True`` ends the phase early. Clients then differ in length.
        evals: Patterns of submodule names that stay in eval mode (frozen batch-norm statistics).
        inputs: A function of the batch whose result this phase does not change (such as features of
            a frozen backbone). It is applied once, before the first step, and the objective sees
            its output as ``batch.x``. It is applied at every step if data are augmented, if the
            phase does not see all samples, or if a client's output would take more than 64 MB.
        noise: Shapes of the standard normal draws that each step needs, by name.
    """

    name: str
    objective: Callable[[Batch], Terms | Outcome]
    split: Literal["train", "public"] = "train"
    subset: Positions | None = None
    epochs: Count = 1
    steps: Count | None = None
    trains: Patterns = ("*",)
    optimizer: OptimizerFactory | None = None
    batch_size: int | None = None
    full_batch: bool = False
    drop_last: bool | None = None
    share: float = 1.0
    until: Callable[[Sequence[float]], bool] | None = None
    evals: Patterns = ()
    inputs: Callable[[Batch], Inputs] | None = None
    noise: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse patterns that are not a tuple, and a split that is not for training.

        Raises:
            ValueError: They are something else.
        """
        tuples(trains=self.trains, evals=self.evals)
        one_of("split of a Phase", self.split, ("train", "public"))

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"phase {self.name!r}"

    @property
    def varies(self) -> bool:
        """``True`` if its length depends on the client."""
        return callable(self.epochs) or callable(self.steps)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass over a client's samples, in stored order and in eval mode, without training.

    Attributes:
        name: Unique within the plan.
        then: Computes new values of entries of the module's state dict from the totals (buffers, or
            parameters set in closed form). Not called for a client without such samples.
        split: The samples that it goes through: the client's training or validation data (``train``
            or ``val``), or the ``public`` data, which belong to no client.
        subset: The samples of ``split`` that it goes through, as in :class:`Phase`.
        statistic: Returns named sums over one batch; the engine adds them up over the batches. Like
            an objective it changes nothing.
        collect: Returns (B, ...) rows of one batch by name, for values that cannot be summed.
        when: Returns whether the pass takes place for a client, given the client's own entries and
            its info.

    Without ``statistic`` and ``collect`` a pass reads no data: it changes the state between two
    phases.
    """

    name: str
    then: Callable[[Totals], State]
    split: Literal["train", "val", "public"] = "train"
    subset: Positions | None = None
    statistic: Callable[[Batch], State] | None = None
    collect: Callable[[Batch], State] | None = None
    when: Callable[[State, ClientInfo], bool] | None = None

    def __post_init__(self) -> None:
        """Refuse a split that only a test may read.

        Raises:
            ValueError: They are something else.
        """
        one_of("split of a Pass", self.split, ("train", "val", "public"))

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"pass {self.name!r}"

    @property
    def walks(self) -> bool:
        """``True`` if it reads the data."""
        return self.statistic is not None or self.collect is not None


Plan: TypeAlias = Sequence[Phase | Pass]


NO_CLIENT = -1
"""In place of a client's index, for the common test set and the mean of a private round."""


@dataclass(frozen=True)
class ClientInfo:
    """Information on a client and on the round.

    Attributes:
        client: Index of the client, or :data:`NO_CLIENT`.
        samples: Number of its training samples, n_i.
        label_counts: (C,) training samples of each class; ``None`` where there are no classes.
        round: The communication round, from 1; 0 before the first.
        rounds: Planned number of rounds, T.
    """

    client: int
    samples: int
    label_counts: Tensor | None
    round: int = 0
    rounds: int = 0

    @property
    def class_counts(self) -> Tensor:
        """(C,) training samples of each class, for a method that needs classes.

        Raises:
            ValueError: The task has no classes, or a server does not get the counts.
        """
        if self.label_counts is None:
            raise ValueError(
                "the samples have no classes that could be counted, or this is a server that does "
                "not declare needs_label_counts"
            )
        return self.label_counts


@dataclass(frozen=True)
class Broadcast:
    """The message from the server to one client.

    Attributes:
        shared: Values for the entries of the module's state dict that travel.
        extra: What the method sends in addition, under its own names.
        encoded: Bytes of the message that was sent; ``None`` if it is not encoded.
        codec: The step that encoded ``shared``; ``None`` sends it whole.
        payload: What travels instead of ``shared`` if there is a codec.
    """

    shared: State
    extra: State = field(default_factory=dict)
    encoded: int | None = None
    codec: ClientStep | None = None
    payload: State = field(default_factory=dict)


@dataclass(frozen=True)
class Upload:
    """The message from one client to the server.

    Attributes:
        client: Index of the client.
        samples: Number of its training samples (known to the server from the start; not counted as
            traffic).
        shared: The client's values of the entries that travel.
        extra: What the method sends in addition; declared in ``ClientModule.extra``.
        encoded: As in :class:`Broadcast`.
    """

    client: int
    samples: int
    shared: State
    extra: State = field(default_factory=dict)
    encoded: int | None = None


@dataclass(frozen=True)
class Cohort:
    """The participants of a round: ``uploads`` is a subset of ``trains``; both ascend."""

    trains: tuple[int, ...]
    uploads: tuple[int, ...]


Names: TypeAlias = Annotated[tuple[str, ...], Field(max_length=2**16)]
"""Names of entries that travel in a step, at most as many as a message may have tensors."""


class ClientStep:
    """The client's part of a step of the uplink: a value that travels with its job.

    A subclass is a frozen dataclass of plain values. The receiver checks their types and ranges, by
    its annotations and its ``__post_init__``, before using it.

    Attributes:
        differs: Whether it sends the difference to what the client received, in float64, instead
            of new values.
    """

    differs: ClassVar[bool] = False
    # Without its type, which jsonargparse could not evaluate for the fields of subclasses.
    __pydantic_config__ = STRICT

    @property
    def secret(self) -> bool:
        """Whether random choices come from the operating system, and never from a seed."""
        return False

    def training_info(self, info: ClientInfo) -> ClientInfo:
        """Return the information that a client's training may use."""
        return info

    def sent(self, job: Job, result: Result) -> Result:
        """Return a client's result as it is sent, right after its round.

        A result without its upload withholds it.
        """
        return result

    def checked(self, upload: Upload, job: Job, right: State) -> Upload:
        """Return an upload with the types and shapes that it had before this step.

        Called for uploads from other places. The values of tensors do not matter.

        Args:
            upload: The upload, in the form in which this step sends it.
            job: The client's job.
            right: Has tensors of the types and shapes of the method's entries.

        Raises:
            ValueError: This step sends nothing of this form.
        """
        return upload

    def unpacked(self, payload: State, template: State) -> State:
        """Return the weights of a message from the server; see :attr:`Broadcast.codec`.

        Raises:
            ValueError: The payload does not fit the template, or this step encodes no messages.
        """
        raise ValueError(f"{type(self).__name__} encodes no message")


class ClientWork(ABC):
    """What a client computes in place of its round of training: a value that travels with its job.

    A subclass is a frozen dataclass of plain values. Engines run it where they train the client,
    side by side with others, but in no stack, so that its numbers have the same bits everywhere.
    """

    __pydantic_config__ = STRICT

    @abstractmethod
    def done(self, context: Any, job: Job) -> Result:
        """Do the work of a client's job.

        Args:
            context: The client's :class:`~pfl.training.context.Context`, in the state of any job.
            job: The job.
        """


# A place finds the state of a ticket by its hash: that of pfl.core.state.digest.
Digest: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Up to the last round that a run may have.
Round: TypeAlias = Annotated[int, Field(ge=0, lt=10**9)]


@checked_dataclass(frozen=True, config=STRICT)
class Ticket:
    """Names a kept state that its client stores itself, on another machine.

    Attributes:
        digest: The state's hash.
        round: The round of the client's participation that it is from.

    Raises:
        ValueError: There is no such hash or round.
    """

    digest: Digest
    round: Round


@checked_dataclass(frozen=True, config=STRICT)
class Drawn:
    """The noise that a client drew in steps of its training, as a witness of it.

    It tells only how the steps were made, as more of the noise would tell of the samples.

    Attributes:
        batches: Steps of an epoch, m: a step includes a sample with rate 1 / m.
        steps: Number of steps.
        clip: Largest norm of what a sample adds to a step.
        sigma: Deviation of the noise, in units of the clip.
    """

    batches: Annotated[int, Field(ge=1, lt=2**31)]
    steps: Annotated[int, Field(ge=1, lt=2**63)]
    clip: Annotated[float, Field(gt=0)]
    sigma: Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Job:
    """Everything an engine needs to run one client, besides the module and the data.

    Attributes:
        info: The client and the round.
        kept: The state that the client kept from its last participation; empty the first time.
        broadcast: What the server sent; ``None`` leaves the loaded state as it is.
        seed: Seed of every random choice of this client in this round.
        splits: Splits on which the model is tested; for a training job, right after training.
            ``"pooled"`` is the common test set.
        model: The model that a test job builds from the broadcast.
        steps: What the client does to its upload before it is sent, in this order.
        ticket: Names what the client keeps if it stores it itself; ``kept`` is then empty.
        work: What the client computes in place of its round of training.
    """

    info: ClientInfo
    kept: State
    broadcast: Broadcast | None
    seed: int
    splits: tuple[Split, ...] = ()
    model: Literal["personal", "global"] = "personal"
    steps: tuple[ClientStep, ...] = ()
    ticket: Ticket | None = None
    work: ClientWork | None = None

    def seed_of(self, *path: str | int) -> int:
        """Derive a seed of the client's random choices from the job's seed and a path."""
        if any(step.secret for step in self.steps):
            return secrets.randbits(63)
        return derive(self.seed, *path)

    @property
    def adapts(self) -> bool:
        """``True`` if a test builds the client's personalised model from the broadcast."""
        return self.broadcast is not None and self.model == "personal"


Scores: TypeAlias = dict[Split, dict[str, float]]


@dataclass(frozen=True)
class Result:
    """The result of one training job, as an engine returns it.

    Attributes:
        client: Index of the client.
        upload: For the server; ``None`` if the client could not take a single step, or a step of
            the uplink withheld it.
        kept: What this client gets back in its next job.
        train: Mean of each loss term, by ``"<phase>/<term>"``, and what passes report.
        steps: Optimiser steps taken.
        samples: Training samples seen, counted with repetition.
        scores: Metrics of the model right after training, by split (``Job.splits``).
        finite: False if a loss, a kept value or an uploaded weight is not a finite number.
        logged: Mean of each number logged in its steps (``self.log``), by name.
        withheld: Name of the step of the uplink that withheld the upload.
        unheard: Bytes of an upload that a step of the uplink withheld after it had arrived.
        ticket: Names what the client keeps if it stores it itself; ``kept`` is then empty.
        drawn: The noise of its steps, if the rule of its gradients adds some.
        course: Scores in the course of a :class:`ClientWork` that tests models, in order.
    """

    client: int
    upload: Upload | None
    kept: State
    train: dict[str, float]
    steps: int
    samples: int
    scores: Scores = field(default_factory=dict)
    finite: bool = True
    logged: dict[str, float] = field(default_factory=dict)
    withheld: str | None = None
    unheard: int = 0
    ticket: Ticket | None = None
    drawn: Sequence[Drawn] = ()
    course: Sequence[Scores] = ()


@dataclass(frozen=True)
class RoundResult:
    """One finished round, as callbacks see it.

    Attributes:
        round: From 1.
        cohort: Who trained and who uploaded.
        metrics: One flat row: ``train/...``, ``val/...``, ``test/...``, ``comm/...``, ``time/...``,
            ``server/...``, ``log/...``.
        clients: One row a client for each evaluated round; empty in other rounds.
        evaluated: Whether the models were tested after this round.
        failed: Why the training or the test of a client does not count, by client.
        withheld: The step of the uplink that withheld a client's upload, by client.
    """

    round: int
    cohort: Cohort
    metrics: dict[str, float]
    clients: list[dict[str, float]]
    evaluated: bool
    failed: Mapping[int, str] = field(default_factory=dict)
    withheld: Mapping[int, str] = field(default_factory=dict)
