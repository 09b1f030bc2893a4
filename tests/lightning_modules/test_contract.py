"""Every method, found and not listed, keeps every promise of :mod:`pfl.testing`.

That a method builds from its YAML is promised by ``tests/test_configs.py``.
"""

from __future__ import annotations

import pytest

from pfl.testing import PROMISES
from tests.helpers.discovery import methods, subject


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.__name__)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_a_method_keeps_a_promise(method, promise):
    promise.hold(subject(method))
