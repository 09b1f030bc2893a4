"""All methods, and how tests build each of them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil

import lightning_modules
from lightning_modules.base import ClientModule
from pfl.testing import Subject
from tests.helpers.floats import floats


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


# Methods that take many steps by default take few when promises are checked.
FEWER = {
    "CFL": {"start_round": 0, "min_size": 1, "eps1": 9.0, "eps2": 0.0},
    "FedALA": {"window": 2, "max_init_epochs": 3},
    "FedBABU": {"ft_epochs": 2},
    "FedGH": {"server_epochs": 3},
    "FedRep": {"head_epochs": 2},
    "FedSimSup": {"sup_epochs": 2, "epochs": 1},
    "FedTGP": {"server_epochs": 3},
    "LPFT": {"lp_epochs": 2, "ft_epochs": 2},
    "PFedBayes": {"inner_steps": 2},
    "PFedMe": {"inner_steps": 2},
    "PFedVEM": {"head_epochs": 3, "epochs": 2},
}


def subject(method):
    """Return the method as :mod:`pfl.testing` checks it."""
    few = FEWER.get(method.__name__, {})
    return Subject(method, lambda net, **options: build(method, net, **{**few, **options}), floats)


def _takes(function, argument):
    return function is not None and argument in inspect.signature(function).parameters
