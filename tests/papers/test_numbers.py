"""The configurations resolve to the numbers that papers print and release (``numbers.csv``).

The list is typed from the papers, never written from configurations. ``config`` names files below
``configs/``, later ones laid over earlier ones; ``(absent)`` is a number that nobody states and
that is zero. Where ``source`` says "ours" or names another method, the line pins our own choice.
"""

from pathlib import Path

import pytest
import yaml

from tests.helpers.tables import csv_rows
from tests.papers.resolved import SHIPPED, laid

NUMBERS = csv_rows(Path(__file__).with_name("numbers.csv"))
FILES = sorted({row["config"] for row in NUMBERS})


@pytest.mark.parametrize("config", FILES)
def test_the_configuration_has_the_papers_numbers(config):
    wrong = []
    for row in NUMBERS:
        if row["config"] != config:
            continue
        found = laid(*config.split()).values.get(row["key"])
        if row["key"].endswith("class_path"):
            found = found.rpartition(".")[2]
        absent = row["value"] == "(absent)"
        if found not in (None, 0) if absent else found != yaml.safe_load(row["value"]):
            wrong.append(f"{row['key']} is {found}, not {row['value']} ({row['source']})")
    assert not wrong, "\n".join(wrong)


def test_every_paper_configuration_is_pinned():
    """None may be left out, nor lose its lines."""
    assert set(SHIPPED) <= set(FILES)
    assert len(NUMBERS) >= 416
    assert len({(row["config"], row["key"]) for row in NUMBERS}) == len(NUMBERS)
