"""Names of classes: the lists of them, broken files; nothing listed lacks a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import lightning_modules
from pfl.__main__ import main
from pfl.cli import catalogue
from tests.helpers import discovery

ROOT = Path(__file__).parents[2]
METHODS = discovery.methods()


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def file_of(method):
    return method.__module__.partition(".")[2] + ".py"


def configured():
    """Return the class of each method's own configuration or overlay, or row of a table."""
    paths = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs/baselines").glob("*.yaml")]
    given = {yaml.safe_load(path.read_text("utf-8"))["model"]["class_path"] for path in paths}
    for path in (ROOT / "configs/tables").glob("*.yaml"):
        rows = yaml.safe_load(path.read_text("utf-8"))["rows"].values()
        models = [row["set"].get("model") for row in rows if isinstance(row, dict) and "set" in row]
        given |= {one["class_path"] if isinstance(one, dict) else one for one in models}
    return given


def missing(has):
    """Return the names of the methods that lack something."""
    return [method.__name__ for method in METHODS if not has(method)]


def test_every_method_has_a_test_file():
    assert not missing(discovery.test_module)


def test_every_method_has_a_configuration():
    given = configured()
    assert not missing(lambda method: method.__name__ in given)


def test_every_method_is_on_a_page_of_the_documentation():
    """The page of its file, or of the method that it varies."""
    pages = [read(f"docs/methods/{path.name}") for path in (ROOT / "docs/methods").glob("*.md")]
    shown = {
        name for page in pages for name in re.findall(r"^```\{method-page\} (.+)$", page, re.M)
    }
    names = {name for group in shown for name in group.split()}
    assert not missing(lambda method: method.__name__ in names)


def test_every_method_has_a_row_in_the_readme():
    """Its own, or that of the method that it varies."""
    rows = [line for line in read("README.md").splitlines() if line.startswith("|")]

    def has_row(method):
        files = {file_of(kind) for kind in method.__mro__ if kind in METHODS}
        return any(f"`{file}`" in row for file in files for row in rows)

    assert not missing(has_row)


def test_every_module_of_a_room_is_tested():
    """By a file of its own, by one that imports from it, or by its examples, which are run."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    untested = []
    for module in (ROOT / "lightning_modules").glob("*/*.py"):
        path = module.relative_to(ROOT)
        own = ROOT / "tests" / path.with_name(f"test_{path.name}")
        line = f"from {'.'.join(path.with_suffix('').parts)} import "
        tested = own.is_file() or any(line in t for t in texts) or ">>>" in module.read_text()
        if path.name != "__init__.py" and not tested:
            untested.append(str(path))
    assert not untested


# Broken files.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose files belong to ``lightning_modules``, too."""
    path = [*lightning_modules.__path__, str(tmp_path)]
    monkeypatch.setattr(lightning_modules, "__path__", path)
    catalogue.load.cache_clear()
    yield tmp_path
    catalogue.load.cache_clear()


def test_a_broken_file_is_named_once_and_the_others_are_used(folder, capsys):
    faults = {
        "broken": ("def forward(:\n", "SyntaxError: "),
        "lost": ("import nowhere_to_be_found\n", "No module named 'nowhere_to_be_found'"),
        "fails": ("1 / 0\n", "ZeroDivisionError: division by zero"),
    }
    for name, (text, _) in faults.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "user.py").write_text("import lightning_modules.fails\n")
    catalogue.load()
    lines = capsys.readouterr().err.splitlines()
    assert "FedPer" in catalogue.classes()
    assert len(lines) == 3
    for name, (_, fault) in faults.items():
        (line,) = (line for line in lines if str(folder / f"{name}.py") in line)
        assert fault in line


@pytest.mark.parametrize(
    ("text", "fault"),
    [("def forward(:\n", "SyntaxError: "), ("import nowhere\n", "No module named 'nowhere'")],
)
def test_a_class_of_a_broken_file_is_an_error_of_one_line(folder, capsys, text, fault):
    (folder / "broken.py").write_text(text)
    with pytest.raises(catalogue.BrokenError, match=fault):
        catalogue.find("lightning_modules.broken.Method")
    words = ["--model", "lightning_modules.broken.Method", "--data", "Digits"]
    assert main(["fit", *words, "--data.partition=IID"]) == 2
    assert "--model" in capsys.readouterr().err.splitlines()[-1]


def test_a_broken_base_takes_only_its_own_kind(folder, monkeypatch):
    (folder / "broken.py").write_text("1 / 0\n")
    monkeypatch.setitem(catalogue.KINDS, "nets", "lightning_modules.broken.SplitNet")
    assert {"FedPer", "Digits"} <= catalogue.classes().keys()
