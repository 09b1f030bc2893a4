"""Reading and checking the file that describes a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pfl.cli import shipped
from pfl.cli.explain import Keys, UsageError, hint, nearest
from pfl.cli.yaml_file import YamlFile
from pfl.federation.summary import KINDS
from pfl.tables.reported import KEYS
from pfl.tables.spec import COLUMNS, Axis, CellSettings, Exceptional, TableFile

T = TypeVar("T")
_PART = ("config", "set", "reported", "metric", "skip")
_TABLE = (
    *("caption", "paper", "table", "seeds", "seed_keys", "rows", "columns", "cells"),
    *("notes", "pictures", "scaling", *_PART),
)


def read(path: Path) -> TableFile:
    """Read a table's file.

    Raises:
        UsageError: The file is missing or wrong.
    """
    return _Reader(path).table()


class _Reader:
    """Reads one file; its errors name the line and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Refuses files that are not YAML, and keys that are given twice.
        self.yaml = YamlFile(path, "table file")
        self.content = self.yaml.content()

    def refuse(self, keys: Keys, what: str) -> NoReturn:
        raise self.yaml.error(what, *keys)

    def table(self) -> TableFile:
        content = self.mapping(self.content, (), _TABLE)
        for key in ("caption", "metric", "rows"):
            if not content.get(key):
                self.refuse((), f"a table needs the key {key!r}")
        seeds = self.items(content.get("seeds", [0]), ("seeds",), int)
        if not seeds or len(set(seeds)) < len(seeds):
            self.refuse(("seeds",), f"expected one seed or several different ones, got {seeds}")
        axes = self.axes(content.get("columns") or {})
        rows = {
            label: self.part(value, ("rows", label))
            for label, value in self.labelled(content["rows"], ("rows",)).items()
        }
        common = self.part({k: v for k, v in content.items() if k in _PART}, ())
        if common.reported is not None:
            given = {key: str(content[key]) for key in KEYS[:2] if key in content}
            common = replace(common, reported={**given, **common.reported})
        return TableFile(
            path=self.path,
            caption=self.kind(content["caption"], ("caption",), str),
            seeds=tuple(seeds),
            seed_keys=tuple(self.items(content.get("seed_keys", ["seed"]), ("seed_keys",), str)),
            common=common,
            rows=rows,
            axes=axes,
            exceptions=self.exceptions(content.get("cells") or [], rows, axes),
            notes=tuple(self.items(content.get("notes", []), ("notes",), str)),
            pictures=tuple(self.items(content.get("pictures", []), ("pictures",), str)),
            scaling={
                key: float(self.kind(value, ("scaling", key), (int, float)))
                for key, value in self.labelled(content.get("scaling", {}), ("scaling",)).items()
            },
        )

    def axes(self, value: object) -> tuple[Axis, ...]:
        found = []
        for name, content in self.labelled(value, ("columns",)).items():
            keys: Keys = ("columns", name)
            if name in COLUMNS:
                self.refuse(keys, "choose another name: CSV files use this one for something else")
            given = self.mapping(content, keys, ("values", "set", "reported"))
            values = given.get("values")
            if isinstance(values, list) and values:
                found.append(Axis(name, self.listed(values, given, keys)))
            elif isinstance(values, dict) and values and len(given) == 1:
                inner = self.labelled(values, (*keys, "values"))
                parts = {k: self.part(v, (*keys, "values", k)) for k, v in inner.items()}
                found.append(Axis(name, parts))
            else:
                self.refuse(keys, "expected values: a list together with set, or a mapping")
        return tuple(found)

    def listed(
        self, values: Sequence[Any], given: Mapping[str, Any], keys: Keys
    ) -> dict[str, CellSettings]:
        """Return the options of an axis that sets one key to several values."""
        if "set" not in given:
            self.refuse(keys, "a list of values needs set: the dotted key to which they belong")
        key = self.kind(given["set"], (*keys, "set"), str)
        column = given.get("reported")
        if column is not None and column not in KEYS:
            self.refuse((*keys, "reported"), unknown(str(column), KEYS))
        return {
            str(value): CellSettings(
                settings={key: value}, reported={column: str(value)} if column else {}
            )
            for value in values
        }

    def part(self, value: object, keys: Keys) -> CellSettings:
        """Return a part; a text or a list stands for its configuration files."""
        if value is None:
            return CellSettings()
        if isinstance(value, str | list):
            value = {"config": value}
        given = self.mapping(value, keys, _PART)
        files = given.get("config", [])
        files = [files] if isinstance(files, str) else files
        metric, skip = given.get("metric"), given.get("skip")
        if metric is not None and str(metric).rpartition("/")[2] not in KINDS:
            self.refuse((*keys, "metric"), f"{metric} must end in one of {', '.join(KINDS)}")
        return CellSettings(
            configs=tuple(
                self.file(name, (*keys, "config"))
                for name in self.items(files, (*keys, "config"), str)
            ),
            settings=self.labelled(given.get("set") or {}, (*keys, "set")),
            reported=self.selection(given.get("reported", {}), (*keys, "reported")),
            metric=None if metric is None else str(metric),
            skip=None if skip is None else str(skip),
        )

    def selection(self, value: object, keys: Keys) -> dict[str, str] | None:
        if value is False:
            return None
        given = self.mapping(value, keys, KEYS)
        return {key: "" if cell is None else str(cell) for key, cell in given.items()}

    def exceptions(
        self, value: object, rows: Mapping[str, CellSettings], axes: Sequence[Axis]
    ) -> tuple[Exceptional, ...]:
        choices = {"row": list(rows), **{axis.name: list(axis.options) for axis in axes}}
        found = []
        for number, item in enumerate(self.items(value, ("cells",), dict)):
            keys: Keys = ("cells", str(number))
            given = self.mapping(item, keys, ("where", *_PART))
            where = {}
            for name, labels in self.mapping(
                given.pop("where", {}), (*keys, "where"), choices
            ).items():
                accepted = [str(one) for one in (labels if isinstance(labels, list) else [labels])]
                for label in accepted:
                    if label not in choices[name]:
                        self.refuse((*keys, "where", name), unknown(label, choices[name]))
                where[name] = tuple(accepted)
            found.append(Exceptional(where, self.part(given, keys)))
        return tuple(found)

    def file(self, name: str, keys: Keys) -> Path:
        try:
            path = Path(shipped.config(name, self.path.parent))
        except UsageError as error:
            self.refuse(keys, str(error))
        if not path.is_file():
            near = nearest(path.name, [file.name for file in path.parent.glob("*.yaml")])
            self.refuse(keys, f"there is no file {path}{near}")
        return path

    # Checks of values.

    def kind(self, value: object, keys: Keys, kind: type[T] | tuple[type[T], ...]) -> T:
        if not isinstance(value, kind) or isinstance(value, bool):
            names = kind if isinstance(kind, tuple) else (kind,)
            wanted = " or ".join(_NAMES.get(one, one.__name__) for one in names)
            self.refuse(keys, f"expected {wanted}, got {value!r}")
        return value

    def items(self, value: object, keys: Keys, kind: type[T]) -> list[T]:
        return [self.kind(item, keys, kind) for item in self.kind(value, keys, list)]

    def labelled(self, value: object, keys: Keys) -> dict[str, Any]:
        content: dict[Any, Any] = self.kind(value, keys, dict)
        return {str(key): item for key, item in content.items()}

    def mapping(
        self, value: object, keys: Keys, known: Sequence[str] | Mapping[str, Any]
    ) -> dict[str, Any]:
        content = self.labelled(value, keys)
        for key in content:
            if key not in known:
                self.refuse((*keys, key), unknown(key, known))
        return content


_NAMES: Mapping[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a mapping",
}


def unknown(name: str, choices: Iterable[str]) -> str:
    """Return the message for an unknown name, with the nearest known one or all of them."""
    return f"there is no {name!r} here{hint(name, choices)}"
