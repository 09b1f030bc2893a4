"""How messages are encoded, what clients remember of the errors, and how long messages are.

A client encodes the difference between the weights that it would send and those that it received,
tensor by tensor; the server encodes weights. Buffers (such as running statistics of batch norms),
:attr:`pfl.core.types.Upload.extra` and counters travel whole. Bytes are the length of the message
in the canonical form (:mod:`pfl.disk.container`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pfl.core.client import ClientModule
from pfl.core.seeds import derive
from pfl.core.state import named
from pfl.core.types import Broadcast, Job, Result, Sending, State
from pfl.disk import container
from pfl.passage.codecs import Codec, CodecName, Identity, codec_of, codec_text, make_codec
from pfl.passage.difference import wide

# No entry of a module has a colon in its name.
_RESIDUAL = "residual:"
# Stands beside the parts of an encoded entry that is only a part of the module's.
_SHAPE = "shape"


@dataclass(frozen=True)
class Codecs:
    """The codecs of both directions, by name or with options.

    Args:
        up: From clients to the server: of the differences of weights.
        down: From the server to clients: of weights. Codecs that suit differences only are refused.

    Raises:
        ValueError: There is no codec of a name, or ``down`` has one for differences.
    """

    up: Codec | CodecName = "identity"
    down: Codec | CodecName = "identity"

    def __post_init__(self) -> None:
        make_codec(self.up)
        down = make_codec(self.down)
        if down.differences:
            raise ValueError(
                f"down: the server sends weights, and {type(down).__name__} suits differences "
                "only: choose identity, cast or qsgd"
            )


class Coding:
    """The server's half: it encodes what it sends, and decodes what it receives.

    Attributes:
        up: The codec of clients.
        down: The server's codec.
        names: The entries that are encoded.

    Args:
        codecs: The codecs.
        module: The method.
        sent: What its server sends to a client in the first round.
        seed: Seed of the server's random bits.

    Raises:
        ValueError: The method sends no weights that could be encoded, or other weights than it
            receives.
    """

    def __init__(self, codecs: Codecs, module: ClientModule, sent: Broadcast, seed: int) -> None:
        self.up, self.down = make_codec(codecs.up), make_codec(codecs.down)
        self._seed = derive(seed, "codec")
        self._shapes = {name: weight.shape for name, weight in module.named_parameters()}
        self.names = tuple(name for name in module.shared_names() if name in self._shapes)
        self._last: tuple[tuple[int, ...], tuple[Tensor, ...], Broadcast] | None = None
        if isinstance(self.up, Identity) and isinstance(self.down, Identity):
            return
        why = None if self.names else "no weights travel"
        if missing := [name for name in self.names if name not in sent.shared]:
            why = f"its server does not send {missing[0]!r}, from which a difference is made"
        if why is not None:
            raise ValueError(f"loop.codec: {type(module).__name__} cannot be encoded: {why}")

    def sending(self, sending: Sending | None) -> Sending | None:
        """Return how clients send, given how they would without a codec."""
        if isinstance(self.up, Identity):
            return sending
        return replace(sending or Sending(), codec=codec_text(self.up), coded=self.names)

    def sent(self, broadcast: Broadcast, number: int) -> Broadcast:
        """Return a message as clients receive it in a round.

        Messages with the same tensors have the same tensors afterwards: they are encoded once.
        """
        tensors = *broadcast.shared.values(), *broadcast.extra.values()
        key = number, *map(id, tensors)
        if self._last is None or self._last[0] != key:
            # No other tensor gets the address of one that is held.
            self._last = key, tensors, self._encoded(broadcast, number)
        return self._last[2]

    def received(self, job: Job, result: Result) -> Result:
        """Return a client's result as the server has it: decoded, with the bytes of its message."""
        upload, sending = result.upload, job.sending
        if upload is None or not result.finite:
            return result
        content = {"client": upload.client, "samples": upload.samples}
        size = _length(content, upload.shared, upload.extra)
        if sending is not None and sending.codec is not None and job.broadcast is not None:
            upload = replace(upload, shared=decoded(upload.shared, job.broadcast.shared, sending))
        return replace(result, upload=replace(upload, encoded=size))

    def _encoded(self, broadcast: Broadcast, number: int) -> Broadcast:
        if isinstance(self.down, Identity):
            size = _length({"round": number}, broadcast.shared, broadcast.extra)
            return replace(broadcast, encoded=size)
        payload, shared = State(), dict(broadcast.shared)
        for name, value in broadcast.shared.items():
            if name not in self.names:
                payload[name] = value
                continue
            parts = self.down.encode(value, derive(self._seed, number, name))
            shared[name] = self.down.decode(parts, value)
            if value.shape != self._shapes[name]:
                # A part of the weight, such as some channels.
                parts[_SHAPE] = torch.tensor(value.shape)
            payload |= _named(name, parts)
        size = _length({"round": number}, payload, broadcast.extra)
        return Broadcast(shared, broadcast.extra, size, codec_text(self.down), payload)


