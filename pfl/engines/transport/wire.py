"""The messages between server and site, as bytes in the form of :mod:`pfl.disk.container`.

The content of a request and of its answer is one object under the name of the verb; an answer may
be a failure instead. Tensors are named ``shared:<name>`` and ``extra:<name>``; kept tensors that
are not stored where the client computes are named ``kept:<name>``.

The classes below declare all types and ranges. The receiver of a record checks them before using
any of it, and so does the sender once it is written: what is sent can be read. An answer repeats
what it belongs to, with a hash of its question, so that no other answer is taken for it.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from importlib import import_module
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from pfl.core.ranges import MOST
from pfl.core.state import flattened
from pfl.core.types import (
    Broadcast,
    ClientStep,
    ClientWork,
    Digest,
    Drawn,
    Job,
    Round,
    State,
    Ticket,
    Upload,
)
from pfl.disk import container
from pfl.disk.container import ContainerError
from pfl.disk.form import STRICT, parsed
from pfl.imports import plugins

# JSON cannot express a number that is not finite.
Number: TypeAlias = Annotated[float, Field(ge=-MOST, le=MOST)] | Literal["nan", "inf", "-inf"]
SplitName: TypeAlias = Literal["train", "val", "test", "pooled"]
Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
# Samples of a split, and of a class.
Size: TypeAlias = Annotated[int, Field(ge=0, le=10**9)]
# What distinguishes a run from all others, also from one with the same settings.
RunKey: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
FailureKind: TypeAlias = Literal["lost", "refused", "failed"]
FormT = TypeVar("FormT")
# Characters of a record as JSON: reporting a mistake costs some hundred bytes for each.
_LETTERS = 2**20
Words: TypeAlias = Annotated[str, Field(max_length=_LETTERS // 8)]
_NAMES = 2000  # numbers of one kind in a record
_FAILURE, _UNREAD = "failure", "unread"


@dataclass(frozen=True, config=STRICT)
class Numbers:
    """Named numbers in order, as the canonical form would sort keys."""

    names: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=_NAMES)]
    values: Annotated[list[Number], Field(max_length=_NAMES)]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.values):
            raise ValueError(f"{len(self.names)} names for {len(self.values)} numbers")
        if len({*self.names}) < len(self.names):
            raise ValueError("a name stands twice among the numbers")

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Numbers:
        """Encode numbers for JSON; those beyond :data:`~pfl.core.ranges.MOST` are infinite."""
        sizes = (math.copysign(math.inf, v) if abs(v) > MOST else v for v in values.values())
        words = [value if math.isfinite(value) else str(value) for value in sizes]
        return cls(list(values), words)  # type: ignore[arg-type]

    def read(self) -> dict[str, float]:
        """Return the numbers; a whole number stays one."""
        pairs = zip(self.names, self.values, strict=True)
        return {name: float(value) if isinstance(value, str) else value for name, value in pairs}


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Question:
    """What a message to a client belongs to; a goodbye says nothing else.

    Attributes:
        run: The run.
        client: The client.
        round: The round; 0 before the first and after the last.
    """

    run: RunKey
    client: Count
    round: Round


class Identity(TypedDict):
    """What an answer repeats of its question; see :class:`Answer`."""

    run: str
    client: int
    round: int
    question: str


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Answer:
    """What an answer belongs to; that to a goodbye says nothing else.

    Attributes:
        run: As in its question.
        client: As in its question.
        round: As in its question.
        question: Hash of its question, by :func:`hash_of`.
    """

    run: RunKey
    client: Count
    round: Round
    question: Digest


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Hello(Question):
    """The server's description of a run, before the first round.

    Attributes:
        facts: What both sides must agree on; see :mod:`pfl.extras.sites.facts`.
        counts: Whether the method's server needs label counts.
        config: The run's configuration as YAML; ``None`` for a run started from Python.
    """

    facts: dict[str, str]
    counts: bool
    config: str | None = None


@dataclass(frozen=True, config=STRICT)
class Sizes:
    """Number of samples of each split."""

    train: Size
    val: Size
    test: Size


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Introduction(Answer):
    """A site's description of its client.

    Attributes:
        data: Hash of its data, with a key that stays at the site.
        sizes: Number of samples of each split.
        label_counts: Training samples of each class, if the server needs them.
    """

    data: Digest
    sizes: Sizes
    label_counts: list[Size] | None = None


@dataclass(frozen=True, config=STRICT)
class StepRecord:
    """A client's step of the uplink, or its work: its class, and the values of its fields."""

    name: Annotated[str, Field(max_length=200)]
    values: dict[str, Any]

    @classmethod
    def of(cls, step: ClientStep | ClientWork) -> StepRecord:
        """Return a step in the form of a message."""
        return cls(_path(type(step)), asdict(step))  # type: ignore[call-overload]

    def work(self) -> ClientWork:
        """Return the work, whose class is imported by its path: for workers, which trust their run.

        Raises:
            ValueError: There is no such work here, or a value does not fit its class.
        """
        module, _, name = self.name.rpartition(".")
        kind = getattr(import_module(module), name)
        if not issubclass(kind, ClientWork):
            raise ValueError(f"{self.name[:60]!r} is no work of a client")
        work: ClientWork = parsed(json.dumps(self.values), kind, name)
        return work

    def step(self) -> ClientStep:
        """Return the step.

        Raises:
            ValueError: There is no such step here, or a value does not fit its class.
        """
        kinds = _steps()
        if self.name not in kinds:
            for _ in plugins.loaded("pfl.uplink"):
                kinds = _steps()
        if self.name not in kinds:
            raise ValueError(f"no step of the uplink named {self.name[:60]!r} is installed here")
        return parsed(json.dumps(self.values), kinds[self.name], self.name.rpartition(".")[2])


