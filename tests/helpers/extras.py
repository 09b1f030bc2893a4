"""Which extras and rooms are present: the suite passes in a copy without any of them."""

from pathlib import Path

import pytest

import pfl


def has(name):
    """Return ``True`` if an extra, or a room of the data, was not removed."""
    package = Path(pfl.__file__).parent
    homes = (package / "extras", package.with_name("datamodules"))
    return any((home / name / "__init__.py").is_file() for home in homes)


def needs(*names):
    """Return the mark for a test that needs some extras or rooms."""
    missing = [name for name in names if not has(name)]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} was removed")


# An engine of sites, as a parameter for tests of messages.
LOOPBACK = pytest.param("loopback", marks=needs("sites"))
