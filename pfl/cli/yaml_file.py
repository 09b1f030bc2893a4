"""A reader of the YAML files of sweeps and tables, whose errors name the line.

Their forms are dataclasses, but jsonargparse does not read them: in a union of types (a row is a
text, a list or a mapping), it silently drops a misspelt key of a dataclass, and its errors do not
name inner keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl.cli import shipped
from pfl.cli.explain import UsageError, UserSettings, placed, sources
from pfl.disk.form import FormError, formed
from pfl.disk.nearest import nearest_file
from pfl.disk.yaml_text import loaded


class YamlFile:
    """A YAML file whose errors name their line.

    Args:
        path: The file.
        name: Its name in errors, such as ``"sweep file"``.

    Raises:
        UsageError: The file does not exist or is not YAML.
    """

    def __init__(self, path: Path, name: str) -> None:
        if not path.is_file():
            raise UsageError(f"there is no {name} {path}{nearest_file(path)}")
        self.path = path
        self._settings: UserSettings = sources(["--config", str(path)])

    def content(self) -> Mapping[str, Any]:
        """Return the file's content; ``1e-3`` is a number, as in every configuration."""
        content: Mapping[str, Any] = loaded(self.path.read_text(encoding="utf-8"))
        return content

    def formed(self, content: Any, form: Any, *keys: str) -> Any:  # noqa: ANN401
        """Convert a part of the content to a form; see :func:`pfl.disk.form.formed`.

        Raises:
            UsageError: It does not have the form.
        """
        try:
            return formed(content, form, keys)
        except FormError as error:
            raise self.error(error.what, *error.keys) from error

    def configs(self, names: str | Sequence[str], *keys: str) -> tuple[Path, ...]:
        """Return the configuration files of a key: one, or a list.

        Raises:
            UsageError: One of them does not exist.
        """
        files = []
        for name in [names] if isinstance(names, str) else names:
            try:
                files.append(Path(shipped.config(name, self.path.parent)))
            except UsageError as error:
                raise self.error(str(error), *keys) from error
            if not files[-1].is_file():
                raise self.error(f"there is no file {files[-1]}{nearest_file(files[-1])}", *keys)
        return tuple(files)

    def check_seeds(self, seeds: Sequence[int], key: str) -> None:
        """Check that a list of seeds is not empty and has no duplicates.

        Raises:
            UsageError: The list is empty or has duplicates.
        """
        if not seeds or len({*seeds}) < len(seeds):
            raise self.error(f"expected one or more different seeds, got {seeds}", key)

    def error(self, what: str, *keys: str) -> UsageError:
        """Return an error about a key of the file, or about the file as a whole."""
        # Places are stored by the parts of dotted keys.
        parts = [part for key in keys for part in key.split(".")]
        return UsageError(placed(what, parts, self._settings, str(self.path)))
