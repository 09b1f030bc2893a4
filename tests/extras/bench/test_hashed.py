"""Files of rows: what was written comes back, and nothing else does."""

from __future__ import annotations

import json

import pytest

from pfl.disk.reading import FileError
from pfl.extras.bench.hashed import FORMAT, hashed, read_rows, write_rows
from tests.helpers.messages import parts

ROWS = [hashed({"name": "a", "score": 0.1}), hashed({"name": "b", "score": None})]


@pytest.fixture
def file(tmp_path):
    write_rows(tmp_path / "rows.json", "toys", {"caption": "Toys"}, ROWS)
    return tmp_path / "rows.json"


def read(file, kind="toys"):
    return read_rows(file, kind, "name")


def test_what_was_written_comes_back(file):
    about, rows = read(file)
    assert (about, rows) == ({"caption": "Toys"}, ROWS)
    content = file.read_bytes()
    write_rows(file, "toys", about, rows)
    assert file.read_bytes() == content


def test_the_hash_covers_everything_but_itself():
    assert hashed(ROWS[0]) == ROWS[0]
    assert hashed({**ROWS[0], "hash": "0"}) == ROWS[0]
    assert hashed({**ROWS[0], "score": 0.2})["hash"] != ROWS[0]["hash"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda content: content["rows"][1].update(score=1.0),
            "rows.json ~ the row b ~ changed ~ hash",
        ),
        (lambda content: content["rows"][0].pop("hash"), "rows.json ~ the row a ~ changed ~ None"),
        (lambda content: content["rows"][0].pop("name"), "rows.json ~ row number 1 ~ changed"),
        (lambda content: content.update(kind="ledger"), "rows.json ~ ledger ~ toys"),
        (lambda content: content.update(format="2"), f'rows.json ~ toys ~ "format": "{FORMAT}"'),
        (lambda content: content.update(rows=[1]), "rows.json ~ toys ~ no rows"),
        (lambda content: content.update(about=[]), "rows.json ~ toys ~ common content"),
        (lambda content: content.clear(), "no toys ~ rows.json"),
    ],
)
def test_what_was_changed_is_refused(file, change, told):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(FileError, match=parts(told)):
        read(file)


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ('"score": 0.1', '"score": 0.9,\n   "score": 0.1'),
        ('"score": 0.1', '"score": 1e-1'),
        ('"score": 0.1', '"score":  0.1'),
        ('"name": "a"', '"name": "\\u0061"'),
    ],
    ids=["a key twice", "another number", "a blank", "another letter"],
)
def test_bytes_that_hash_alike_but_were_not_written_so_are_refused(file, written, instead):
    """Python takes the last of two equal keys; another reader may take the first."""
    text = file.read_text()
    line = text[: text.index(written)].count("\n") + 1
    file.write_text(text.replace(written, instead))
    with pytest.raises(FileError, match=parts(f"rows.json:{line}: this is not how pfl writes")):
        read(file)
