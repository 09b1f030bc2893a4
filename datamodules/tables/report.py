"""The columns of a table as the record of what was read has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from datamodules.record import Use, Values
from datamodules.tables.columns import Column
from datamodules.tables.table import Table

# Maximum number of categories listed in a line; others are counted.
_NAMED = 8
# Minimum number of rows for ruling out a category by nearly distinct values.
_FEW = 20


def columns(
    table: Table, uses: Mapping[str, Use], listed: Collection[str], times: str, as_is: bool
) -> tuple[Values, ...]:
    """Return the columns of a table as they were read.

    Args:
        table: The table, with all of its rows.
        uses: Uses of the columns.
        listed: Columns that are categories because the user says so.
        times: Kind of the time column: ``numbers`` or ``dates``.
        as_is: Whether numbers are left unstandardised.
    """
    found = []
    for name in table.columns:
        use = uses.get(name, "none")
        if name in table.refused:
            found.append(Values(name, use, "lists", "lists or records"))
            continue
        column = table[name]
        found.append(
            Values(
                name,
                use,
                column.kind,
                _shown(column, use, times if use == "time" else ""),
                column.texts,
                column.codes,
                column.absent,
                column.numbers,
                column.kind == "numbers" and column.seconds is not None,
                name in listed,
                as_is and use in ("feature", "target") and column.crowded,
                table.place,
            )
        )
    return tuple(found)


def _shown(column: Column, use: Use, times: str) -> str:
    """Return the kind and the values of a column as text."""
    kind = times or column.kind
    as_words = use in ("client", "target") and kind == "numbers" and len(column.present) <= _NAMED
    if kind == "dates":
        found = sorted(column.present)
        return f"dates, {found[0]} to {found[-1]}"
    if kind == "numbers" and not as_words and column.present:
        return f"numbers, {np.nanmin(column.numbers):g} to {np.nanmax(column.numbers):g}"
    if use != "none" or len(column.present) <= _NAMED:
        values = column.present.items()
        named = ", ".join(f"{text[:40]} {count}" for text, count in [*values][:_NAMED])
        more = f", and {len(values) - _NAMED} more" if len(values) > _NAMED else ""
        return f"{kind if kind == 'numbers' else 'category'}: {named}{more}"
    return "identifier" if identifies(column) else "words"


def identifies(column: Column) -> bool:
    """Return ``True`` if nearly all values of a column of words are distinct."""
    count = sum(column.present.values())
    return count >= _FEW and len(column.present) > 0.8 * count
