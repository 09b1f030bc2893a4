"""All methods, and how tests build each of them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil

import lightning_modules
from lightning_modules.base import ClientModule
from pfl.testing import Subject
from tests.helpers.facts import Facts


def methods() -> list[type[ClientModule]]:
    """Return every concrete method class defined in a module of ``lightning_modules``."""
    found = []
    for info in pkgutil.iter_modules(lightning_modules.__path__):
        module = importlib.import_module(f"lightning_modules.{info.name}")
        found += [
            item
            for _, item in inspect.getmembers(module, inspect.isclass)
            # First, because Python 3.10 takes aliases such as tuple[str, ...] for classes.
            if item.__module__ == module.__name__
            and issubclass(item, ClientModule)
            and item is not ClientModule
            and not inspect.isabstract(item)
        ]
    return found


def test_module(method):
    """Return the test module of a method, ``test_<file>.py``, or ``None``."""
    name = f"tests.lightning_modules.test_{method.__module__.rsplit('.', 1)[-1]}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


test_module.__test__ = False


def build(method, net, **options):
    """Build the method on a network: with its test file's ``make``, if there is one."""
    make = getattr(test_module(method), "make", None)
    module = make(net, method=method, **options) if _takes(make, "method") else None
    if module is None:
        module = make(net, **options) if make is not None else method(net, **options)
    return module


def subject(method):
    """Return the method as :mod:`pfl.testing` checks it."""
    few = facts(method).fewer
    return Subject(method, lambda net, **options: build(method, net, **{**few, **options}), floats)


def facts(method) -> Facts:
    """Return what a method's test file states of it.

    Raises:
        AssertionError: It states nothing.
    """
    stated = getattr(test_module(method), "FACTS", {}).get(method)
    if stated is None:
        file = f"test_{method.__module__.rpartition('.')[2]}.py"
        raise AssertionError(f"tests/lightning_modules/{file} needs FACTS of {method.__name__}")
    return stated


def floats(module, info):
    """Return what a participant receives and sends in a round, in the form of :class:`Subject`."""
    stated = facts(type(module)).floats
    moved = stated(info) if callable(stated) else stated
    return moved if isinstance(moved, tuple) else (moved, moved)


def _takes(function, argument):
    return function is not None and argument in inspect.signature(function).parameters
