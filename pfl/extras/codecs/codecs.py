"""Codecs of messages: functions from a tensor to its payload and back.

A payload is a few named tensors, packed tightly; the bytes of a round are the lengths of messages
with these payloads. A decoded tensor depends only on the payload and the shape. Random bits come
from the counter-based generator, so that they are the same under every engine.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfl.core.checks import within
from pfl.core.devices import widest
from pfl.core.noise import numbers, streams_of
from pfl.core.types import State
from pfl.extras.codecs.coding import Codec

_BYTE = 8


@dataclass(frozen=True)
class Identity(Codec):
    """Sends every bit."""

    changes: ClassVar[bool] = False

    def encode(self, value: Tensor, key: int) -> State:
        """Return the tensor itself."""
        return {"value": value}


@dataclass(frozen=True)
class Cast(Codec):
    """Sends 16 bits of each number.

    Args:
        dtype: ``bfloat16`` has the range of float32 and 8 significant bits; ``float16`` has 11
            significant bits, and larger numbers are clipped to 65,504.
        remembers: Use error feedback: add the rounding error to the next message.
    """

    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    remembers: bool = True

    def encode(self, value: Tensor, key: int) -> State:
        """Return the rounded numbers."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        most = torch.finfo(dtype).max
        return {"value": value.clamp(-most, most).to(dtype)}


@dataclass(frozen=True)
class QSGD(Codec):
    """Rounds each number stochastically to a few levels, without bias.

    Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and encoding",
    NeurIPS 2017, Section 3.1: in a bucket of norm r, a number v becomes ``r sign(v) l / s``, where
    l is ``s |v| / r`` rounded up with the probability of its fraction. Each number takes ``bits``
    bits, without the paper's entropy coding.

    Args:
        bits: Bits of a number, including its sign: s = 2^(bits - 1) - 1 levels above zero; 2 to 8.
        bucket: Count of numbers that share a norm; 1 to 2^20.

    Raises:
        ValueError: An argument is out of range.
    """

    bits: int = 4
    bucket: int = 512

    def __post_init__(self) -> None:
        within("[2, 8]", bits=self.bits)
        # A tensor is padded to whole buckets.
        within(f"[1, {2**20}]", bucket=self.bucket)

    @property
    def levels(self) -> int:
        """The number of levels above zero, s."""
        return (1 << self.bits - 1) - 1

    def encode(self, value: Tensor, key: int) -> State:
        """Return the norms of the buckets, and the levels as packed bits."""
        flat = value.flatten()
        wide = flat.to(widest(value.device))
        # The last bucket is padded with zeros.
        filled = torch.nn.functional.pad(wide, (0, -len(wide) % self.bucket))
        norms = filled.view(-1, self.bucket).norm(dim=1).to(value.dtype)
        # As the receiver decodes it.
        scale = self._spread(norms, len(flat)).to(wide.dtype)
        height = (self.levels * wide.abs() / scale.where(scale > 0, 1)).clamp(max=self.levels)
        level = (height + _uniform(key, len(flat), value.device).to(wide.dtype)).floor()
        level = level.clamp(max=self.levels) * wide.sign()
        return {"norm": norms, "level": _packed((level + self.levels).long(), self.bits)}

    def decode(self, payload: State, like: Tensor) -> Tensor:
        """Return the levels scaled by the norms."""
        norms = payload["norm"].to(like.device, widest(like.device))
        level = _unpacked(payload["level"].to(like.device), self.bits, like.numel()) - self.levels
        value = self._spread(norms, like.numel()) * level / self.levels
        return value.to(like.dtype).view_as(like)

    def _spread(self, norms: Tensor, count: int) -> Tensor:
        return norms.repeat_interleave(self.bucket)[:count]


@dataclass(frozen=True)
class _Sparse(Codec):
    """Sends a share of a tensor's numbers; the others are decoded as zero."""

    differences: ClassVar[bool] = True
    share: float = 0.1

    def __post_init__(self) -> None:
        within("(0, 1]", share=self.share)

    @abstractmethod
    def places(self, payload: State, like: Tensor) -> Tensor:
        """Return the flat indices of a payload's numbers."""

    def decode(self, payload: State, like: Tensor) -> Tensor:
        """Return the numbers at their indices, and zeros elsewhere."""
        flat = like.new_zeros(like.numel())
        flat[self.places(payload, like)] = payload["value"].to(like)
        return flat.view_as(like)


