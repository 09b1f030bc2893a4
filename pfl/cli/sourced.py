"""Classes as their source declares them, before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

from pfl.cli.explain import UserSettings
from pfl.cli.kinds import DATA, TASK, ArgumentsError
from pfl.core.checks import no_option
from pfl.disk.nearest import nearest
from pfl.imports import guards, hints, modules, plugins, signatures, stubs
from pfl.imports.plugins import PACKAGES
from pfl.imports.trust import Trust, TrustError, is_path, unfit_class

# Types whose classes in torch may be given by name: their package, and the folder of their files.
_OF_TORCH = {
    "Module": ("torch.nn", "nn/modules"),
    "Optimizer": ("torch.optim", "optim"),
}
# Packages that contain no methods and no data.
_LIBRARIES = ("torch.", "torchvision.", "torchmetrics.", "lightning.")


class Sources:
    """Classes as their source declares them.

    Args:
        settings: All settings.
        trust: What may be named.
    """

    def __init__(self, settings: UserSettings, trust: Trust) -> None:
        paths = [item.text for item in settings if item.text and is_path(item.text)]
        others = [path for path in paths if not path.startswith((*PACKAGES, *_LIBRARIES))]
        # Other packages and the user's modules may define further classes. Names of files have
        # dots, too.
        self.closed = all(map(modules.lacks, others)) and not plugins.installed()
        self._trust = trust

    def base(self, path: str) -> Any:
        """Return the stand-in for one of this project's classes."""
        return stubs.resolved(path)

    def find(self, name: str, declared: Any) -> Any:
        """Return the stand-in for a class; ``None`` if its source is not read.

        Raises:
            LookupError: There is no such class, it may not be named, or it does not fit.
        """
        made = self._at(name, declared) if "." in name else self._named(name, declared)
        if isinstance(made, type):
            _check_fits(made, name, declared)
        return made

    def _at(self, path: str, declared: Any) -> Any:
        try:
            self._trust.check_name(path)
        except TrustError as error:
            raise LookupError(error.what) from error
        if not is_path(path) or modules.lacks(path):
            raise LookupError(no_class(path, declared, modules.names_of(path), stubs.stub))
        return stubs.stub(path) or stubs.routine(path)

    def _named(self, name: str, declared: Any) -> Any:
        bases = [*hints.classes(declared)]
        if not bases:
            return None
        made = self._first(name, bases)
        if made is None and self.closed and all(map(stubs.is_stub, bases)):
            names = {*modules.named(), *_of_torch(bases)}
            raise LookupError(no_class(name, declared, names, lambda one: self._first(one, bases)))
        return made

    def _first(self, name: str, bases: Sequence[type]) -> type | None:
        """Return the class of a short name, one that fits its place before any other."""
        return fittest(filter(None, map(stubs.stub, paths_of(name, bases))), bases)

    def path_of(self, made: Any) -> str:
        """Return the shortest path of a stand-in's class."""
        return stubs.public_path(made)

    def tells_all(self, made: Any) -> bool:
        """Return ``True`` for a class of this project or of torch."""
        return stubs.is_stub(made) and modules.is_read(made.__module__)

    def is_function(self, made: Any) -> bool:
        """Return ``True`` for the source of a function."""
        return isinstance(made, stubs.Routine)

    def arguments(self, made: Any) -> Mapping[str, Parameter] | None:
        """Return the arguments of a stand-in."""
        return signatures.parameters(made)

    def check_given(self, made: Any, given: Mapping[str, Any]) -> None:
        """Check the arguments of a class as the head of its constructor would."""
        if not self.tells_all(made):
            return
        if (refusal := guards.refusal(made, given)) is not None:
            raise ArgumentsError(refusal.what, refusal.names)
        if isinstance(options := given.get("loss"), Mapping) and stubs.stub(DATA) in made.__mro__:
            _check_loss(made, given.get("task"), options)


