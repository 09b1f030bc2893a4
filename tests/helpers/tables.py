"""Tables that runs write."""

import csv


def csv_rows(path):
    """Return the rows of a CSV file, each by the names of its columns."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
