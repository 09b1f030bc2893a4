"""Which extras are present: the suite passes in a copy without any of them."""

from pathlib import Path

import pytest

import pfl


def has(name):
    """Return ``True`` if an extra was not removed."""
    return Path(pfl.__file__).with_name("extras").joinpath(name, "__init__.py").is_file()


def needs(*names):
    """Return the mark for a test that needs some extras."""
    missing = [name for name in names if not has(name)]
    return pytest.mark.skipif(bool(missing), reason=f"the extra {', '.join(missing)} was removed")


# An engine of sites, as a parameter for tests of messages.
LOOPBACK = pytest.param("loopback", marks=needs("sites"))