@dataclass(frozen=True)
class TopK(_Sparse):
    """Sends the numbers of largest magnitude with their indices.

    Args:
        share: Share of each tensor's numbers that is sent, at least one number; in (0, 1].
        remembers: Use error feedback: add what was left out to the next message (Stich et al.,
            "Sparsified SGD with memory", NeurIPS 2018).

    Raises:
        ValueError: ``share`` is out of range.
    """

    remembers: bool = True

    def encode(self, value: Tensor, key: int) -> State:
        """Return the largest numbers and their indices, in ascending order."""
        flat = value.flatten()
        # A stable sort, so that ties are broken alike on every device.
        order = flat.abs().sort(descending=True, stable=True).indices
        places = order[: _count(self.share, len(flat))].sort().values
        width = _width(len(flat))
        return {"value": flat[places], "place": _packed(places, width)}

    def places(self, payload: State, like: Tensor) -> Tensor:
        """Return the indices that were sent."""
        packed = payload["place"].to(like.device)
        return _unpacked(packed, _width(like.numel()), len(payload["value"]))

    def check(self, payload: State, like: Tensor) -> None:
        """Reject an invalid payload; see :meth:`Codec.check`.

        Raises:
            ValueError: See :meth:`Codec.check`; or an index is out of range.
        """
        super().check(payload, like)
        places = self.places(payload, like)
        if len(behind := places[places >= like.numel()]):
            raise ValueError(f"an index of {behind.max()} in a tensor of {like.numel()} numbers")


@dataclass(frozen=True)
class RandK(_Sparse):
    """Sends numbers at random indices, rescaled without bias.

    The indices are derived from the key of the stream, which is sent in their place.

    Args:
        share: Share of each tensor's numbers that is sent, at least one number; in (0, 1].

    Raises:
        ValueError: ``share`` is out of range.
    """

    def encode(self, value: Tensor, key: int) -> State:
        """Return the numbers at a key's indices, times n / k, and the key."""
        payload = {"key": torch.tensor(key, dtype=torch.int64)}
        sent = value.flatten()[self.places(payload, value)]
        return {"value": sent * (value.numel() / max(1, len(sent))), **payload}

    def places(self, payload: State, like: Tensor) -> Tensor:
        """Return the indices derived from the key."""
        order = _bits(int(payload["key"]), like.numel(), like.device).sort(stable=True).indices
        return order[: _count(self.share, like.numel())].sort().values


@dataclass(frozen=True)
class Sign(Codec):
    """Sends the sign of each number and their mean magnitude.

    Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes", ICML
    2019: v becomes ``sign(v) |v|_1 / n``, tensor by tensor; zero counts as positive.

    Args:
        remembers: Use error feedback: add what was left out to the next message.
    """

    differences: ClassVar[bool] = True
    remembers: bool = True

    def encode(self, value: Tensor, key: int) -> State:
        """Return the mean magnitude, and one bit for each number."""
        flat = value.flatten()
        sizes = flat.to(widest(value.device)).abs()
        # An empty tensor, as of a layer without shared channels, has no mean.
        scale = (sizes.mean() if len(sizes) else sizes.sum()).to(value.dtype)
        return {"scale": scale, "sign": _packed((flat >= 0).long(), 1)}

    def decode(self, payload: State, like: Tensor) -> Tensor:
        """Return the signs times the mean magnitude."""
        signs = 2 * _unpacked(payload["sign"].to(like.device), 1, like.numel()) - 1
        return (signs * payload["scale"].to(like)).view_as(like)


def _count(share: float, count: int) -> int:
    """Return how many of ``count`` numbers are sent; the 1e-9 keeps 0.29 * 100 at 29."""
    return max(1, int(share * count + 1e-9))


def _width(count: int) -> int:
    """Return the bits of an index below ``count``."""
    return max(1, (count - 1).bit_length())


def _packed(values: Tensor, bits: int) -> Tensor:
    """Pack (n,) integers of ``bits`` bits each into bytes, lowest bit first."""
    shifts = torch.arange(bits, device=values.device)
    flat = (values[:, None] >> shifts & 1).flatten()
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % _BYTE)).view(-1, _BYTE)
    return (flat << torch.arange(_BYTE, device=values.device)).sum(1).to(torch.uint8)


def _unpacked(data: Tensor, bits: int, count: int) -> Tensor:
    """Unpack (count,) integers; the inverse of :func:`_packed`."""
    flat = (data.long()[:, None] >> torch.arange(_BYTE, device=data.device) & 1).flatten()
    values = flat[: count * bits].view(count, bits)
    return (values << torch.arange(bits, device=data.device)).sum(1)


def _bits(key: int, count: int, device: torch.device) -> Tensor:
    """Return (count,) random 64-bit integers."""
    seeds, gammas = streams_of([key], device)
    out = torch.empty(2, 1, count, dtype=torch.int64, device=device)
    numbers(seeds, gammas, 0, out[0], out[1])
    return out[0, 0]


def _uniform(key: int, count: int, device: torch.device) -> Tensor:
    """Return (count,) draws from [0, 1), of 24 bits each, exact in float32."""
    return (_bits(key, count, device) >> 40 & 0xFFFFFF).to(torch.float32) * 2.0**-24
