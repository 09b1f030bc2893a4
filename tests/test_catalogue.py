"""Every method is listed, tested, configured and documented; every other module is tested."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from lightning_modules.finetune import FineTuned
from pfl import catalogue
from tests import discovery

ROOT = Path(__file__).parent.parent
METHODS = discovery.methods()
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def file_of(method):
    return method.__module__.partition(".")[2] + ".py"


def configured():
    """The class of each method's own configuration and overlay."""
    paths = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs/baselines").glob("*.yaml")]
    return {yaml.safe_load(path.read_text("utf-8"))["model"]["class_path"] for path in paths}


def test_the_list_has_the_methods_that_can_be_used_and_no_other():
    catalogue.load()
    listed = catalogue.of_kind("methods")
    assert set(listed) == set(METHODS)
    # It is made to be mixed into a method.
    assert FineTuned not in listed


@every_method
def test_a_method_has_a_test_file(method):
    assert discovery.test_module(method) is not None


def test_every_method_has_a_configuration():
    assert {method.__name__ for method in METHODS} <= configured()


@every_method
def test_a_method_has_its_part_of_the_documentation(method):
    text = read("docs/methods.md")
    assert f"`{method.__name__}`" in text
    assert file_of(method) in text


@every_method
def test_a_method_has_a_row_in_the_readme(method):
    """Its own, or that of the method that it varies."""
    rows = [line for line in read("README.md").splitlines() if line.startswith("|")]
    files = {file_of(kind) for kind in method.__mro__ if kind in METHODS}
    assert any(f"`{file}`" in row for file in files for row in rows)


def test_every_module_of_a_room_is_tested():
    """By a file of its own, or by one that imports from it."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    untested = []
    for module in (ROOT / "lightning_modules").glob("*/*.py"):
        path = module.relative_to(ROOT)
        own = ROOT / "tests" / path.with_name(f"test_{path.name}")
        line = f"from {'.'.join(path.with_suffix('').parts)} import "
        if path.name != "__init__.py" and not own.is_file() and not any(line in t for t in texts):
            untested.append(str(path))
    assert not untested


@pytest.mark.parametrize("file", sorted((ROOT / "pfl").rglob("*.py")), ids=lambda p: p.stem)
def test_the_ground_floor_imports_none_above_it(file):
    """Not for types either; class names of a configuration are looked up by their names."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        above = {"lightning_modules", "datamodules", "tests", "benchmarks"}
        assert not above & {name.partition(".")[0] for name in names}
