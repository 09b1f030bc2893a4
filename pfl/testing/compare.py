"""Comparison of nested values, as named tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pfl.core.state import as_real, fingerprint


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first entry that one side lacks, or that differs in any bit."""
    for name in {**a, **b}:
        if name not in a or name not in b:
            return name
        if fingerprint([{"": a[name]}]) != fingerprint([{"": b[name]}]):
            return name
    return None


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[float, str]:
    """Return the largest distance between entries of two states, and the name of that entry.

    The distance of an entry is its largest difference, divided by its largest value or by one. It
    is infinite if the entry is missing, has another shape or is NaN on one side only.
    """
    apart = ((_apart(a.get(name), b.get(name)), name) for name in {**a, **b})
    return max(apart, default=(0.0, ""))


def _apart(a: Tensor | None, b: Tensor | None) -> float:
    if a is None or b is None or a.shape != b.shape or not bool((a.isnan() == b.isnan()).all()):
        return float("inf")
    if not a.numel():
        return 0.0
    one, other = (as_real(value).double().nan_to_num() for value in (a, b))
    return float((one - other).abs().max() / one.abs().max().clamp_min(1))