def _check_loss(data: type, task: Any, options: Mapping[str, Any]) -> None:
    """Check the options of a loss, if the task is known before the data are read.

    Raises:
        ArgumentsError: The task has no such option, or refuses its value.
    """
    named = signatures.constant(data, "usual_task") if task is None else task
    paths = (
        path for name, home in modules.named().items() if name.lower() == named for path in home
    )
    base = stubs.stub(TASK)
    kind = next((one for one in map(stubs.stub, paths) if one and base in one.__mro__), None)
    if kind is None or (known := signatures.parameters(kind)) is None:
        return
    for name in options:
        if name not in known:
            raise ArgumentsError(no_option(kind.__name__, name, known), [f"loss.{name}"])
    if (refusal := guards.refusal(kind, options)) is not None:
        raise ArgumentsError(refusal.what, [f"loss.{name}" for name in refusal.names])


def paths_of(name: str, bases: Sequence[type]) -> list[str]:
    """Return the paths of the classes of this project and of torch that a short name may mean."""
    home = _of_torch(bases).get(name)
    return [*modules.named().get(name, ()), *([f"{home}.{name}"] if home else [])]


def fittest(found: Iterable[type], bases: Sequence[type]) -> type | None:
    """Return the first class, one that fits its place before any other."""
    ranked = sorted(found, key=lambda one: not any(base in one.__mro__ for base in bases))
    return next(iter(ranked), None)


def _of_torch(bases: Sequence[type]) -> dict[str, str]:
    """Return the packages of torch's classes of some types by name."""
    places = [_OF_TORCH[base.__name__] for base in bases if base.__name__ in _OF_TORCH]
    return {name: home for home, folder in places for name in modules.in_folder(folder)}


def no_class(name: str, declared: Any, names: Iterable[str], find: Callable[[str], Any]) -> str:
    """Return the message about a class that does not exist, with the nearest one of its place."""
    words = [str(word) for word in hints.all_words(declared)]
    what, plain = f"there is no class {name!r}", hints.plain_part(declared)
    if plain is not None and not words and not hints.takes(plain, (str,)):
        what = f"expected {hints.said(declared)}, got {name}"
    if words:
        what = f"{name!r} is not one of {', '.join(words)}, nor a class"
    fitting = _alike(name, [*names], [*hints.classes(declared)], find)
    return what + (nearest(name, words) or nearest(name, fitting))


def _alike(
    name: str, known: Sequence[str], bases: Sequence[type], find: Callable[[str], Any]
) -> list[str]:
    """Return the names of a spelling near one that does not exist, of classes of some types."""
    close = [one for one in known if one.lower() == name.lower()]
    # A module that all have in common would make any two names alike.
    lasts = {one.rpartition(".")[2]: one for one in known}
    close += [lasts[one] for one in get_close_matches(name.rpartition(".")[2], lasts, n=8)]
    lines = [(one, getattr(find(one), "__mro__", ())) for one in dict.fromkeys(close)]
    return [
        one
        for one, line in lines
        if any(base in line for base in bases or line) or ("." in one and not modules.is_read(one))
    ]


def _check_fits(made: type, name: str, declared: Any) -> None:
    """Check that a class is of the type declared for its place, as far as its source tells.

    Raises:
        LookupError: It is not.
    """
    bases = [*hints.classes(declared)]
    if any(map(stubs.is_protocol, bases)) and not modules.is_read(made.__module__):
        return  # once it is imported, what it lacks can be said
    if bases and (what := unfit_class(made, name, bases)):
        # Another package's class may derive from ours by a base that is not read.
        ours = all(base.__module__.startswith(PACKAGES) for base in bases)
        ours &= not stubs.is_foreign(made)
        read = (not stubs.is_opaque(made) or ours) and not any(map(stubs.is_opaque, bases))
        derived = any(base in made.__mro__ for base in bases)
        # No class of a library is derived from one of ours.
        if derived or read or (ours and name.startswith(_LIBRARIES)):
            raise LookupError(what)
