"""One walk over the settings of a command line, which checks them in place and merges them.

Settings are visited in the order in which they apply. Each key is an argument of the class that was
named last above it, so its type is known, and an error names the file and line, or the flag. What
comes out is one configuration, in which classes have their paths. Where classes come from is a
:class:`~pfl.cli.kinds.Lookup`: their source, before torch is imported; if no source tells all, a
second walk is made with the classes themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl.callbacks import foreign
from pfl.cli import values
from pfl.cli.commands import LOOP_DEFAULTS, SECTIONS, SEED, Command, Needs
from pfl.cli.explain import Keys, UsageError, UserSetting, message_at, settings_of
from pfl.cli.kinds import (
    DIVIDED,
    LOOP,
    SAMPLER,
    STOPPING,
    SWITCHES,
    ArgumentsError,
    Kind,
    Lookup,
    kind_of,
    top_of,
)
from pfl.cli.merged import Merged
from pfl.cli.values import Name, Plain, Within
from pfl.core.checks import needs_public, needs_validation
from pfl.core.places import Place
from pfl.disk.nearest import hint
from pfl.engines import named
from pfl.federation import folders
from pfl.imports import hints, modules, signatures
from pfl.imports.trust import Trust, TrustError, is_default, is_path

if TYPE_CHECKING:
    from pfl.cli.untrusted import Judge


class Walk:
    """The walk.

    Args:
        settings: All settings.
        command: The command that reads them.
        lookup: Where classes come from.
        trust: What may be named and downloaded.
        judge: What somebody else's file may say; ``None`` if the user has written all files.

    Attributes:
        is_open: Whether only an import tells what some keys are.
        merged: The configuration.
    """

    def __init__(
        self,
        settings: Sequence[UserSetting],
        command: Command,
        lookup: Lookup,
        trust: Trust,
        judge: Judge | None = None,
    ) -> None:
        # A text that describes settings adds them while it is visited.
        self._given = [*settings]
        self._lookup = lookup
        self._trust = trust
        self._judge = judge
        self._needs = command.configuration or Needs()
        arguments = command.typed_arguments.items()
        self._switches = {*SWITCHES, *(n.lstrip("-") for n, how in arguments if "action" in how)}
        self.is_open = False
        self.merged = Merged()
        # What takes the arguments below a key; ``None`` if that cannot be told.
        self._kinds: dict[Keys, Kind | None] = {(): top_of(command, lookup)}
        # Where a function or a class is itself the value.
        self._alone = set[Keys]()
        self._enter(("loop",), lookup.base(LOOP))
        self._enter(("loop", "sampler"), lookup.base(SAMPLER))

    def check(self) -> None:
        """Check all settings, and merge them.

        Raises:
            UsageError: A key or a class does not exist, a value does not have its type, or one is
                missing.
        """
        for item in [*self._given]:
            self._visit(item)
        for keys, kind in self._kinds.items():
            if kind is not None and keys:
                self._check_needed(keys, kind)
                self._check_downloads(keys, kind)

    def check_objects(self, reads: bool) -> None:
        """Check what classes demand of their arguments together, as far as that needs no call.

        Args:
            reads: Whether data are read, whose files and folders must then exist.

        Raises:
            UsageError: A class would refuse its arguments.
        """
        for keys, kind in self._kinds.items():
            if kind is None or not keys:
                continue
            given = self.merged.arguments(keys)
            values_of = {**kind.usual, **given}
            try:
                self._lookup.check_given(kind.made, given)
                for name, place in kind.places.items() if reads else ():
                    path = values_of.get(name)
                    if isinstance(path, str) and not values_of.get("download"):
                        self._check_place((*keys, name), place, path, kind)
            except ArgumentsError as error:
                about = [name.split(".") for name in error.names]
                about = [[], *(names for names in about if names[0] in given)][:2]
                raise self._at((*keys, *about[-1]), str(error)) from error
            if kind.made is self._lookup.base(STOPPING) and reads:
                self._check_monitored(keys, str(values_of.get("monitor")))

    def completed(self) -> Mapping[str, Any]:
        """Return the configuration with the plain defaults that sources tell."""
        content = self.merged.content
        loop = {**LOOP_DEFAULTS, **content.get("loop", {})}
        whole = Merged({"seed": SEED, **content, "loop": loop})
        for keys, kind in self._kinds.items():
            if kind is not None and keys:
                # What is filled in later is null until then.
                usual = {n: one for n, one in kind.usual.items() if n not in kind.filled}
                whole.complete(keys, usual)
        return {key: one for key, one in whole.content.items() if key in SECTIONS}

    def root(self) -> Path | None:
        """Return the folder of the runs of this name; ``None`` if it is not known."""
        kinds = [self._kinds.get((section,)) for section in ("model", "data")]
        loop = {**LOOP_DEFAULTS, **self.merged.arguments(("loop",))}
        top, named = loop["default_root_dir"], loop.get("name")
        if not named and None not in kinds:
            named = folders.usual_name(*(kind.name for kind in kinds if kind is not None))
        return Path(top, named) if isinstance(top, str) and isinstance(named, str) else None

    def _check_place(self, keys: Keys, place: Place, path: str, kind: Kind) -> None:
        try:
            place.check(path, signatures.constant(kind.made, "layout"))
        except FileNotFoundError as error:
            raise self._at(keys, str(error)) from error

    def _visit(self, item: UserSetting) -> None:
        parent, name = item.keys[:-1], item.keys[-1]
        _check_callback(item)
        if self._judge is not None:
            self._judge.check_key(item)
        if item.keys[0] not in self._types(()):
            section = replace(item, keys=item.keys[:1])
            raise self._unknown(section, f"there is no key {item.keys[0]!r}", self._types(()))
        if item.keys == ("loop", "seed"):
            raise item.error("seed is a top-level key, beside loop")
        if name not in ("class_path", "help") or not parent:
            self._check_argument(item, self._kinds.get(parent) or self._implied(parent))
        elif item.text is not None:
            # A word, such as the name of an engine, is no class_path.
            self._name(replace(item, keys=parent), hints.objects(self._hint(parent)))

    def _check_argument(self, item: UserSetting, kind: Kind | None) -> None:
        """Check that a class has the argument that a setting gives, and its value."""
        self._check_taken(item, kind)
        if item.text is None and item.node is None:
            return
        declared = self._declared(item)
        meant = values.meaning(item, declared, item.keys in self._kinds)
        if isinstance(meant, Name):
            if self._is_named(item, declared, meant.or_text):
                return
            meant = Plain(item.text)
        self.merged.put(item, meant.value, hints.is_plain(declared))
        self._check_value(item, meant.value, kind)
        # The text of a flag; what is in a file has settings of its own.
        for inner in item.inner(meant.node) if isinstance(meant, Within) else ():
            self._given.append(inner)
            self._visit(inner)

    def _check_taken(self, item: UserSetting, kind: Kind | None) -> None:
        """Check that a class has the argument that a setting gives, and that it gives a value."""
        parent, name = item.keys[:-1], item.keys[-1]
        if kind is not None and name not in kind.types and not item.extra:
            raise self._unknown(item, f"{kind.name} has no argument {name!r}", kind.types)
        if len(parent) == 1 and parent not in self._kinds and not name.isdigit():
            raise item.error(f"{parent[0]} has no class{hint(name, ('class_path', 'init_args'))}")
        is_class = parent not in self._kinds and hints.takes_class(self._hint(parent))
        if is_class or parent in self._alone:
            what = "class" if is_class else "function"
            raise item.error(f"{parent[-1]} is a {what} itself, without arguments: name it alone")
        if item.text is None and item.node is None and item.keys[0] not in self._switches:
            raise item.error("expected a value")

    def _declared(self, item: UserSetting) -> Any:
        """Return the type that the value of a setting must have."""
        declared = self._hint(item.keys)
        if item.appends:
            declared = hints.values_of(declared, hints.LISTS)
        if self._judge is not None and item.text is not None and not hints.is_plain(declared):
            self._judge.check_text(item)
        if not hints.is_known(declared) and item.keys[0] in ("loop", "model", "data"):
            self.is_open = True
        return declared

    def _is_named(self, item: UserSetting, declared: Any, or_text: bool) -> bool:
        """Enter the class that a setting names; return ``False`` if the text names none."""
        try:
            self._name(item, declared)
        except UsageError as error:
            untrusted = self._trust.own is not None
            if not or_text or (untrusted and isinstance(error.__cause__, TrustError)):
                raise
            return False
        return True

    def _check_value(self, item: UserSetting, value: Any, kind: Kind | None) -> None:
        """Check a value against what stands beside its type, and whether its author may give it."""
        parent, name = item.keys[:-1], item.keys[-1]
        try:
            if kind is not None and name in kind.ranges:
                kind.ranges[name].check(name, value)
        except ValueError as error:
            raise item.error(str(error)) from error
        # Defaults of what is not known yet are not known.
        known = kind is not None or parent not in self._kinds
        if self._judge is not None and known and item.text is not None:
            self._judge.check_value(item, value, kind)
        # Not of somebody else's file, whose words are looked up once they are trusted.
        if self._judge is None and kind is not None and name in kind.words:
            try:
                kind.words[name].check(value, self._lookup.closed)
            except ValueError as error:
                raise item.error(str(error)) from error

    def _types(self, keys: Keys) -> Mapping[str, Any]:
        kind = self._kinds[keys]
        return {} if kind is None else kind.types

    def _hint(self, keys: Keys) -> Any:
        """Return the declared type of the value at keys; ``None`` if it is not known."""
        parent, name = keys[:-1], keys[-1]
        # A list may take the place of one object.
        if parent in self._kinds and not name.isdigit():
            return self._types(parent).get(name)
        containers = hints.LISTS if name.isdigit() else hints.MAPPINGS
        return hints.values_of(self._hint(parent), containers)

    def _implied(self, keys: Keys) -> Kind | None:
        """Enter a dataclass, which is given without its name."""
        if keys not in self._kinds and keys:
            classes = [*hints.classes(self._hint(keys))]
            if len(classes) == 1 and hints.is_record(classes[0]):
                self._enter(keys, classes[0])
        return self._kinds.get(keys)

    def _name(self, item: UserSetting, declared: Any) -> None:
        """Enter the class that a setting names for its key."""
        name = str(item.text)
        if name == "null" or self._is_usual(item):
            self.merged.put(item, None if name == "null" else name, True)
            return
        word = name in hints.all_words(declared)
        try:
            made = self._lookup.find(named.path_of(name) if word else name, declared)
        except LookupError as error:
            raise item.error(str(error)) from error.__cause__ or error
        self.is_open |= not self._lookup.tells_all(made)
        path = name if made is None or "." in name else self._lookup.path_of(made)
        if self._is_value(made, declared):
            self._kinds.pop(item.keys, None)
            self._alone.add(item.keys)
            self.merged.put(item, path, True)
            return
        self._alone.discard(item.keys)
        self._enter(item.keys, made, declared)
        types = self._types(item.keys) if self._kinds[item.keys] is not None else None

        def keeps(argument: str, value: Any) -> bool:
            known = types is None or argument in types
            return known and (types is None or values.fits(value, types[argument]))

        self.merged.name(item, name if word else "", path, keeps)

    def _is_value(self, made: Any, declared: Any) -> bool:
        """Return ``True`` if a function or a class is itself the value, and nothing is made."""
        function = hints.takes(declared, (Callable,)) and self._lookup.is_function(made)
        return function or hints.takes_class(declared)

    def _is_usual(self, item: UserSetting) -> bool:
        """Return ``True`` for the path of an argument's default, which need not be judged."""
        kind = self._kinds.get(item.keys[:-1])
        usual = None if kind is None else kind.usual.get(item.keys[-1])
        return is_path(str(item.text)) and is_default(item.text, usual)

    def _enter(self, keys: Keys, made: Any, declared: Any = None) -> None:
        kind = kind_of(made, declared, self._lookup, self._needs)
        self.is_open |= kind is None
        # Arguments that the class before it had, and this one has not, are dropped.
        for inner in [one for one in self._kinds if one[: len(keys)] == keys and one != keys]:
            if kind is not None and inner[len(keys)] not in kind.types:
                del self._kinds[inner]
        self._kinds[keys] = kind

    def _check_needed(self, keys: Keys, kind: Kind) -> None:
        """Check that the arguments of a class are given which it needs."""
        given = {item.keys[len(keys)] for item in self._given if _is_below(item, keys)}
        if "help" in given:
            return
        needed = [name for name in kind.needed if name not in kind.filled]
        if untyped := [name for name in needed if kind.types[name] is None]:
            what = f"declare the type of the argument {untyped[0]!r} of {kind.name}"
            raise self._at(keys, what)
        missing = [name for name in needed if name not in given]
        if missing:
            what = f"the following arguments of {kind.name} are required: {', '.join(missing)}"
            raise self._at(keys, what)
        if "public_samples" in kind.filled and "public_samples" not in given:
            self._check_public(keys, kind.name)

    def _check_downloads(self, keys: Keys, kind: Kind) -> None:
        """Check that a class downloads no weights."""
        try:
            self._trust.check_weights(kind.made, {**kind.usual, **self.merged.arguments(keys)})
        except TrustError as error:
            raise self._at((*keys, *error.keys), error.what) from error

    def _check_public(self, keys: Keys, method: str) -> None:
        """Check that there are public data, if the data are of a class that can have some."""
        data = self._kinds.get(("data",))
        given = any(item.keys[:2] == ("data", "public") for item in self._given)
        if data is not None and "public" in data.types and not given:
            raise self._at(keys, needs_public(method))

    def _check_monitored(self, keys: Keys, monitor: str) -> None:
        """Check that there are validation data if a score on them is monitored."""
        data, given = self._kinds.get(("data",)), self.merged.arguments(("data",))
        if data is None or not monitor.startswith("val/"):
            return
        divided = self._lookup.base(DIVIDED) in data.made.__mro__
        # A file with a partition may have a part for validation.
        drawn = isinstance(given.get("partition"), Mapping) and "val_fraction" in data.types
        if divided and drawn and not {**data.usual, **given}["val_fraction"]:
            raise self._at(keys, needs_validation(monitor))

    def _at(self, keys: Keys, what: str) -> UsageError:
        there = settings_of(self._given, keys) or settings_of(self._given, keys[:-1])
        return UsageError(message_at(there[-1].place if there else "", keys, what))

    def _unknown(self, item: UserSetting, what: str, choices: Iterable[str]) -> UsageError:
        """Return an error about a key, with its right place, the nearest key or all keys."""
        name = item.keys[-1]
        kinds = [(keys, kind) for keys, kind in self._kinds.items() if keys and kind]
        homes = {(*keys, name) for keys, kind in kinds if name in kind.types}
        # For a class of unknown arguments: the arguments set before.
        homes |= {one.keys for one in self._given if one.keys[-1] == name and one is not item}
        homes -= {item.keys}
        near = " or ".join(sorted(".".join(keys) for keys in homes))
        return item.error(
            what + (f"; did you mean {near}?" if near else hint(name, sorted(choices)))
        )


def _check_callback(item: UserSetting) -> None:
    """Reject a callback of Lightning, with or without its module."""
    name = str(item.text)
    bare = name in foreign.REPLACEMENTS and name not in modules.named()
    lightnings = bare or name.startswith(("lightning.", "pytorch_lightning."))
    if item.keys[:2] == ("loop", "callbacks") and lightnings:
        raise item.error(foreign.refusal(name.rpartition(".")[2]))


def _is_below(item: UserSetting, keys: Keys) -> bool:
    """Return ``True`` if a setting is of an argument of the class at keys, or within one."""
    return item.keys[: len(keys)] == keys and len(item.keys) > len(keys) and item.text != "null"
