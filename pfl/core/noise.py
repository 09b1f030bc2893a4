"""Draws from a counter-based generator: the same on every device, and in every stack.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014): the n-th number of a stream is a hash of ``seed + n * gamma``, a function
of the stream and of n alone. As integers the numbers are exact on every device. The logarithm, sine
and cosine that make them normal may differ in the last bit from one kind of device to another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from pfl.core.devices import on_host
from pfl.core.seeds import derive
from pfl.core.types import Job, Phase, State

_BITS = 64
_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15
# Shifts and factors of two hashes, of numbers and of a stream's gamma; a last shift follows.
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_MIX_GAMMA = ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 1))
# Pairs of draws that are made at once; on the host as many as a CPU's caches hold.
_AT_ONCE, _AT_ONCE_ON_HOST = 2**22, 2**16


class Noise:
    """The draws of some clients, step by step; a client's draws do not depend on the others.

    Small draws are made for many steps at once, because each takes many operations.

    Args:
        shapes: Shapes of the draws of a step, by name.
        keys: Keys of the clients' streams; not read without shapes.
        steps: The largest number of steps.
        device: Where the draws are needed.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        keys: Sequence[int],
        steps: int,
        device: torch.device,
    ) -> None:
        self._shapes = shapes
        self._sizes = [math.prod(shape) for shape in shapes.values()]
        self._steps, self._first, self._ahead = steps, 0, torch.empty(0, 0, 0)
        if self._shapes:
            # A copy to the device at each step would have to be waited for.
            self._streams = streams_of(keys, device)

    @classmethod
    def of(cls, phase: Phase, jobs: Sequence[Job], steps: int, device: torch.device) -> Noise:
        """Return the draws that a phase declares (:attr:`pfl.core.types.Phase.noise`)."""
        keys = [derive(job.seed, "noise", phase.name) for job in jobs]
        return cls(phase.noise, keys, steps, device)

    def of_step(self, number: int, clients: int = 1) -> State:
        """Return (clients, *shape) draws of a step for the first clients, by name.

        Steps may be skipped but not repeated, and the number of clients may not grow.
        """
        if not self._shapes:
            return {}
        if number >= self._first + self._ahead.shape[1]:
            self._draw(number, clients)
        draws = torch.split(self._ahead[:clients, number - self._first], self._sizes, 1)
        shapes = self._shapes.items()
        return {name: d.view(clients, *s) for (name, s), d in zip(shapes, draws, strict=True)}

    def _draw(self, number: int, clients: int) -> None:
        count = sum(self._sizes)
        fit = _block(self._streams.device) // max(1, clients * count)
        steps = max(1, min(fit, self._steps - number))
        streams, dtype = self._streams[:, :clients], torch.get_default_dtype()
        self._ahead = normals(streams, number, steps, count, dtype)
        self._first = number


def _block(device: torch.device) -> int:
    """Return the number of draws to make at once on a device; fewer take as many calls."""
    return 2 * (_AT_ONCE_ON_HOST if on_host(device) else _AT_ONCE)