def _steps(base: type[ClientStep] = ClientStep) -> dict[str, type[ClientStep]]:
    """Return the classes of steps that are imported here, by their paths."""
    found = {_path(base): base}
    for kind in base.__subclasses__():
        found |= _steps(kind)
    return found


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Order(Question):
    """A job without its tensors; see :class:`pfl.core.types.Job` and its ``ClientInfo``.

    Attributes:
        sent: Whether there is a broadcast.
        codec: The step that encoded its weights; ``None`` for none.
        op_threads: Number of threads that an operation uses on a CPU.
        kept: The kept state to start from; ``None`` for none.
        steps: What the client does to its upload, in order.
    """

    rounds: Round
    seed: Count
    splits: Annotated[list[SplitName], Field(max_length=4)]
    model: Literal["personal", "global"]
    sent: bool
    op_threads: Annotated[int, Field(ge=1, le=256)]
    codec: StepRecord | None = None
    kept: Ticket | None = None
    steps: Annotated[list[StepRecord], Field(max_length=16)] = field(default_factory=list)


@dataclass(frozen=True, config=STRICT, kw_only=True)
class WorkOrder(Order):
    """A job of other work than a round of training, for a worker; sites know no such message."""

    work: StepRecord


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Report(Answer):
    """A result without its tensors; see :class:`pfl.core.types.Result`.

    Attributes:
        upload: Number of training samples in the upload; ``None`` if there is no upload.
        kept: The state that the site has stored; ``None`` if the client keeps none.
        withheld: Name of the step of the uplink that withheld the upload.
        drawn: The noise of its steps, one record for each phase.
    """

    steps: Annotated[int, Field(ge=0, le=10**9)]
    samples: Annotated[int, Field(ge=0, le=10**12)]
    finite: bool
    train: Numbers
    logged: Numbers
    scores: dict[SplitName, Numbers]
    upload: Size | None = None
    withheld: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    kept: Ticket | None = None
    drawn: Annotated[list[Drawn], Field(max_length=1000)] = field(default_factory=list)


@dataclass(frozen=True, config=STRICT, kw_only=True)
class WorkReport(Report):
    """The result of work; see :attr:`pfl.core.types.Result.course`."""

    course: Annotated[list[dict[SplitName, Numbers]], Field(max_length=10**4)]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Marks(Answer):
    """The scores of a test."""

    scores: dict[SplitName, Numbers]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Failure(Answer):
    """Why a request was not fulfilled.

    Attributes:
        kind: ``lost``: there is no such kept state; ``refused``: its owner does not allow this;
            ``failed``: the method failed.
        message: The reason in words.
    """

    kind: FailureKind
    message: Words


@dataclass(frozen=True, config=STRICT)
class Unread:
    """What is said to a message that cannot be read, and therefore without what it belongs to.

    Attributes:
        message: The reason in words.
    """

    message: Words


QuestionT = TypeVar("QuestionT", bound=Question)
AnswerT = TypeVar("AnswerT", bound=Answer)


class Tensors(NamedTuple):
    """The tensors of a message.

    Attributes:
        shared: Entries that travel.
        extra: What the method sends in addition.
        kept: The client's kept state, unless it is stored where the client computes.
    """

    shared: State
    extra: State
    kept: State


class Common:
    """Tensors that several jobs receive: they are packed once and sent beside the messages.

    Args:
        jobs: The jobs, which stay in memory as long as this object.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, self._lock = jobs, threading.Lock()
        sent = [tensors_of(job.broadcast) for job in jobs if job.broadcast is not None]
        self._uses = Counter(id(value) for tensors in sent for value in tensors.values())
        self._packed: dict[tuple[tuple[str, int], ...], bytes] = {}

    def split(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bytes]:
        """Return a message's tensors, with the common ones emptied, and the common ones packed."""
        common = {name: value for name, value in tensors.items() if self._uses[id(value)] > 1}
        if not common:
            return dict(tensors), b""
        key = tuple((name, id(value)) for name, value in common.items())
        with self._lock:
            if key not in self._packed:
                self._packed[key] = container.pack(None, common)
        # Empty tensors preserve the order.
        own = {n: value.new_empty(0) if n in common else value for n, value in tensors.items()}
        return own, self._packed[key]


def written(
    name: str,
    record: Any,  # noqa: ANN401
    sent: Broadcast | Upload | None = None,
    kept: Mapping[str, Tensor] | None = None,
) -> bytes:
    """Return a message: a record of this module under a name, and what travels with it."""
    return packed(name, record, tensors_of(sent, kept))


