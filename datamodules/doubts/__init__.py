"""Doubts about data as read: functions of one record, run for all readers.

A doubt is a line that names the place, what is doubted and what to write. Each module holds those
of one concern; a reader has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from datamodules.doubts import (
    arrays,
    copies,
    courses,
    division,
    names,
    places,
    rows,
    scales,
    spelling,
    times,
    values,
)
from datamodules.record import Record

_ALL: tuple[Callable[[Record], Iterator[str]], ...] = (
    *(
        places.of_lines,
        places.of_files,
        places.of_file_names,
        places.of_folder_names,
        places.of_pictures,
    ),
    *(rows.of_headers, rows.of_totals, rows.of_cut_ends),
    *(names.of_names, names.of_columns),
    *(spelling.of_words, spelling.of_spelling, scales.of_scales),
    *(values.of_numbers, values.of_equals, values.of_missing, values.of_targets),
    *(arrays.of_inputs, arrays.of_goal),
    *(times.of_windows, times.of_times, courses.of_courses),
    *(copies.of_content, copies.of_identifiers),
    *(
        division.of_classes,
        division.of_clients,
        division.of_held,
        division.of_dropped,
        division.of_options,
    ),
)


def doubts(record: Record) -> tuple[str, ...]:
    """Return all doubts about data as read, each once."""
    return tuple(dict.fromkeys(line for find in _ALL for line in find(record)))
