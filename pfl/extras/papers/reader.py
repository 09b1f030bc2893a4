"""The reader of table files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pfl.cli.yaml_file import YamlFile
from pfl.disk.nearest import hint
from pfl.extras.papers.spec import (
    COLUMNS,
    AxisForm,
    CellSettings,
    Exceptional,
    TableFile,
    TableForm,
)
from pfl.federation.summary import KINDS

PartT = TypeVar("PartT", bound=CellSettings)


def read(path: Path) -> TableFile:
    """Read a table file.

    Raises:
        UsageError: The file is missing or wrong; the message names the line and the key.
    """
    file = YamlFile(path, "table file")
    form: TableForm = file.formed(file.content(), TableForm)
    if not form.rows:
        raise file.error("expected at least one row", "rows")
    file.check_seeds(form.seeds, "seeds")
    common = _completed(file, form)
    if common.reported is not False:
        named = {"paper": form.paper, "table": form.table}
        source = {key: word for key, word in named.items() if word is not None}
        common = replace(common, reported={**source, **common.reported})
    rows = {label: _part(file, part, "rows", label) for label, part in form.rows.items()}
    axes = {name: _options(file, axis, "columns", name) for name, axis in form.columns.items()}
    choices = {"row": [*rows], **{name: [*options] for name, options in axes.items()}}
    cells = [_exception(file, cell, choices, str(n)) for n, cell in enumerate(form.cells)]
    content = {**vars(form), "cells": cells}
    return TableFile(**content, path=path, common=common, row_settings=rows, axes=axes)


def _part(file: YamlFile, part: CellSettings | str | list[str] | None, *keys: str) -> CellSettings:
    """Return the settings of a part; a text or a list gives its configuration files."""
    settings = part if isinstance(part, CellSettings) else CellSettings(config=part or [])
    return _completed(file, settings, *keys)


def _completed(file: YamlFile, part: PartT, *keys: str) -> PartT:
    """Check a part's metric, find its configuration files, and convert cells to texts."""
    if part.metric is not None and part.metric.rpartition("/")[2] not in KINDS:
        what = f"{part.metric} must end in one of {', '.join(KINDS)}"
        raise file.error(what, *keys, "metric")
    reported = part.reported and {
        key: "" if cell is None else str(cell) for key, cell in part.reported.items()
    }
    configs = [str(path) for path in file.configs(part.config, *keys, "config")]
    return replace(part, config=configs, reported=reported)


def _options(file: YamlFile, axis: AxisForm, *keys: str) -> dict[str, CellSettings]:
    """Return the settings of an axis's options, by label."""
    if keys[-1] in COLUMNS:
        raise file.error("choose another name: this one is a column of all CSV files", *keys)
    values, key, column = axis.values, axis.set, axis.reported
    if isinstance(values, dict) and values and key is None and column is None:
        return {label: _part(file, part, *keys, "values", label) for label, part in values.items()}
    if isinstance(values, dict) or not values:
        raise file.error("expected values: a list with set, or a mapping", *keys)
    if key is None:
        raise file.error("a list of values needs set: the dotted key of the values", *keys)
    return {
        str(value): CellSettings(set={key: value}, reported={column: str(value)} if column else {})
        for value in values
    }


def _exception(
    file: YamlFile, cell: Exceptional, choices: Mapping[str, list[str]], number: str
) -> Exceptional:
    """Return an exception with the labels of its rows and options."""
    accepted = {}
    for name, labels in cell.where.items():
        keys = ("cells", number, "where", name)
        if name not in choices:
            raise file.error(unknown(name, choices), *keys)
        accepted[name] = [*map(str, labels if isinstance(labels, list) else [labels])]
        for label in accepted[name]:
            if label not in choices[name]:
                raise file.error(unknown(label, choices[name]), *keys)
    return replace(_completed(file, cell, "cells", number), where=accepted)


def unknown(name: str, choices: Iterable[str]) -> str:
    """Return a message about an unknown name, with the nearest known one or all."""
    return f"there is no {name!r}{hint(name, choices)}"
