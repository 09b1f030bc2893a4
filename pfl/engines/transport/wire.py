"""The messages between server and site, as bytes in the form of :mod:`pfl.disk.container`.

The content of a request and of its answer is one object under the name of the verb; an answer may
be an error instead. Tensors are named ``shared:<name>`` and ``extra:<name>``; kept tensors that are
not stored where the client computes are named ``kept:<name>``.

The receiver of a record checks all types and ranges, as declared by the classes below, before using
any of it.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from pfl.core.state import flattened
from pfl.core.types import Broadcast, ClientStep, Digest, Job, Round, State, Ticket, Upload
from pfl.disk import container
from pfl.disk.container import ContainerError
from pfl.disk.form import STRICT, parsed
from pfl.imports import plugins

# JSON cannot express a number that is not finite.
Number: TypeAlias = float | Literal["nan", "inf", "-inf"]
SplitName: TypeAlias = Literal["train", "val", "test", "pooled"]
Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
FormT = TypeVar("FormT")
# Characters of a record as JSON: reporting a mistake costs some hundred bytes for each.
_LETTERS = 2**20


@dataclass(frozen=True, config=STRICT)
class Numbers:
    """Named numbers in order, as the canonical form would sort keys."""

    names: list[str]
    values: list[Number]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.values):
            raise ValueError(f"{len(self.names)} names for {len(self.values)} numbers")

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Numbers:
        """Encode numbers for JSON."""
        words = [value if math.isfinite(value) else str(value) for value in values.values()]
        return cls(list(values), words)  # type: ignore[arg-type]

    def read(self) -> dict[str, float]:
        """Return the numbers; a whole number stays one."""
        pairs = zip(self.names, self.values, strict=True)
        return {name: float(value) if isinstance(value, str) else value for name, value in pairs}


@dataclass(frozen=True, config=STRICT)
class Hello:
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
class Introduction:
    """A site's description of its client.

    Attributes:
        data: Hash of its data, with a key that stays at the site.
        sizes: Number of samples of each split.
        label_counts: Training samples of each class, if the server needs them.
    """

    data: Digest
    sizes: dict[SplitName, Count]
    label_counts: list[Count] | None = None


@dataclass(frozen=True, config=STRICT)
class StepRecord:
    """A client's step of the uplink: its class, and the values of its fields."""

    name: Annotated[str, Field(max_length=200)]
    values: dict[str, Any]

    @classmethod
    def of(cls, step: ClientStep) -> StepRecord:
        """Return a step in the form of a message."""
        return cls(_path(type(step)), asdict(step))  # type: ignore[call-overload]

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


@dataclass(frozen=True, config=STRICT)
class Order:
    """A job without its tensors; see :class:`pfl.core.types.Job` and its ``ClientInfo``.

    Attributes:
        sent: Whether there is a broadcast.
        codec: The step that encoded its weights; ``None`` for none.
        op_threads: Number of threads that an operation uses on a CPU.
        kept: The kept state to start from; ``None`` for none.
        steps: What the client does to its upload, in order.
    """

    client: Count
    round: Round
    rounds: Round
    seed: Count
    splits: Annotated[list[SplitName], Field(max_length=4)]
    model: Literal["personal", "global"]
    sent: bool
    op_threads: Annotated[int, Field(ge=1, le=256)]
    codec: StepRecord | None = None
    kept: Ticket | None = None
    steps: Annotated[list[StepRecord], Field(max_length=16)] = field(default_factory=list)


@dataclass(frozen=True, config=STRICT)
class Report:
    """A result without its tensors; see :class:`pfl.core.types.Result`.

    Attributes:
        upload: Number of training samples in the upload; ``None`` if there is no upload.
        kept: The state that the site has stored; ``None`` if the client keeps none.
        withheld: Name of the step of the uplink that withheld the upload.
    """

    client: Count
    steps: Count
    samples: Count
    finite: bool
    train: Numbers
    logged: Numbers
    scores: dict[SplitName, Numbers]
    upload: Count | None = None
    withheld: Annotated[str, Field(pattern=r"^\w{1,100}$")] | None = None
    kept: Ticket | None = None


@dataclass(frozen=True, config=STRICT)
class Marks:
    """The scores of a test."""

    scores: dict[SplitName, Numbers]


@dataclass(frozen=True, config=STRICT)
class Failure:
    """Why a site did not fulfil a request.

    Attributes:
        kind: ``lost``: it has no such kept state; ``refused``: it does not allow this; ``failed``:
            the method failed.
        message: The reason in words.
    """

    kind: Literal["lost", "refused", "failed"]
    message: str


@dataclass(frozen=True, config=STRICT)
class Empty:
    """A message without content besides its verb."""


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
    """Return a message: a record of this module under a name, and tensors by their names in it."""
    return container.pack({name: asdict(record)}, tensors)


def read(name: str, form: type[FormT], data: bytes) -> tuple[FormT | Failure, Tensors]:
    """Return the record of a message, or the failure that it reports, and its tensors.

    Raises:
        ContainerError: The message is damaged, too large, or of another form.
    """
    content, tensors = container.unpack(data)
    if not isinstance(content, dict) or not content.keys() < {name, "error"} or not content:
        names = ", ".join(map(str, content)) if isinstance(content, dict) else "no name"
        raise ContainerError(f"expected a message named {name}, got {names[:60]}")
    try:
        ((key, value),) = content.items()
        text = json.dumps(value)
        if len(text) > _LETTERS:
            raise ValueError(f"its record has {len(text):,} characters, but may have {_LETTERS:,}")
        if key == "error":
            return parsed(text, Failure, key), _by_origin(tensors)
        record = parsed(text, form, key)
    except ValueError as error:
        raise ContainerError(f"a message is malformed: {error}") from error
    return record, _by_origin(tensors)


def asked(name: str, form: type[FormT], data: bytes) -> tuple[FormT, Tensors]:
    """Return the record and the tensors of a message to a site; see :func:`read`.

    Raises:
        ContainerError: Likewise, or it reports a failure.
    """
    record, tensors = read(name, form, data)
    if isinstance(record, Failure):
        raise ContainerError("a message to a site must not be an error")
    return record, tensors


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
