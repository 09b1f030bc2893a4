"""One configuration, to which settings are added in the order in which they apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pfl.cli.explain import Keys, UserSetting
from pfl.engines import named
from pfl.imports.guards import is_plain


class Merged:
    """A configuration in plain values.

    Args:
        content: What it starts with; here nothing.

    Attributes:
        content: Its values by key; an object has ``class_path`` and ``init_args``.
    """

    def __init__(self, content: Mapping[str, Any] | None = None) -> None:
        self.content: dict[str, Any] = _copied(content or {})

    def arguments(self, keys: Keys) -> Mapping[str, Any]:
        """Return the arguments of the object at keys, the last one of a list."""
        value: Any = self.content
        for key in keys:
            value = _get(*_slot(value, key))
        value = _within(value[-1] if isinstance(value, list) and value else value)
        return value if isinstance(value, dict) else {}

    def put(self, item: UserSetting, value: Any, whole: bool) -> None:
        """Give an argument a value.

        Args:
            item: The setting.
            value: The value.
            whole: Whether the value is complete; otherwise objects in it follow by their own keys.
        """
        if item.appends and isinstance(value, Mapping) and "class_path" in value:
            return  # its class follows
        # An enumeration's member stays as it was written.
        is_word = not isinstance(value, Mapping | list | tuple) and not is_plain(value)
        value = _copied(item.value if is_word else value)
        if not whole and isinstance(value, list):
            value = [None] * len(value)
        elif not whole and isinstance(value, dict):
            before = self._before(item)
            value = before if isinstance(before, dict) else {}
        self._set(item, value)

    def name(
        self, item: UserSetting, word: str, path: str, keeps: Callable[[str, Any], bool]
    ) -> None:
        """Give an argument an object of a class.

        Args:
            item: The setting.
            word: The word that stands for the class while it has no arguments; empty for none.
            path: Path of the class.
            keeps: Returns whether the class takes an argument, given by name and value, that the
                class before it had.
        """
        before = self._before(item)
        old = before.get("init_args", {}) if isinstance(before, dict) else {}
        kept = {name: value for name, value in old.items() if keeps(name, value)}
        self._set(item, word if word and not kept else {"class_path": path, "init_args": kept})

    def complete(self, keys: Keys, usual: Mapping[str, Any]) -> None:
        """Give the object at keys the plain ones of its default values, where it has no others."""
        given: Any = self.arguments(keys)
        plain = {name: _copied(value) for name, value in usual.items() if is_plain(value)}
        given.update({**plain, **given})

    def _before(self, item: UserSetting) -> Any:
        if item.appends:
            return None
        return _get(*_slot(self._holder(item.keys[:-1]), item.keys[-1]))

    def _set(self, item: UserSetting, value: Any) -> None:
        home, place = _slot(self._holder(item.keys[:-1], item.extra), item.keys[-1])
        if item.appends:
            before = home.get(place)
            value = [*(before if isinstance(before, list) else filter(None, [before])), value]
        home[place] = value

    def _holder(self, keys: Keys, extra: bool = False) -> Any:
        """Return what holds the arguments at keys, which is made if there is nothing."""
        value: Any = self.content
        for key in keys:
            home, place = _slot(value, key)
            value = _get(home, place)
            if isinstance(value, str):
                value = {"class_path": named.path_of(value)}
            home[place] = value = {} if value is None else value
        return _within(value, "dict_kwargs" if extra else "init_args")


def _slot(value: Any, key: str) -> tuple[Any, Any]:
    """Return the mapping or list in a value in which a key is, and its place there."""
    value = _within(value)
    if isinstance(value, list) and not key.isdigit():
        value = _within(value[-1])  # flags add to the last object of a list
    if isinstance(value, list):
        return value, int(key)
    # Keys of a mapping may be numbers.
    return value, next((one for one in value or () if str(one) == key), key)


def _get(home: Any, place: Any) -> Any:
    if isinstance(home, list):
        return home[place] if place < len(home) else None
    return home.get(place) if isinstance(home, dict) else None


def _within(value: Any, name: str = "init_args") -> Any:
    """Return the arguments of an object; another value as it is."""
    if isinstance(value, dict) and "class_path" in value:
        return value.setdefault(name, {})
    return value


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(one) for key, one in value.items()}
    return [*map(_copied, value)] if isinstance(value, list | tuple) else value
