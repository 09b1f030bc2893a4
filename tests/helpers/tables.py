"""Tables written by runs."""

import csv


def csv_rows(path):
    """Return the rows of a CSV file, each a mapping by column name."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
