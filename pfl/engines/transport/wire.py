"""The messages between server and site, as bytes in the form of :mod:`pfl.disk.container`.

The content of a request and of its answer is one object under the name of the verb; an answer may
be an error instead. Tensors are named ``shared:<name>`` and ``extra:<name>``; what a client keeps,
and not where it computes, is named ``kept:<name>``.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from torch import Tensor

from pfl.core.checks import within
from pfl.core.elsewhere import MOST_ROUNDS, Reference
from pfl.core.state import flattened
from pfl.core.types import Broadcast, Job, SampleLevel, Sending, State, Upload
from pfl.disk import container
from pfl.disk.container import ContainerError
from pfl.disk.form import Least, formed

# JSON has no word for a number that is not finite.
Number: TypeAlias = float | Literal["nan", "inf", "-inf"]
SplitName: TypeAlias = Literal["train", "val", "test", "pooled"]
Count: TypeAlias = Annotated[int, Least(0)]
FormT = TypeVar("FormT")
# Of an operation.
_THREADS = 4096


@dataclass(frozen=True)
class Numbers:
    """Named numbers in their order; the canonical form sorts keys."""

    names: list[str]
    values: list[Number]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.values):
            raise ValueError(f"{len(self.names)} names for {len(self.values)} numbers")

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Numbers:
        """Return numbers as JSON can hold them."""
        words = [value if math.isfinite(value) else str(value) for value in values.values()]
        return cls(list(values), words)  # type: ignore[arg-type]

    def read(self) -> dict[str, float]:
        """Return the numbers; a whole number stays one."""
        pairs = zip(self.names, self.values, strict=True)
        return {name: float(value) if isinstance(value, str) else value for name, value in pairs}


@dataclass(frozen=True)
class Hello:
    """What the server says of a run before its first round.

    Attributes:
        facts: What both must agree on; see :mod:`pfl.engines.remote.facts`.
        counts: Whether the method's server needs the samples of each class.
        config: The run's configuration as YAML; ``None`` for a run started from Python.
    """

    facts: dict[str, str]
    counts: bool
    config: str | None = None


@dataclass(frozen=True)
class Introduction:
    """What a site says of its client.

    Attributes:
        data: Hash of its data.
        sizes: Number of samples of each split.
        label_counts: Training samples of each class, if the server needs them.
    """

    data: str
    sizes: dict[SplitName, Count]
    label_counts: list[Count] | None = None


@dataclass(frozen=True)
class Order:
    """A job without its tensors; see :class:`pfl.core.types.Job` and its ``ClientInfo``.

    Attributes:
        sent: Whether there is a broadcast.
        codec: How its weights are encoded; ``None`` for not at all.
        op_threads: Number of threads that an operation uses on a CPU.
        kept: The kept state to start from; ``None`` for none.
    """

    client: int
    round: int
    rounds: int
    seed: int
    splits: list[SplitName]
    model: Literal["personal", "global"]
    sent: bool
    op_threads: int
    codec: str | None = None
    kept: Reference | None = None
    sending: Sending | None = None
    sample_level: SampleLevel | None = None

    def __post_init__(self) -> None:
        within(f"[0, {MOST_ROUNDS}]", round=self.round, rounds=self.rounds)
        within(f"[1, {_THREADS}]", op_threads=self.op_threads)


@dataclass(frozen=True)
class Report:
    """A result without its tensors; see :class:`pfl.core.types.Result`.

    Attributes:
        upload: Number of training samples in the upload; ``None`` if there is no upload.
        kept: The state that the site has stored; ``None`` if the client keeps none.
    """

    client: int
    steps: Count
    samples: Count
    finite: bool
    train: Numbers
    logged: Numbers
    scores: dict[SplitName, Numbers]
    upload: Count | None = None
    kept: Reference | None = None


@dataclass(frozen=True)
class Marks:
    """The scores of a test."""

    scores: dict[SplitName, Numbers]


@dataclass(frozen=True)
class Failure:
    """Why a site did not answer a request as asked.

    Attributes:
        kind: ``lost``: it has no such kept state; ``refused``: it never does this;
            ``failed``: the method failed.
        message: For people.
    """

    kind: Literal["lost", "refused", "failed"]
    message: str


@dataclass(frozen=True)
class Empty:
    """A message that says nothing but its verb."""


@dataclass(frozen=True)
class Tensors:
    """The tensors of a message.

    Attributes:
        shared: Entries that travel.
        extra: What the method sends in addition.
        kept: What a client keeps, unless it lies where the client computes.
    """

    shared: State = field(default_factory=dict)
    extra: State = field(default_factory=dict)
    kept: State = field(default_factory=dict)


class Common:
    """Tensors that several jobs receive: they are packed once, and sent beside the messages.

    Args:
        jobs: The jobs, which are held as long as this.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, self._lock = jobs, threading.Lock()
        sent = [tensors_of(job.broadcast) for job in jobs if job.broadcast is not None]
        self._uses = Counter(id(value) for tensors in sent for value in tensors.values())
        self._packed: dict[tuple[tuple[str, int], ...], bytes] = {}

    def split(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bytes]:
        """Return a message's tensors, with empty ones for those in common, and these packed."""
        common = {name: value for name, value in tensors.items() if self._uses[id(value)] > 1}
        if not common:
            return dict(tensors), b""
        key = tuple((name, id(value)) for name, value in common.items())
        with self._lock:
            if key not in self._packed:
                self._packed[key] = container.pack(None, common)
        # Their places keep the order of the tensors.
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
        ContainerError: It is damaged, too large, or not of this form.
    """
    content, tensors = container.unpack(data)
    if not isinstance(content, dict) or not content.keys() < {name, "error"} or not content:
        names = ", ".join(map(str, content)) if isinstance(content, dict) else "no name"
        raise ContainerError(f"expected a message named {name}, got {names[:60]}")
    try:
        ((key, value),) = content.items()
        record = formed(value, Failure if key == "error" else form, (key,))
    except ValueError as error:
        raise ContainerError(f"a message is not as it should be: {error}") from error
    return record, _by_origin(tensors)


def asked(name: str, form: type[FormT], data: bytes) -> tuple[FormT, Tensors]:
    """Return the record and the tensors of a message to a site; see :func:`read`.

    Raises:
        ContainerError: Likewise, or it tells of a failure.
    """
    record, tensors = read(name, form, data)
    if isinstance(record, Failure):
        raise ContainerError("an error is no message to a site")
    return record, tensors


def tensors_of(
    sent: Broadcast | Upload | None, kept: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return the tensors that travel, by their names in a message."""
    parts = {"kept": kept or {}}
    if sent is not None:
        shared = sent.shared
        if isinstance(sent, Broadcast) and sent.codec is not None:
            shared = sent.payload
        parts |= {"shared": shared, "extra": sent.extra}
    return {f"{part}:{name}": value for (part, name), value in flattened(parts).items()}


def _by_origin(tensors: Mapping[str, Tensor]) -> Tensors:
    received = Tensors()
    parts = {"shared": received.shared, "extra": received.extra, "kept": received.kept}
    for key, value in tensors.items():
        part, colon, name = key.partition(":")
        if not colon or part not in parts:
            raise ContainerError(
                f"tensor {key[:60]!r} of a message is neither shared nor extra nor kept"
            )
        parts[part][name] = value
    return received
