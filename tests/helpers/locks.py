"""File systems without locks."""

import errno
import os

import pytest


def locks_fail(monkeypatch, number=errno.ENOLCK):
    """Make every lock fail with this error, by default that of file systems without locks."""

    def fail(descriptor, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", fail)
