"""Clients at sites give the sequential engine's bits; all that passes between them is bytes."""

from __future__ import annotations

import pytest

from tests.engines.remote.sites import fit, same
from tests.helpers.discovery import build, methods
from tests.helpers.federation import SGD
from tests.helpers.toy import mlp


@pytest.mark.parametrize("method", methods(), ids=lambda m: m.__name__)
def test_every_method_gives_the_sequential_bits(method):
    alone, away = (
        fit(build(method, mlp(), optimizer=SGD), engine) for engine in ("sequential", "loopback")
    )
    assert same(away, alone)
