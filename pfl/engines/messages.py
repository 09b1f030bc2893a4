"""Jobs and results on their way to another process: records of plain values, and bytes of tensors.

The bytes are what ``torch.save`` writes: types, strides and every bit survive, and they load with
``weights_only=True``.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pfl.core.state import compact
from pfl.core.types import Broadcast, Job, Result, State

# Which state of a record a tensor belongs to, and its name there.
Key: TypeAlias = tuple[str, str]
Entries: TypeAlias = dict[Key, Tensor]


@dataclass(frozen=True)
class Letter:
    """A job or a result whose states went into bytes.

    Attributes:
        record: The job or the result, without its states.
        states: Its tensors; those that other jobs of the call receive too come with the enclosure.
        order: Of a job: what it receives, in the order in which the server named it.
    """

    record: Any
    states: bytes
    order: tuple[Key, ...] = ()


class Outbox:
    """The letters of one call, where what several jobs receive is encoded and put away once.

    Args:
        jobs: All jobs of the call.
        put: Takes the bytes that jobs share; returns what shall be enclosed in their place.
    """

    def __init__(self, jobs: Sequence[Job], put: Callable[[bytes], Any]) -> None:
        self._uses = Counter(id(value) for job in jobs for value in _received(job).values())
        self._put = put
        self._enclosures: dict[tuple[tuple[Key, int], ...], Any] = {}

    def letter(self, job: Job) -> tuple[Letter, Any]:
        """A job's letter and its enclosure."""
        received = _received(job)
        common = {key: value for key, value in received.items() if self._uses[id(value)] > 1}
        identity = tuple((key, id(value)) for key, value in common.items())
        if identity not in self._enclosures:
            self._enclosures[identity] = self._put(_encode(common))
        own = {key: value for key, value in received.items() if key not in common}
        empty = None if job.broadcast is None else Broadcast({})
        record = replace(job, kept={}, broadcast=empty)
        letter = Letter(record, _encode(own | _named("kept", job.kept)), tuple(received))
        return letter, self._enclosures[identity]


def open_job(letter: Letter, enclosure: bytes, device: torch.device) -> Job:
    """The job of a letter, with its tensors on a device."""
    own = _decode(letter.states, device)
    entries = own | _decode(enclosure, device)
    received = {key: entries[key] for key in letter.order}
    job: Job = letter.record
    broadcast = job.broadcast and Broadcast(_part(received, "shared"), _part(received, "extra"))
    return replace(job, kept=_part(own, "kept"), broadcast=broadcast)


def seal_result(result: Result) -> Letter:
    """A result's letter."""
    entries, upload = _named("kept", result.kept), result.upload
    if upload is not None:
        entries |= _named("shared", upload.shared) | _named("extra", upload.extra)
        upload = replace(upload, shared={}, extra={})
    return Letter(replace(result, kept={}, upload=upload), _encode(entries))


def open_result(letter: Letter, device: torch.device) -> Result:
    """The result of a letter, with its tensors on a device."""
    entries = _decode(letter.states, device)
    result: Result = letter.record
    upload = result.upload and replace(
        result.upload, shared=_part(entries, "shared"), extra=_part(entries, "extra")
    )
    return replace(result, kept=_part(entries, "kept"), upload=upload)


def _received(job: Job) -> Entries:
    if job.broadcast is None:
        return {}
    return _named("shared", job.broadcast.shared) | _named("extra", job.broadcast.extra)


def _named(part: str, state: Mapping[str, Tensor]) -> Entries:
    return {(part, name): value for name, value in state.items()}


def _part(entries: Entries, wanted: str) -> State:
    return {name: value for (part, name), value in entries.items() if part == wanted}


def _encode(entries: Entries) -> bytes:
    buffer = io.BytesIO()
    torch.save(compact(entries), buffer)
    return buffer.getvalue()


def _decode(data: bytes, device: torch.device) -> Entries:
    entries: Entries = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    return entries