def packed(name: str, record: Any, tensors: Mapping[str, Tensor]) -> bytes:  # noqa: ANN401
    """Return a message: a record of this module under a name, and tensors by their names in it.

    Raises:
        ValueError: A receiver could not read the message.
    """
    content = asdict(record)
    # Fields of steps may be of any kind, such as tuples, which are read as lists.
    if json.dumps(asdict(_record(content, type(record), name))) != json.dumps(content):
        raise ValueError(f"a message named {name} is not what its reader would read")
    return container.pack({name: content}, tensors)


def hash_of(content: bytes, common: bytes = b"") -> str:
    """Return the hash of a question, from the checksums of the message and its common tensors."""
    return hashlib.sha256(
        container.checksum_of(content) + container.checksum_of(common)
    ).hexdigest()


def identity(question: Question, content: bytes, common: bytes = b"") -> Identity:
    """Return what the answer to a question repeats of it.

    Args:
        question: The record of the question.
        content: The message that it came with.
        common: Tensors of this message and of others; see :class:`Common`.
    """
    asked = hash_of(content, common)
    return Identity(run=question.run, client=question.client, round=question.round, question=asked)


def failed(verb: str, content: bytes, common: bytes, kind: FailureKind, message: str) -> bytes:
    """Return the answer to a message that is not fulfilled, which may be of any form."""
    message = message[: _LETTERS // 8]
    try:
        record = container.unpack(content)[0][verb]
        question = Question(**{key: record[key] for key in ("run", "client", "round")})
    except (ValueError, LookupError, TypeError):
        return written(_UNREAD, Unread(message))
    known = identity(question, content, common)
    return written(_FAILURE, Failure(**known, kind=kind, message=message))


def answered(
    name: str, form: type[AnswerT], data: bytes, asked: Identity
) -> tuple[AnswerT | Failure, Tensors]:
    """Return the record of an answer, or the failure that it reports, and its tensors.

    Args:
        name: Name of the record.
        form: Class of the record.
        data: The answer.
        asked: The identity of its question.

    Raises:
        ContainerError: The answer is damaged, too large, of another form, or to another question;
            or its question could not be read.
    """
    forms: dict[str, type[Any]] = {name: form, _FAILURE: Failure, _UNREAD: Unread}
    record, tensors = read(forms, data)
    if isinstance(record, Unread):
        raise ContainerError(f"the message could not be read there: {record.message}")
    for key, right in asked.items():
        if (given := getattr(record, key)) != right:
            what = {"question": "another question"}.get(key, f"{key} {given}")
            raise ContainerError(f"it is from {what}, not the one that was asked")
    return record, tensors


def asked(verb: str, form: type[QuestionT], data: bytes) -> tuple[QuestionT, Tensors]:
    """Return the record of a question, and its tensors.

    Raises:
        ContainerError: It is damaged, too large, or of another form.
    """
    return read({verb: form}, data)


def read(forms: Mapping[str, type[FormT]], data: bytes) -> tuple[FormT, Tensors]:
    """Return the record of a message, which has one of some names and its form, and its tensors.

    Raises:
        ContainerError: The message is damaged, too large, or of another form.
    """
    content, tensors = container.unpack(data)
    if not isinstance(content, dict) or len(content) != 1 or not content.keys() <= forms.keys():
        names = ", ".join(map(str, content)) if isinstance(content, dict) else ""
        raise ContainerError(
            f"expected a message named {' or '.join(forms)}, got {names[:60] or 'no name'}"
        )
    ((key, value),) = content.items()
    try:
        record = _record(value, forms[key], key)
    except ValueError as error:
        raise ContainerError(f"a message is malformed: {error}") from error
    return record, _by_origin(tensors)


def _record(value: Any, form: type[FormT], name: str) -> FormT:  # noqa: ANN401
    """Return a record from plain values.

    Raises:
        ValueError: They are too many, or not of the form.
    """
    text = json.dumps(value, allow_nan=False)
    if len(text) > _LETTERS:
        raise ValueError(f"its record has {len(text):,} characters, but may have {_LETTERS:,}")
    return parsed(text, form, name)


def tensors_of(
    sent: Broadcast | Upload | None, kept: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return the tensors to send, by their names in a message."""
    parts = {"kept": kept or {}}
    if sent is not None:
        shared = sent.shared
        if isinstance(sent, Broadcast) and sent.codec is not None:
            shared = sent.payload
        parts |= {"shared": shared, "extra": sent.extra}
    return {f"{part}:{name}": value for (part, name), value in flattened(parts).items()}


def _by_origin(tensors: Mapping[str, Tensor]) -> Tensors:
    received = Tensors({}, {}, {})
    parts = {"shared": received.shared, "extra": received.extra, "kept": received.kept}
    for key, value in tensors.items():
        part, colon, name = key.partition(":")
        if not colon or part not in parts:
            raise ContainerError(f"tensor {key[:60]!r} of a message is not shared, extra or kept")
        parts[part][name] = value
    return received
