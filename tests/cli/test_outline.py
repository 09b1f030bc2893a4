"""What is listed and shown from sources is what there is, and costs no import of torch."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import lightning_modules
from pfl.__main__ import COMMANDS, main
from pfl.cli import catalogue
from pfl.cli.configured import VERBS
from pfl.cli.outline import KINDS, Sources
from pfl.cli.overview import overview
from pfl.cli.parser import make_parser

HEAVY = {"torch", "lightning", "numpy", "scipy", "matplotlib", "jsonargparse", "torchmetrics"}


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def heavy_after(*lines):
    """Return the heavy modules that a process has imported that runs these commands."""
    calls = "\n".join(
        f"try: main({words!r})\nexcept SystemExit as end: assert not end.code" for words in lines
    )
    code = f"import sys\nfrom pfl.__main__ import main\n{calls}\nprint(*sys.modules)"
    return HEAVY & set(python(code).splitlines()[-1].split())


def test_no_help_imports_anything_heavy():
    assert not heavy_after(*([*name.split(), "--help"] for name in COMMANDS))


def test_the_lists_import_nothing_heavy():
    assert not heavy_after(*(["list", kind] for kind in KINDS))


def test_a_new_file_is_written_without_anything_heavy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not heavy_after(["new", "method", "Mine"])


def imported(kind):
    """Return the classes of a kind as Python knows them once all are imported."""
    catalogue.load()
    base = catalogue.find(KINDS[kind])
    home = KINDS[kind].partition(".")[0]
    return {
        item.__name__
        for item in catalogue.own()
        if issubclass(item, base)
        and item is not base
        and item.__module__.startswith(f"{home}.")
        and not inspect.isabstract(item)
        and not item.__name__.startswith("_")
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_list_has_what_can_be_used_and_no_other(kind):
    listed = Sources().of_kind(kind)
    assert {item.name for item in listed} == imported(kind)
    assert all(item.sentence for item in listed)


def test_there_is_no_list_of_anything_else():
    with pytest.raises(ValueError, match="there is no list of 'cats'; choose from methods, "):
        Sources().of_kind("cats")


def test_a_file_that_is_no_python_is_named_and_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lightning_modules, "__path__", [*lightning_modules.__path__, str(tmp_path)])
    (tmp_path / "broken.py").write_text("def forward(:\n")
    assert main(["list", "methods"]) == 0
    said = capsys.readouterr()
    assert "FedPer" in said.out
    (line,) = said.err.splitlines()
    assert str(tmp_path / "broken.py") in line
    assert "SyntaxError" in line


def test_bases_are_followed_through_packages_and_names(tmp_path, monkeypatch):
    """``two.Last`` is a ``one.First`` by way of a package, a relative import and another name."""
    package = tmp_path / "outlined_here"
    package.mkdir()
    (package / "one.py").write_text(
        "from abc import ABC, abstractmethod\n"
        "class First(ABC):\n"
        "    @abstractmethod\n"
        "    def act(self): ...\n"
    )
    (package / "__init__.py").write_text("from .one import First as Base\n")
    (package / "two.py").write_text(
        "from outlined_here import Base as B\n"
        "class Half(B): pass\n"
        "class Last(Half):\n"
        "    act = None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sources = Sources()
    last, half = (sources.find(f"outlined_here.two.{name}") for name in ("Last", "Half"))
    assert [item.name for item in sources.line(last)] == ["Last", "Half", "First"]
    assert [sources.is_abstract(item) for item in (last, half)] == [False, True]
    assert "outlined_here" not in sys.modules


@pytest.mark.parametrize("command", VERBS)
def test_the_help_from_sources_shows_what_the_parser_takes(command):
    shown = " ".join(overview(command).replace(",", "").split())
    for action in make_parser(command)._actions:
        flags = [word for word in action.option_strings if word.startswith("-")]
        of_a_class = action.dest.endswith("help") and action.dest != "help"
        if not flags or flags == ["--loop"] or of_a_class:
            continue
        assert f" {flags[0]} " in shown
        if action.dest.startswith("loop."):
            told = str(action.help).partition(".")[0].replace("``", "").replace(",", "")
            assert " ".join(told.split()) in shown


def test_the_help_from_sources_names_every_word_that_an_engine_may_be(capsys):
    assert main(["fit", "-h"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Engine | 'auto' | 'sequential' | 'threads' | 'vectorised' | 'ray'" in shown
    assert "default: runs" in shown
    assert "FedPer" in shown
    assert "Digits" in shown
