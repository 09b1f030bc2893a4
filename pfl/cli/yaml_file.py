"""The reader of YAML files of sweeps and tables; its errors name the line.

They are not read as dataclasses by jsonargparse: beside another type (a row is a text, a list or a
mapping), a misspelt key of a dataclass is dropped without a word, and errors name no inner key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from yaml import YAMLError

from pfl.cli.explain import Given, UsageError, hint, sources, spoken


class YamlFile:
    """A YAML file whose errors name their line.

    Args:
        path: The file.
        kind: What errors call it, such as ``"sweep file"``.

    Raises:
        UsageError: There is no such file, or it is not YAML.
    """

    def __init__(self, path: Path, kind: str) -> None:
        if not path.is_file():
            near = get_close_matches(path.name, [f.name for f in path.parent.glob("*.yaml")], n=1)
            hint = f"; did you mean {str(path.with_name(near[0]))!r}?" if near else ""
            raise UsageError(f"there is no {kind} {path}{hint}")
        self.path = path
        self.kind = kind
        self._given: Sequence[Given] = sources(["--config", str(path)])

    def content(self) -> Mapping[str, Any]:
        """Return the file's content; ``1e-3`` is a number, as in every configuration.

        Raises:
            UsageError: It holds tags or other things outside plain YAML.
        """
        # Imported here, as the verbs that read a file tell a missing one before.
        from jsonargparse import get_loader

        try:
            content: Mapping[str, Any] = get_loader("yaml")(self.path.read_text(encoding="utf-8"))
        except YAMLError as error:
            first = str(error).partition("\n")[0]
            raise UsageError(
                f"{self.path}: this is not YAML for a {self.kind} ({first})"
            ) from error
        return content

    def error(self, what: str, *keys: str) -> UsageError:
        """Return an error about a key of the file, or about the file as a whole."""
        if not keys:
            return UsageError(f"{self.path}: {what}")
        # Places are stored under the single parts of dotted keys, without init_args.
        parts = spoken(".".join(keys).split("."))
        places = [given.place for given in self._given if given.keys in (keys, parts)]
        return UsageError(f"{places[-1] if places else self.path}: {'.'.join(keys)}: {what}")

    def check_keys(self, given: Mapping[str, Any], known: Sequence[str], *keys: str) -> None:
        """Refuse unknown keys.

        Raises:
            UsageError: A key is unknown.
        """
        for key in given:
            if key not in known:
                what = f"this key is not supported{hint(str(key), known)}"
                raise self.error(what, *keys, str(key))

    def mapping(self, content: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
        """Return a part of the file that must be a mapping.

        Raises:
            UsageError: The part is missing, empty or not a mapping.
        """
        value = content.get(keys[-1])
        if not isinstance(value, Mapping) or not value:
            raise self.error(f"expected keys and values, got {value!r}", *keys)
        return value
