"""Encoding of messages, error feedback on clients, and message lengths.

A client encodes the difference between its weights and those that it received, tensor by tensor;
the server encodes weights. Buffers (such as running statistics of batch norms),
:attr:`pfl.core.types.Upload.extra` and counters are sent unencoded. Bytes include a header with the
tensors' names, the tensors, and a checksum, but not a transport's overhead.
"""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, TypeAlias

import pydantic.dataclasses
import torch
from pydantic import Field
from torch import Tensor

from pfl.core.devices import wide
from pfl.core.seeds import derive
from pfl.core.server import ServerState
from pfl.core.state import RESIDUAL, form_of, named, nbytes, to
from pfl.core.types import Broadcast, ClientStep, Job, Names, Result, State, Upload
from pfl.disk.form import parsed
from pfl.training.received import check_part
from pfl.training.uplink import Start, UplinkStep

CodecName: TypeAlias = Literal["identity", "cast", "qsgd", "topk", "randk", "sign"]
# The text of a codec with its options; see `codec_text`.
CodecText: TypeAlias = Annotated[str, Field(max_length=200)]
# Bytes of a message besides its header and its tensors: a length of 12, and a checksum of 32.
_FRAME = 44
# Added to the parts of an encoded entry that covers only a part of the module's.
_SHAPE = "shape"


class Codec(UplinkStep, ABC):
    """An encoder of floating-point tensors as payloads: a few named tensors each.

    As a step of the uplink, it encodes the messages of clients. Subclasses are frozen dataclasses;
    a codec's name is its class name in lower case.

    Attributes:
        changes: Whether the codec is lossy.
        differences: Whether it suits only differences of weights: most decoded numbers are zero or
            of one magnitude.
    """

    last: ClassVar[bool] = True
    changes: ClassVar[bool] = True
    differences: ClassVar[bool] = False

    @property
    def remembers(self) -> bool:
        """``True`` if a client adds what was left out to its next message (error feedback).

        Without it, the error of a biased codec would not vanish.
        """
        return False

    def bound(self, start: Start) -> _Coding:
        """Return the server's side for a run; see :meth:`Codecs.bound`."""
        return Codecs(up=self).bound(start)

    @abstractmethod
    def encode(self, value: Tensor, key: int) -> State:
        """Return the payload of (...) numbers.

        Args:
            value: At least one floating-point number.
            key: Key of the stream of random bits.
        """

    def decode(self, payload: State, like: Tensor) -> Tensor:
        """Return the numbers of a payload, with the shape, type and device of ``like``."""
        return payload["value"].to(like)

    def check(self, payload: State, like: Tensor) -> None:
        """Reject a payload that does not fit a tensor with the shape and type of ``like``.

        This allocates no memory.

        Raises:
            ValueError: The payload's tensors have the wrong names, types or shapes.
        """
        made = self.encode(torch.zeros_like(like, device="meta"), key=0)
        given, right = ({k: form_of(v) for k, v in one.items()} for one in (payload, made))
        if given != right:
            raise ValueError(f"{given} instead of {right}")


def codecs(base: type[Codec] = Codec) -> dict[str, type[Codec]]:
    """Return the codecs by name, including those of plug-ins."""
    found: dict[str, type[Codec]] = {}
    for kind in base.__subclasses__():
        if not inspect.isabstract(kind):
            found[kind.__name__.lower()] = kind
        found |= codecs(kind)
    return found


def make_codec(codec: Codec | str) -> Codec:
    """Return a codec, given itself or by name for default settings.

    Raises:
        ValueError: There is no codec of this name.
        TypeError: The value is not a codec.
    """
    if isinstance(codec, Codec):
        return codec
    known = codecs()
    if not isinstance(codec, str):
        raise TypeError(f"a codec must be one of {', '.join(known)}, got {codec!r}")
    if codec not in known:
        raise ValueError(f"there is no codec {codec!r}; choose from {', '.join(known)}")
    return known[codec]()


def codec_text(codec: Codec) -> str:
    """Serialise a codec as text, which can be sent to clients."""
    return json.dumps([type(codec).__name__.lower(), asdict(codec)])  # type: ignore[call-overload]


@lru_cache(maxsize=8)
def codec_of(text: str) -> Codec:
    """Parse a codec from the text of :func:`codec_text`.

    Raises:
        ValueError: The text does not describe a codec.
    """
    try:
        name, options = json.loads(text)
        return parsed(json.dumps(options), codecs()[name], name)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"cannot parse codec {text[:80]!r}: {error}") from error


