"""The invariants in docs/methods: their numbers and the tests that hold them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = [path.read_text(encoding="utf-8") for path in (ROOT / "docs/methods").glob("*.md")]
HEADER = re.compile(r"^\| \| invariant \| tests, (.+) \|$", re.MULTILINE)
ROW = re.compile(r"^\| (\d+) \| .+ \| (.+) \|$", re.MULTILINE)
QUOTED = re.compile(r"`(.+?)`")
CITED = re.compile(r"[Ii]nvariants? (\d+(?:(?:, \d+)* and \d+)?)")
SECTIONS = {
    header[1]: ROW.findall(page[header.end() :])
    for page in PAGES
    if (header := HEADER.search(page))
}


@cache
def docstrings(name):
    """Return the docstring of every test in a file by its name."""
    tree = ast.parse((HERE / name).read_text(encoding="utf-8"))
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {t.name: ast.get_docstring(t) or "" for t in tests if t.name.startswith("test_")}


def numbers(docstring):
    return {int(n) for cited in CITED.findall(docstring) for n in re.findall(r"\d+", cited)}


def section_of(name):
    """Return the rows of the section that names a test file."""
    return next((rows for files, rows in SECTIONS.items() if f"`{name}`" in files), [])


def test_invariants_are_numbered_from_one():
    assert len(SECTIONS) > 20
    for files, rows in SECTIONS.items():
        assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1)), files


def test_a_cited_invariant_exists_and_names_the_test_that_cites_it():
    for path in HERE.glob("test_*.py"):
        rows = {int(number): QUOTED.findall(tests) for number, tests in section_of(path.name)}
        for test, docstring in docstrings(path.name).items():
            for number in numbers(docstring):
                assert test in rows.get(number, []), f"{path.name}, {test}: invariant {number}"


def test_every_test_that_an_invariant_names_exists():
    for files, rows in SECTIONS.items():
        own = {test for name in QUOTED.findall(files) for test in docstrings(name)}
        for number, tests in rows:
            assert tests, f"{files}: no test holds invariant {number}"
            for test in QUOTED.findall(tests):
                file, _, name = test.rpartition("::")
                assert name in (docstrings(file) if file else own), f"{files}, {number}: {test}"


def test_no_text_refers_to_a_specification_outside():
    """The numbers are those of docs/methods, and equations those of the papers."""
    word = re.compile(r"(?<!grid-item-)\bcards?\b", re.IGNORECASE)
    rooms = ("pfl", "lightning_modules", "datamodules", "tests", "configs", "sweeps", "docs")
    files = [path for room in rooms for path in (ROOT / room).rglob("*")]
    texts = [path for path in files if path.suffix in {".py", ".md", ".yaml"}]
    found = [path for path in texts if word.search(path.read_text(encoding="utf-8"))]
    assert [path for path in found if path != Path(__file__)] == []
