"""Clients at sites give the sequential engine's bits; all that passes between them is bytes."""

from __future__ import annotations

import pytest

from tests.engines.agreement import fit, numbers
from tests.helpers.discovery import build, methods
from tests.helpers.federation import SGD
from tests.helpers.toy import mlp


def same(one, other):
    # As texts, in which the order of columns counts, and values that are not finite are equal.
    return one.fingerprint == other.fingerprint and str(numbers(one)) == str(numbers(other))


@pytest.mark.parametrize("method", methods(), ids=lambda m: m.__name__)
def test_every_method_gives_the_sequential_bits(method):
    alone, away = (
        fit(build(method, mlp(), optimizer=SGD), engine) for engine in ("sequential", "loopback")
    )
    assert same(away, alone)