@dataclass(frozen=True)
class Codecs(UplinkStep):
    """The codecs of both directions, by name or with options; the last step of the uplink.

    Args:
        up: From clients to the server, for differences of weights.
        down: From the server to clients, for weights. Codecs for differences are rejected.

    Raises:
        ValueError: There is no such codec, or ``down`` is one for differences.
    """

    last: ClassVar[bool] = True
    up: Codec | CodecName = "identity"
    down: Codec | CodecName = "identity"

    def __post_init__(self) -> None:
        make_codec(self.up)
        down = make_codec(self.down)
        if down.differences:
            raise ValueError(
                f"down: the server sends weights, but {type(down).__name__} suits differences "
                "only: choose identity, cast or qsgd"
            )

    def bound(self, start: Start) -> _Coding:
        """Return the server's side for a run.

        Raises:
            ValueError: The method sends no weights that can be encoded, or weights that it does
                not receive.
        """
        return _Coding(self, start)


class _Coding(UplinkStep):
    """The server's side of the codecs for a run.

    Attributes:
        up: The codec of clients.
        down: The server's codec.
        names: The entries that are encoded.

    Args:
        codecs: The codecs.
        start: The run.

    Raises:
        ValueError: See :meth:`Codecs.bound`.
    """

    def __init__(self, codecs: Codecs, start: Start) -> None:
        module, self._device = start.context.module, start.context.fabric.device
        self.up, self.down = make_codec(codecs.up), make_codec(codecs.down)
        self._seed = derive(start.seed, "codec")
        self._shapes = {name: weight.shape for name, weight in module.named_parameters()}
        self.names = tuple(name for name in module.shared_names() if name in self._shapes)
        self._last: tuple[tuple[int, ...], tuple[Tensor, ...], Broadcast] | None = None
        if not (self.up.changes or self.down.changes):
            return
        sent = start.first(start.clients[0].client).broadcast or Broadcast({})
        why = None if self.names else "it sends no weights"
        template = start.context.template
        if found := [name for name in self.names if template[name].is_complex()]:
            why = f"{found[0]!r} has complex numbers, and codecs are for real ones"
        if missing := [name for name in self.names if name not in sent.shared]:
            why = f"its server does not send {missing[0]!r}, so that there is no difference"
        if why is not None:
            raise ValueError(f"loop.uplink: {type(module).__name__} cannot be encoded: {why}")

    @property
    def remembers(self) -> bool:
        """Whether clients use error feedback."""
        return self.up.remembers

    def described(self, planned: int, rounds: int) -> dict[str, str]:
        """Return the header's line about codecs."""
        memory = ", with error feedback" if self.remembers else ""
        return {"codec": f"up {self.up}{memory}; down {self.down}"}

    def job(self, job: Job, state: ServerState, uploads: bool) -> Job:
        """Add a client's encoding to its job."""
        # A client whose upload is discarded must not record it as sent.
        if not (self.up.changes and uploads):
            return job
        return replace(job, steps=(*job.steps, Encoded(codec_text(self.up), self.names)))

    def broadcast(self, message: Broadcast, number: int) -> Broadcast:
        """Encode a message to clients, as they will receive it.

        Messages that share tensors share them afterwards, too: each tensor is encoded once.
        """
        tensors = *message.shared.values(), *message.extra.values()
        key = number, *map(id, tensors)
        if self._last is None or self._last[0] != key:
            # Tensors that are kept alive have unique addresses.
            self._last = key, tensors, self._encoded(message, number)
        return self._last[2]

    def received(self, job: Job, result: Result) -> Result:
        """Decode a client's result, and record the bytes of its message."""
        upload = result.upload
        if upload is None or not result.finite:
            return result
        content = {"client": upload.client, "samples": upload.samples}
        size = _length(content, upload.shared, upload.extra)
        for step in job.steps:
            if isinstance(step, Encoded):
                upload = replace(upload, shared=step.decoded(upload.shared, job))
        return replace(result, upload=replace(upload, encoded=size))

    def _encoded(self, broadcast: Broadcast, number: int) -> Broadcast:
        # Clients need it on their device; a server's state may be memory-mapped on the host.
        shared = to(broadcast.shared, self._device)
        if not self.down.changes:
            size = _length({"round": number}, shared, broadcast.extra)
            return replace(broadcast, shared=shared, encoded=size)
        payload = State()
        for name, value in list(shared.items()):
            if name not in self.names:
                payload[name] = value
                continue
            parts = self.down.encode(value, derive(self._seed, number, name))
            shared[name] = self.down.decode(parts, value)
            if value.shape != self._shapes[name]:
                # A part of the weight, such as some of its channels.
                parts[_SHAPE] = torch.tensor(value.shape)
            payload |= _named(name, parts)
        size = _length({"round": number}, payload, broadcast.extra)
        codec = Encoded(codec_text(self.down), self.names)
        return Broadcast(shared, broadcast.extra, size, codec, payload)


