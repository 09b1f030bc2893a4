"""The sources of classes: the project's own packages, and plug-ins of other packages.

A package registers plug-ins by entry points in groups such as ``pfl.nets``. A plug-in is judged by
what it is: one that cannot be read, loaded or used is left out, with a note on stderr that names
its package and the cure, and everything else works. Of several things of one name, none of another
package is used; :func:`settle` names them all.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.metadata import Distribution, EntryPoint
from importlib.util import find_spec
from inspect import isabstract, isclass, isfunction
from operator import eq
from typing import Any, TypeVar

# The packages of the project's own classes, and the distribution that contains them.
PACKAGES = ("lightning_modules.", "datamodules.", "pfl.")
OWN = "pfl-lightning"
# The groups of entry points under which packages register classes.
GROUPS = ("pfl.methods", "pfl.data", "pfl.nets", "pfl.metrics")

_NAME = re.compile(r"[A-Za-z_][\w-]*")
_VALUE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:\s*:\s*(\w+(?:\.\w+)*))?(?:\s*\[.*\])?\s*")
# Longest message of a foreign error in a note.
_LONGEST = 300
_noted: set[str] = set()
_failed: dict[Plugin, str] = {}
ThingT = TypeVar("ThingT")


class PluginError(ValueError):
    """A plug-in cannot be used; the message names its package and the cure."""


@dataclass(frozen=True)
class Plugin:
    """What a package registers under a name.

    Attributes:
        group: Group of entry points.
        name: Name of the entry point.
        module: Import path of the module.
        attr: Name of the object in the module; empty for the module itself.
        package: Name of the distribution; empty if it is unknown.
        version: Version of the distribution.
    """

    group: str
    name: str
    module: str
    attr: str
    package: str = ""
    version: str = ""

    @property
    def path(self) -> str:
        """Import path of the object."""
        return ".".join(filter(None, (self.module, self.attr)))

    @property
    def is_own(self) -> bool:
        """Whether the project itself registers it."""
        return self.package in (OWN, "") and f"{self.module}.".startswith(PACKAGES)

    def __str__(self) -> str:
        return f"the plug-in {self.path} of {_described(self.package, self.version)}"

    def load(self) -> Any:
        """Return the object.

        Raises:
            PluginError: It cannot be imported.
        """
        if self in _failed:
            raise PluginError(_failed[self])
        try:
            value = f"{self.module}:{self.attr}" if self.attr else self.module
            return EntryPoint(self.name, value, self.group).load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # such as SystemExit
            _failed[self] = f"{self} cannot be imported: {_line(error)}; {self._cure}"
            raise PluginError(_failed[self]) from error

    def load_class(self, *bases: type) -> Any:
        """Return the object, which must be a concrete subclass of one of some classes.

        A protocol is kept by any class that has its methods.

        Raises:
            PluginError: It cannot be imported, or is something else.
        """
        made = self.load()
        names = " or ".join(base.__name__ for base in bases)
        with self.checked():
            fits = isclass(made) and any(extends(made, base) for base in bases)
            self.check(fits and not isabstract(made), f"a concrete subclass of {names}")
        return made

    def check(self, fits: bool, what: str) -> None:
        """Refuse the plug-in unless it fits.

        Raises:
            PluginError: It does not; the message says what it should be.
        """
        if not fits:
            raise PluginError(f"{self} is not {what}, as {self.group} needs; {self._cure}")

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Raise any error in this scope, which uses the plug-in, as one that names its package.

        An error of the project's own code is raised as it is.

        Raises:
            PluginError: Another package's code raised an error.
        """
        try:
            yield
        except (KeyboardInterrupt, PluginError):
            raise
        except BaseException as error:
            if self.is_own:
                raise
            raise PluginError(f"{self} cannot be used: {_line(error)}; {self._cure}") from error

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Turn any error in this scope, which uses the plug-in, into a note."""
        try:
            with self.checked():
                yield
        except PluginError as error:
            note(str(error))

    @property
    def _cure(self) -> str:
        return _cure([self.package])


def extends(kind: type, base: type) -> bool:
    """Return ``True`` for a subclass of a class, or a class that has the methods of a protocol."""
    if not getattr(base, "_is_protocol", False):
        return issubclass(kind, base)
    methods = (name for name, one in vars(base).items() if isfunction(one) and name[0] != "_")
    return all(callable(getattr(kind, name, None)) for name in methods)


def note(text: str) -> None:
    """Print what was left out to stderr, once in a process."""
    if text not in _noted:
        _noted.add(text)
        print(f"pfl: note: left out: {_plain(text)}", file=sys.stderr)


@cache
def entry_points(group: str) -> Sequence[EntryPoint]:
    """Return the entry points of a group; the first distribution of a name counts, as in Python."""
    return [point for point in _points() if point.group == group]


def installed(*groups: str) -> list[Plugin]:
    """Return the installed plug-ins of some groups; without groups, of all of :data:`GROUPS`.

    Nothing is imported. Those without a proper name or path are left out, with a note. A part of
    this project that was removed from the folder of a clone is still registered; it is left out.
    """
    points = (point for group in groups or GROUPS for point in entry_points(group))
    return [found for point in points if (found := _plugin(point)) and _is_there(found)]


def loaded(group: str, *bases: type) -> Iterator[tuple[Plugin, Any]]:
    """Yield the plug-ins of a group with the objects that they name.

    Those that cannot be imported are left out, with a note.

    Args:
        group: The group.
        bases: The classes of one of which each object must be a subclass; none for any object.
    """
    for plugin in installed(group):
        try:
            made = plugin.load_class(*bases) if bases else plugin.load()
        except PluginError as error:
            note(str(error))
        else:
            yield plugin, made


def settle(
    kind: str,
    found: Iterable[tuple[str, Plugin, ThingT]],
    own: Mapping[str, str] | None = None,
    hide: Callable[[str, str], bool] = eq,
) -> dict[str, ThingT]:
    """Return things by their names, without those of which the name does not say which is meant.

    A thing of the project stays; one of another package that has its name is left out. So are all
    things of one name from several packages. A note names each with its path.

    Args:
        kind: What the things are, for the note.
        found: Names of things, the plug-ins that bring them, and the things.
        own: Paths of the project's things that are no plug-ins, by name.
        hide: Returns whether two names cannot be told apart.
    """
    things, own = list(found), dict(own or {})
    ours = {name: plugin.path for name, plugin, _ in things if plugin.is_own} | own
    others = [(name, plugin) for name, plugin, _ in things if not plugin.is_own]
    kept: dict[str, ThingT] = {}
    for name, plugin, thing in things:
        if plugin.is_own:
            clear = name not in own
        else:
            mine = {one: path for one, path in ours.items() if hide(name, one)}
            alike = [(one, other) for one, other in others if hide(name, one)]
            clear = not mine and _is_one(kind, alike)
            if {*mine.values()} - {plugin.path}:
                known = " and ".join(f"{one}: {path} of this project" for one, path in mine.items())
                what = f"the {kind} {name}: {plugin}, which cannot be told from {known}"
                note(f"{what}; {plugin._cure}")
        if clear:
            kept.setdefault(name, thing)
    return kept


def _is_one(kind: str, alike: Sequence[tuple[str, Plugin]]) -> bool:
    """Return ``True`` if plug-ins under names that cannot be told apart bring one object.

    Otherwise a note names them all.
    """
    paths = {plugin.path: f"{name}: {plugin}" for name, plugin in alike}
    if len(paths) > 1:
        all_of_them, cure = " and ".join(sorted(paths.values())), _cure(p.package for _, p in alike)
        note(f"several of the {kind} that cannot be told apart, {all_of_them}; {cure}")
    return len(paths) == 1


def versions(plugins: Iterable[Plugin]) -> dict[str, str]:
    """Return the versions of plug-ins of other packages, by distribution."""
    foreign = {one.package: one.version for one in plugins if one.package and not one.is_own}
    return dict(sorted(foreign.items()))


@cache
def _points() -> list[EntryPoint]:
    found: dict[str, list[EntryPoint]] = {}
    for distribution in metadata.distributions():
        package = ""
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if "[pfl." not in text.replace(" ", ""):
                continue
            package = _normalised(distribution)
            first = metadata.distribution(package) if package else distribution
            if package not in found and first.read_text("entry_points.txt") == text:
                found[package] = list(distribution.entry_points)
        except Exception as error:  # files of other packages have any content
            named = f"the plug-ins of {_described(package, '')}: entry_points.txt cannot be read"
            note(f"{named}: {_line(error)}; {_cure([package])}")
    return [point for points in found.values() for point in points]


def _plugin(point: EntryPoint) -> Plugin | None:
    """Return an entry point's plug-in, or ``None``, with a note, if its text is not one."""
    distribution = getattr(point, "dist", None)
    package = _normalised(distribution) if distribution else ""
    version = str(distribution.metadata["Version"] or "") if distribution else ""
    value = _VALUE.fullmatch(point.value)
    if value is None or not _NAME.fullmatch(point.name):
        note(
            f"the plug-in {point.name!r} = {point.value!r} in {point.group} of "
            f"{_described(package, version)}: expected a name of letters, digits, _ and -, and "
            f"module:object; {_cure([package])}"
        )
        return None
    return Plugin(point.group, point.name, value[1], value[2] or "", package, version)


def _normalised(distribution: Distribution) -> str:
    """Return a distribution's name as installers compare it."""
    name = distribution.metadata["Name"] or ""
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_there(plugin: Plugin) -> bool:
    """Return ``False`` for a plug-in of a part of this project that was removed."""
    home = ".".join(plugin.module.split(".")[:3])
    if not home.startswith(PACKAGES):
        return True
    try:
        spec = find_spec(home)
    except ModuleNotFoundError:  # the package above it was removed
        return False
    # Without an origin it is a folder with leftover compiled files.
    return spec is not None and spec.origin is not None


def _described(package: str, version: str) -> str:
    return f"{package} {version}".strip() or "an unnamed package"


def _cure(packages: Iterable[str]) -> str:
    named = sorted({one for one in packages if one})
    if not named:
        return "update its package, or uninstall it"
    if len(named) == 1:
        return f"update {named[0]}, or remove it: pip uninstall {named[0]}"
    return f"remove one: pip uninstall {' or '.join(named)}"


def _line(error: BaseException) -> str:
    """Return an error in one line, even if its own text cannot be made."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text[:_LONGEST]}" if text else type(error).__name__


def _plain(text: str) -> str:
    """Return a text without characters that a terminal would interpret."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
