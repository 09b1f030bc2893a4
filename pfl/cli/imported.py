"""Classes and functions as they are once they are imported."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from inspect import Parameter
from typing import Annotated, Any, cast, get_type_hints

from pfl.cli import catalogue
from pfl.cli.catalogue import BrokenError
from pfl.cli.walk import no_class
from pfl.core.checks import ranges
from pfl.core.ranges import Range
from pfl.imports import hints
from pfl.imports.trust import CONFIGURATION, Trust, TrustError, is_path

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
            LookupError: It does not exist or may not be named, or its module cannot be imported, or
                it does not implement the protocol of its place.
        """
        classes = catalogue.classes()
        made = classes[name] if name in classes else self._imported(name, declared)
        line = getattr(made, "__mro__", None)
        for base in hints.classes(declared):
            if line is not None and getattr(base, "_is_protocol", False) and base not in line:
                raise LookupError(_unlike(name, base))
        return made

    def _imported(self, name: str, declared: Any) -> Any:
        classes = catalogue.classes()
        if not is_path(name):
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
            if last in classes:
                raise LookupError(f"there is no class {name!r}; did you mean {last!r}?") from error
            raise LookupError(no_class(name, declared, around, around.get)) from error

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
        limits = ranges(made) if inspect.isclass(made) else {}
        return {
            name: Parameter(
                name,
                _KEYWORD,
                default=Parameter.empty if name in bare else usual.get(name, Parameter.empty),
                annotation=_with(None if name in bare else declared, limits.get(name)),
            )
            for name, declared in hints.declared(made).items()
        }


def _with(declared: Any, limits: Range | None) -> Any:
    """Return a type as a parameter has it, with its range."""
    if declared is None:
        return Parameter.empty
    return declared if limits is None else Annotated[declared, limits]


def _unlike(path: str, protocol: type) -> str:
    """Return a message about a class that does not implement a protocol, such as Sampler."""
    public = [n for n in vars(protocol) if n == "__call__" or not n.startswith("_")]
    methods = {n: vars(protocol)[n] for n in public if inspect.isfunction(vars(protocol)[n])}
    like = ", ".join(f"{n}{inspect.signature(m)}" for n, m in methods.items()).replace("'", "")
    return (
        f"{path} does not implement {protocol.__name__}: derive it from "
        f"{protocol.__module__}.{protocol.__name__}, and declare the types of {like}"
    )