@pydantic.dataclasses.dataclass(frozen=True)
class Encoded(ClientStep):
    """The encoding of a message, sent along with it.

    Attributes:
        codec: The codec as text.
        names: Names of entries that are encoded; others are sent whole.

    Raises:
        ValueError: The text does not describe a codec.
    """

    codec: CodecText
    names: Names

    def __post_init__(self) -> None:
        codec_of(self.codec)

    def sent(self, job: Job, result: Result) -> Result:
        """Encode the weights of a result, and keep the error on the client."""
        upload = result.upload
        if upload is None or not result.finite:
            return result
        codec, payload, residuals = codec_of(self.codec), State(), State()
        for name, value in upload.shared.items():
            if name not in self.names:
                payload[name] = value
                continue
            received = _received(job)[name]
            moved = wide(value) if _differs(job) else wide(value) - wide(received)
            memory = job.kept.get(RESIDUAL + name)
            # A method may send other channels than in the last round, and only it can match them.
            if memory is not None and memory.shape == moved.shape:
                moved = moved + wide(memory)
            moved = moved.to(received.dtype)
            parts = codec.encode(moved, derive(job.seed, "codec", name))
            payload |= _named(name, parts)
            if codec.remembers:
                residuals[RESIDUAL + name] = moved - codec.decode(parts, moved)
        kept = {**result.kept, **residuals}
        return replace(result, upload=replace(upload, shared=payload), kept=kept)

    def decoded(self, payload: State, job: Job) -> State:
        """Decode a client's message, given what it received.

        The result is weights, or differences if the upload consists of these.
        """
        codec, shared = codec_of(self.codec), dict(payload)
        for name in self.names:
            start = _received(job)[name]
            # A client may send a part of what it received, such as the network that it chose.
            if not (parts := taken(shared, name)):
                continue
            moved = codec.decode(parts, start)
            whole = wide(start) + wide(moved)
            shared[name] = moved if _differs(job) else whole.to(start.dtype)
        return shared

    def checked(self, upload: Upload, job: Job, right: State) -> Upload:
        """Restore the types and shapes of an encoded upload.

        Raises:
            ValueError: An entry is encoded wrongly, or not at all.
        """
        shared = dict(upload.shared)
        for name in self.names:
            if name in shared:
                raise ValueError(f"sends {name[:60]!r}, which should be encoded")
            if parts := taken(shared, name):
                try:
                    codec_of(self.codec).check(parts, right[name])
                except ValueError as error:
                    raise ValueError(f"encodes {name!r} wrongly: {error}") from error
                shared[name] = torch.empty_like(right[name], device="meta")
        return replace(upload, shared=shared)

    def unpacked(self, payload: State, template: State) -> State:
        """Decode the weights of a message from the server.

        Sizes are checked before anything is decoded.

        Raises:
            ValueError: There is no such entry, or a tensor is neither the entry nor a part of it
                nor of its encoding.
        """
        rest, shared, decoder = dict(payload), State(), codec_of(self.codec)
        for key in payload:
            name, colon, _ = key.partition(":")
            if name not in template:
                raise ValueError(f"the method has no entry {name[:60]!r}")
            if not colon:
                shared[name] = payload[name]
            elif name not in shared:
                parts, like = taken(rest, name), template[name]
                if _SHAPE in parts:
                    shape = [int(size) for size in parts.pop(_SHAPE).flatten()[: like.dim() + 1]]
                    check_part(shape, like)
                    like = like.new_empty(*shape)
                decoder.check(parts, like)
                shared[name] = decoder.decode(parts, like)
        return shared


def _received(job: Job) -> State:
    return {} if job.broadcast is None else job.broadcast.shared


def _differs(job: Job) -> bool:
    return any(step.differs for step in job.steps)


def taken(payload: State, name: str) -> State:
    """Remove the parts of an entry from a payload, and return them by their own names."""
    start = f"{name}:"
    taken = [key for key in payload if key.startswith(start)]
    return {key.removeprefix(start): payload.pop(key) for key in taken}


def _named(name: str, parts: State) -> State:
    return {f"{name}:{part}": value for part, value in parts.items()}


def _length(content: Mapping[str, int], shared: State, extra: State) -> int:
    """Return the bytes of a message: header, tensors and checksum."""
    sent = named({"shared": shared, "extra": extra})
    kinds = [[n, str(v.dtype).removeprefix("torch."), [*v.shape]] for n, v in sent.items()]
    described = {"content": content, "tensors": kinds}
    header = json.dumps(described, separators=(",", ":"), ensure_ascii=False)
    return _FRAME + len(header.encode()) + nbytes(sent)