def normals(streams: Tensor, first: int, steps: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return (K, steps, count) standard normal draws of some steps of K streams.

    A draw depends on its stream, its step, its place and ``count`` alone. It is made of 32 random
    bits in every precision.

    Args:
        streams: See :func:`streams_of`; the draws are made where they lie.
        first: The first of the steps.
        steps: How many.
        count: Draws of each step, at least 1.
        dtype: Of the draws; below 32 bits they are computed in 32.
    """
    # A number of 64 bits gives two draws.
    device, rows = streams.device, streams.shape[1]
    pairs, most = -(-count // 2), _block(device) // 2
    whole = torch.promote_types(dtype, torch.float32)
    drawn = torch.empty((rows, steps, 2, pairs), dtype=whole, device=device)
    wide = min(pairs, most)
    long = min(steps, max(1, most // wide))
    high = min(rows, max(1, most // (wide * long)))
    seeds, gammas = streams
    # Memory that is used again and again stays in the caches.
    integers = torch.empty(2 * high * long * wide, dtype=torch.int64, device=device)
    floats = torch.empty(3 * high * long * wide, dtype=whole, device=device)
    for top in range(0, rows, high):
        some = slice(top, top + high)
        for step in range(0, steps, long):
            for left in range(0, pairs, wide):
                out = drawn[some, step : step + long, :, left : left + wide]
                shape = (out.shape[0], out.shape[1] * out.shape[3])
                start = (first + step) * pairs + left
                bits, spare = integers[: 2 * math.prod(shape)].view(2, *shape)
                numbers(seeds[some], gammas[some], start, bits, spare)
                _to_normal(bits, spare, floats[: 3 * math.prod(shape)], out)
    return drawn.view(rows, steps, 2 * pairs)[..., :count].to(dtype)


def bernoulli(keys: Tensor, count: int, share: float) -> Tensor:
    """Return (K, count) bool, of which about a share is ``True``; by keys and places alone.

    Args:
        keys: (K, 1) int64.
        count: Draws of each key.
        share: Between 0 and 1, of which 32 bits count.
    """
    pairs, rows = -(-count // 2), len(keys)
    drawn = torch.empty((rows, 2 * pairs), dtype=torch.bool, device=keys.device)
    wide = max(1, min(pairs, _block(keys.device) // (2 * rows)))
    memory = torch.empty(2 * rows * wide, dtype=torch.int64, device=keys.device)
    gammas = torch.full_like(keys, _signed(_GOLDEN))
    last = _last(share)
    for left in range(0, pairs, wide):
        some = min(wide, pairs - left)
        bits, spare = memory[: 2 * rows * some].view(2, rows, some)
        numbers(keys, gammas, left, bits, spare)
        # Half of a number is a draw, with a sign.
        torch.le(bits.view(torch.int32), last, out=drawn[:, 2 * left : 2 * (left + some)])
    return drawn[:, :count]


class Masks:
    """Several masks that are drawn at once; each is what :func:`bernoulli` draws for its key.

    Args:
        wanted: Draws and share of each mask.
        device: Where they are needed.
    """

    def __init__(self, wanted: Sequence[tuple[int, float]], device: torch.device) -> None:
        pairs = torch.tensor([-(-count // 2) for count, _ in wanted])
        gamma = torch.tensor(_signed(_GOLDEN))
        steps = [torch.arange(1, some + 1) * gamma for some in pairs.tolist()]
        lasts = torch.tensor([_last(share) for _, share in wanted], dtype=torch.int32)
        whole = torch.repeat_interleave(lasts, 2 * pairs)
        self._counts = [count for count, _ in wanted]
        self._sizes = (2 * pairs).tolist()
        self._pairs = pairs.to(device)
        self._steps = torch.cat(steps).to(device)
        self._last: Tensor | int = int(lasts[0]) if (lasts == lasts[0]).all() else whole.to(device)

    def drawn(self, keys: Tensor) -> list[Tensor]:
        """Return the masks of (M,) int64 keys, each (count,) bool."""
        out = self._steps + torch.repeat_interleave(keys, self._pairs, output_size=len(self._steps))
        _mix(out, torch.empty_like(out))
        drawn = torch.split(torch.le(out.view(torch.int32), self._last), self._sizes)
        return [mask[:count] for mask, count in zip(drawn, self._counts, strict=True)]


def _last(share: float) -> int:
    """Return the largest 32-bit number, with a sign, that a draw counts for."""
    return max(round(share * 2**32) - 1, 0) - 2**31


def streams_of(keys: Sequence[int], device: torch.device) -> Tensor:
    """Return (2, K, 1) seeds and gammas of the streams of K keys, numbers of up to 64 bits."""
    pairs = [[_signed(value) for value in stream(key)] for key in keys]
    return torch.tensor(pairs, dtype=torch.int64, device=device).view(-1, 2, 1).transpose(0, 1)


def stream(key: int) -> tuple[int, int]:
    """Return seed and gamma of a key's stream, of 64 bits each, as ``split`` makes them."""
    gamma = _mixed(key + 2 * _GOLDEN, _MIX_GAMMA) | 1
    # A gamma with few transitions between 0 and 1 would change few bits of the sums.
    if (gamma ^ gamma >> 1).bit_count() < 24:
        gamma ^= 0xAAAAAAAAAAAAAAAA
    return _mixed(key + _GOLDEN, _MIX), gamma


def numbers(seeds: Tensor, gammas: Tensor, start: int, out: Tensor, spare: Tensor) -> None:
    """Fill (K, n) with random 64-bit numbers, from the ``start``-th of each stream on.

    Args:
        seeds: (K, 1) of the streams.
        gammas: (K, 1) of the streams.
        start: From 0.
        out: (K, n) int64.
        spare: As large.
    """
    if on_host(out.device):
        # By numpy, whose calls take a tenth of the time for few numbers.
        first, step, bits = (t.numpy().view(np.uint64) for t in (seeds, gammas, out))
        counted = np.arange(start + 1, start + 1 + bits.shape[1], dtype=np.uint64)
        np.multiply(counted, step, out=bits)
        np.add(bits, first, out=bits)
    else:
        places = torch.arange(start + 1, start + 1 + out.shape[1], device=out.device)
        torch.mul(places, gammas, out=out).add_(seeds)
    _mix(out, spare)


def _mix(out: Tensor, spare: Tensor) -> None:
    """Hash 64-bit numbers in place."""
    if on_host(out.device):
        bits, shifted = (tensor.numpy().view(np.uint64) for tensor in (out, spare))
        for shift, factor in _MIX:
            np.right_shift(bits, np.uint64(shift), out=shifted)
            np.bitwise_xor(bits, shifted, out=bits)
            if factor != 1:
                np.multiply(bits, np.uint64(factor), out=bits)
        return
    for shift, factor in _MIX:
        # A right shift copies the sign bit; the copies are masked.
        torch.bitwise_right_shift(out, shift, out=spare).bitwise_and_((1 << _BITS - shift) - 1)
        out.bitwise_xor_(spare)
        if factor != 1:
            out.mul_(_signed(factor))


def _to_normal(bits: Tensor, spare: Tensor, floats: Tensor, out: Tensor) -> None:
    """Turn 64-bit numbers into pairs of normal draws (Box and Muller).

    Args:
        bits: (k, s * n) int64.
        spare: As large.
        floats: Three times as large, and of the type of the draws.
        out: (k, s, 2, n) for the cosines and the sines.
    """
    k, s, _, n = out.shape
    radius, angle, turned = floats.view(3, k, s, n)
    angle.copy_(torch.bitwise_right_shift(bits, 32, out=spare).view(k, s, n))
    angle.mul_(math.pi / 2**31)
    radius.copy_(bits.bitwise_and_(_WORD).view(k, s, n)).add_(0.5).mul_(2.0**-32)
    radius.log_().mul_(-2).sqrt_()
    for half, turn in enumerate((torch.cos, torch.sin)):
        torch.mul(turn(angle, out=turned), radius, out=out[:, :, half])


def _mixed(value: int, steps: Sequence[tuple[int, int]]) -> int:
    """Hash a 64-bit number."""
    value %= 1 << _BITS
    for shift, factor in steps:
        value = (value ^ value >> shift) * factor % (1 << _BITS)
    return value


def _signed(value: int) -> int:
    """Return the signed number with the same 64 bits."""
    return value - (1 << _BITS) if value >> _BITS - 1 else value
