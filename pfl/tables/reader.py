"""Reading the file that describes a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pfl.cli.explain import Keys
from pfl.cli.yaml_file import YamlFile
from pfl.disk.nearest import hint
from pfl.federation.summary import KINDS
from pfl.tables.spec import (
    COLUMNS,
    Axis,
    AxisForm,
    CellSettings,
    Exceptional,
    ExceptionForm,
    PartForm,
    TableFile,
    TableForm,
)


def read(path: Path) -> TableFile:
    """Read a table's file.

    Raises:
        UsageError: The file is missing or wrong; the message names the line and the key.
    """
    file = YamlFile(path, "table file")
    given: TableForm = file.formed(file.content(), TableForm)
    if not given.rows:
        raise file.error("a table needs rows", "rows")
    file.check_seeds(given.seeds, "seeds")
    common = _settings(file, given)
    if common.reported is not None:
        named = {"paper": given.paper, "table": given.table}
        source = {key: word for key, word in named.items() if word is not None}
        common = replace(common, reported={**source, **common.reported})
    rows = {label: _settings(file, part, "rows", label) for label, part in given.rows.items()}
    axes = tuple(_axis(file, *item) for item in given.columns.items())
    choices = {"row": [*rows], **{axis.name: [*axis.options] for axis in axes}}
    exceptions = (
        Exceptional(_where(file, cell, choices, n), _settings(file, cell, "cells", str(n)))
        for n, cell in enumerate(given.cells)
    )
    return TableFile(
        **vars(given),
        path=path,
        common=common,
        row_settings=rows,
        axes=axes,
        exceptions=tuple(exceptions),
    )


def _settings(file: YamlFile, part: PartForm | str | list[str] | None, *keys: str) -> CellSettings:
    """Return the settings of a part; a text or a list stands for its configuration files."""
    if not isinstance(part, PartForm):
        part = PartForm(config=part or [])
    if part.metric is not None and part.metric.rpartition("/")[2] not in KINDS:
        what = f"{part.metric} must end in one of {', '.join(KINDS)}"
        raise file.error(what, *keys, "metric")
    reported = None
    if part.reported is not False:
        reported = {key: "" if cell is None else str(cell) for key, cell in part.reported.items()}
    return CellSettings(
        configs=file.configs(part.config, *keys, "config"),
        settings=part.set,
        reported=reported,
        metric=part.metric,
        skip=part.skip,
    )


def _axis(file: YamlFile, name: str, given: AxisForm) -> Axis:
    keys: Keys = ("columns", name)
    if name in COLUMNS:
        raise file.error("choose another name: CSV files use this one for something else", *keys)
    values, key, column = given.values, given.set, given.reported
    if isinstance(values, dict) and values and key is None and column is None:
        options = {
            label: _settings(file, part, *keys, "values", label) for label, part in values.items()
        }
    elif isinstance(values, dict) or not values:
        raise file.error("expected values: a list together with set, or a mapping", *keys)
    elif key is None:
        raise file.error("a list of values needs set: the dotted key to which they belong", *keys)
    else:
        options = {
            str(value): CellSettings(
                settings={key: value}, reported={column: str(value)} if column else {}
            )
            for value in values
        }
    return Axis(name, options)


def _where(
    file: YamlFile, cell: ExceptionForm, choices: Mapping[str, list[str]], number: int
) -> dict[str, tuple[str, ...]]:
    """Return the labels of rows and options that an exception applies to."""
    accepted = {}
    for name, labels in cell.where.items():
        keys = ("cells", str(number), "where", name)
        if name not in choices:
            raise file.error(unknown(name, choices), *keys)
        accepted[name] = tuple(map(str, labels if isinstance(labels, list) else [labels]))
        for label in accepted[name]:
            if label not in choices[name]:
                raise file.error(unknown(label, choices[name]), *keys)
    return accepted


def unknown(name: str, choices: Iterable[str]) -> str:
    """Return the message for an unknown name, with the nearest known one or all of them."""
    return f"there is no {name!r} here{hint(name, choices)}"
