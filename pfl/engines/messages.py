"""Messages that carry jobs and results to another process: plain records and serialised tensors.

``torch.save`` serialises the tensors: types, strides and every bit are preserved, and they can be
read with ``weights_only=True``.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from pfl.core.state import Entries, compact, flattened, unflattened
from pfl.core.types import Broadcast, Job, Result, Upload

# The state that a tensor belongs to (kept, shared or extra), and its name there.
Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class Message:
    """A job or a result with its tensors serialised.

    Attributes:
        record: The job or the result, without its states.
        states: Its serialised tensors, without those in the shared payload.
        order: Keys of the tensors that a job receives, in the server's order; empty for a result.
    """

    record: Any
    states: bytes
    order: tuple[Key, ...] = ()


class MessageEncoder:
    """An encoder for the jobs of one call; tensors that several jobs receive are stored only once.

    Args:
        jobs: All jobs of the call.
        put: Stores a shared payload and returns the reference that is sent instead.
    """

    def __init__(self, jobs: Sequence[Job], put: Callable[[bytes], Any]) -> None:
        self._uses = Counter(id(v) for job in jobs for v in _travelling(job.broadcast).values())
        self._put = put
        self._shared_payloads: dict[tuple[tuple[Key, int], ...], Any] = {}

    def encode(self, job: Job) -> tuple[Message, Any]:
        """Return a job's message and the reference to its shared payload."""
        received = _travelling(job.broadcast)
        common = {key: value for key, value in received.items() if self._uses[id(value)] > 1}
        identity = tuple((key, id(value)) for key, value in common.items())
        if identity not in self._shared_payloads:
            self._shared_payloads[identity] = self._put(_encode(common))
        unshared = {key: value for key, value in received.items() if key not in common}
        empty = None if job.broadcast is None else Broadcast({})
        record = replace(job, kept={}, broadcast=empty)
        states = _encode(unshared | flattened({"kept": job.kept}))
        message = Message(record, states, tuple(received))
        return message, self._shared_payloads[identity]


def decode_job(message: Message, shared_payload: bytes, device: torch.device) -> Job:
    """Return the job of a message, with its tensors on a device."""
    unshared = _decode(message.states, device)
    entries = unshared | _decode(shared_payload, device)
    received = unflattened({key: entries[key] for key in message.order})
    job: Job = message.record
    broadcast = job.broadcast and Broadcast(received["shared"], received["extra"])
    return replace(job, kept=unflattened(unshared)["kept"], broadcast=broadcast)


def encode_result(result: Result) -> Message:
    """Return a result's message."""
    entries = flattened({"kept": result.kept}) | _travelling(result.upload)
    upload = result.upload and replace(result.upload, shared={}, extra={})
    return Message(replace(result, kept={}, upload=upload), _encode(entries))


def decode_result(message: Message, device: torch.device) -> Result:
    """Return the result of a message, with its tensors on a device."""
    states = unflattened(_decode(message.states, device))
    result: Result = message.record
    upload = result.upload and replace(
        result.upload, shared=states["shared"], extra=states["extra"]
    )
    return replace(result, kept=states["kept"], upload=upload)


def _travelling(sent: Broadcast | Upload | None) -> Entries:
    return {} if sent is None else flattened({"shared": sent.shared, "extra": sent.extra})


def _encode(entries: Entries) -> bytes:
    buffer = io.BytesIO()
    torch.save(compact(entries), buffer)
    return buffer.getvalue()


def _decode(data: bytes, device: torch.device) -> Entries:
    entries: Entries = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    return entries