def encoded(job: Job, shared: State, sending: Sending) -> tuple[State, State]:
    """Return what a client sends of its weights, and what it remembers of what it does not send."""
    assert sending.codec is not None
    assert job.broadcast is not None
    codec = codec_of(sending.codec)
    payload, residuals = State(), State()
    for name, value in shared.items():
        if name not in sending.coded:
            payload[name] = value
            continue
        received = job.broadcast.shared[name]
        moved = wide(value) if sending.differs else wide(value) - wide(received)
        memory = job.kept.get(_RESIDUAL + name)
        # A method may send fewer channels than in the round before; which ones, it alone knows.
        if memory is not None and memory.shape == moved.shape:
            moved = moved + wide(memory)
        moved = moved.to(received.dtype)
        parts = codec.encode(moved, derive(job.seed, "codec", name))
        payload |= _named(name, parts)
        if codec.remembers:
            residuals[_RESIDUAL + name] = moved - codec.decode(parts, moved)
    return payload, residuals


def decoded(payload: State, received: State, sending: Sending) -> State:
    """Return what a client sends, from its payload and what it received.

    These are weights; or differences, if the whole upload is one.

    Raises:
        KeyError: The payload lacks an entry.
    """
    assert sending.codec is not None
    codec, shared = codec_of(sending.codec), dict(payload)
    for name in sending.coded:
        start = received[name]
        # A client may send some of what it received, such as the network that it chose.
        if not (parts := taken(shared, name)):
            continue
        moved = codec.decode(parts, start)
        whole = wide(start) + wide(moved)
        shared[name] = moved if sending.differs else whole.to(start.dtype)
    return shared


def unpacked(payload: State, codec: str | None, template: State) -> State:
    """Return the weights of a message from the server, from what has travelled.

    Nothing is decoded before its sizes are checked.

    Args:
        payload: Encoded entries as their named parts, and others whole.
        codec: The codec as text; ``None`` if all entries are whole.
        template: Has tensors of the shapes and types of the entries.

    Raises:
        ValueError: There is no such entry or codec, or a tensor is not of its entry: neither the
            whole, nor a part of it, nor one of those that encode it.
    """
    rest, shared = dict(payload), State()
    for key in payload:
        name, colon, _ = key.partition(":")
        if name not in template:
            raise ValueError(f"the method has no entry {name[:60]!r}")
        if not colon:
            shared[name] = payload[name]
            _check_part(shared[name].shape, template[name])
        elif name not in shared:
            if codec is None:
                raise ValueError(f"{key[:60]!r} is encoded, but no codec is told")
            parts, like = taken(rest, name), template[name]
            if _SHAPE in parts:
                shape = [int(size) for size in parts.pop(_SHAPE).flatten()[: like.dim() + 1]]
                _check_part(shape, like)
                like = like.new_empty(*shape)
            decoder = codec_of(codec)
            decoder.check(parts, like)
            shared[name] = decoder.decode(parts, like)
    return shared


def _check_part(shape: Sequence[int], whole: Tensor) -> None:
    if len(shape) != whole.dim() or any(
        n < 0 or n > most for n, most in zip(shape, whole.shape, strict=True)
    ):
        raise ValueError(f"a part of shape {[*shape]} of an entry of shape {[*whole.shape]}")


def uncoded(job: Job) -> Job:
    """Return a job whose upload is not encoded."""
    if job.sending is None or job.sending.codec is None:
        return job
    return replace(job, sending=replace(job.sending, codec=None))


def residuals_of(kept: State) -> State:
    """Return what a client remembers of what it did not send, from its kept state."""
    return {name: value for name, value in kept.items() if name.startswith(_RESIDUAL)}


def taken(payload: State, name: str) -> State:
    """Take the parts of an entry out of a payload, and return them by their own names."""
    start = f"{name}:"
    taken = [key for key in payload if key.startswith(start)]
    return {key.removeprefix(start): payload.pop(key) for key in taken}


def _named(name: str, parts: State) -> State:
    return {f"{name}:{part}": value for part, value in parts.items()}


def _length(content: Mapping[str, int], shared: State, extra: State) -> int:
    """Return the bytes of a message."""
    return len(container.pack(content, named({"shared": shared, "extra": extra})))
