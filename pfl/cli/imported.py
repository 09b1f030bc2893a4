"""Classes and functions as they are once they are imported."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from inspect import Parameter
from typing import Annotated, Any, cast, get_type_hints

from pfl.cli import catalogue
from pfl.cli.catalogue import BrokenError
from pfl.cli.sourced import fittest, no_class, paths_of
from pfl.core.checks import all_annotations
from pfl.core.places import Place
from pfl.core.ranges import Range
from pfl.core.words import Word
from pfl.imports import hints
from pfl.imports.trust import CONFIGURATION, Trust, TrustError, check_object, is_path

_KEYWORD = Parameter.KEYWORD_ONLY


class Imported:
    """The classes themselves, which are imported if they may be named.

    Args:
        trust: What may be named.
    """

    def __init__(self, trust: Trust = CONFIGURATION) -> None:
        self._trust = trust

    def base(self, path: str) -> Any:
        """Return one of this project's classes."""
        return catalogue.find(path)

    def find(self, name: str, declared: Any) -> Any:
        """Return the class or the function of a name or a dotted path.

        Raises:
            LookupError: It does not exist or may not be named, its module cannot be imported, or it
                does not fit its place.
        """
        made = self._named(name, declared) or self._imported(name, declared)
        line = getattr(made, "__mro__", None)
        for base in hints.classes(declared):
            if line is not None and getattr(base, "_is_protocol", False) and base not in line:
                raise LookupError(_unlike(name, base))
        try:
            check_object(made, name, declared, (), self._trust)
        except TrustError as error:
            raise LookupError(error.what) from error
        return made

    def _named(self, name: str, declared: Any) -> Any:
        """Return the class of a short name; ``None`` if there is none."""
        bases, found = [*hints.classes(declared)], list[type]()
        for path in paths_of(name, bases) if catalogue.is_closed() else ():
            # A file that cannot be imported is told where all classes are loaded.
            with suppress(ImportError):
                found.append(catalogue.find(path))
        if found or "." in name:
            return fittest(found, bases)
        return catalogue.classes().get(name)

    def _imported(self, name: str, declared: Any) -> Any:
        if not is_path(name):
            classes = catalogue.classes()
            raise LookupError(no_class(name, declared, classes, classes.get))
        try:
            self._trust.check_name(name)
            return catalogue.find(name)
        except TrustError as error:
            raise LookupError(error.what) from error
        except BrokenError as error:
            raise LookupError(str(error)) from error
        except ImportError as error:
            last, around = name.rpartition(".")[2], catalogue.neighbours(name)
            if last in catalogue.classes():
                raise LookupError(f"there is no class {name!r}; did you mean {last!r}?") from error
            raise LookupError(no_class(name, declared, around, around.get)) from error

    def path_of(self, made: Any) -> str:
        """Return the shortest path of a class."""
        home, name = str(made.__module__), made.__name__
        parts = home.split(".")
        shorter = (".".join(parts[:count]) for count in range(1, len(parts)))
        there = (one for one in shorter if getattr(sys.modules.get(one), name, None) is made)
        return f"{next(there, home)}.{name}"

    def tells_all(self, made: Any) -> bool:
        """Return ``True``: nothing tells more than the class itself."""
        return True

    def is_function(self, made: Any) -> bool:
        """Return ``True`` for a function, and no class."""
        return inspect.isroutine(made)

    def arguments(self, made: Any) -> Mapping[str, Parameter] | None:
        """Return the arguments of a class or a function; ``None`` of anything else."""
        if not inspect.isclass(made) and not inspect.isroutine(made):
            return None
        made = cast(Any, made)
        if inspect.isclass(made) and issubclass(made, dict):
            fields = get_type_hints(made).items()
            return {
                name: Parameter(name, _KEYWORD, default=..., annotation=t) for name, t in fields
            }
        usual, bare = hints.defaults(made), hints.untyped(made)
        written = all_annotations(made) if inspect.isclass(made) else {}
        return {
            name: Parameter(
                name,
                _KEYWORD,
                default=Parameter.empty if name in bare else usual.get(name, Parameter.empty),
                annotation=_with(None if name in bare else declared, written.get(name)),
            )
            for name, declared in hints.declared(made).items()
        }

    @property
    def closed(self) -> bool:
        """``False``, as the user's modules are imported."""
        return False

    def check_given(self, made: Any, given: Mapping[str, Any]) -> None:
        """Leave the rest to the call."""


def _with(declared: Any, written: Any) -> Any:
    """Return a type as a parameter has it, with the range or place that stands beside it."""
    if declared is None:
        return Parameter.empty
    beside = [one for kind in (Range, Place, Word) for one in hints.beside(written, kind)]
    return Annotated[(declared, *beside)] if beside else declared


def _unlike(path: str, protocol: type) -> str:
    """Return a message about a class that does not implement a protocol, such as Sampler."""
    public = [n for n in vars(protocol) if n == "__call__" or not n.startswith("_")]
    methods = {n: vars(protocol)[n] for n in public if inspect.isfunction(vars(protocol)[n])}
    like = ", ".join(f"{n}{inspect.signature(m)}" for n, m in methods.items()).replace("'", "")
    return (
        f"{path} does not implement {protocol.__name__}: derive it from "
        f"{protocol.__module__}.{protocol.__name__}, and declare the types of {like}"
    )
