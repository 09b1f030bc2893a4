"""What is listed and shown without an import of torch is what there is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pfl.cli import catalogue, known
from pfl.cli.commands import commands, parser
from pfl.cli.known import KINDS
from pfl.cli.overview import overview
from pfl.cli.parser import make_parser
from pfl.federation.summary import KINDS as KINDS_OF_ROUNDS
from pfl.results.analyses import brought
from pfl.results.names import JUDGED_BY
from pfl.results.pictures import kinds
from pfl.results.sheets import FORMATS
from tests.helpers.extras import has
from tests.known import text

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


def test_no_help_no_list_and_no_new_file_imports_anything_heavy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    helps = [["--help"], *([*name.split(), "--help"] for name in commands())]
    assert not heavy_after(*helps, *(["list", kind] for kind in KINDS), ["new", "method", "Mine"])


def test_the_file_of_classes_and_options_is_up_to_date():
    """If it is not: ``python -m tests.known``."""
    assert known.FILE.read_text("utf-8").splitlines() == text().splitlines()


def test_the_words_of_options_are_those_of_the_code():
    """The file of commands repeats them, as nothing is imported for a help."""
    assert choices("plot", "--at") == choices("compare", "--at") == [*KINDS_OF_ROUNDS]
    assert choices("list", "kind") == [*KINDS, catalogue.METRICS]
    for command in ("compare", *(["table"] if has("papers") else [])):
        assert told(command, "--out").endswith(f"({', '.join(FORMATS)})")
    own = [name for name in kinds() if name not in brought()]
    assert told("plot", "--only").startswith(f"{', '.join(own)}, a picture")
    mains = (f"test/{model}/acc" for model in JUDGED_BY)
    assert ", ".join(mains) in told("plot", "--metric")


def action(command, name):
    (found,) = (a for a in parser(command)._actions if name in (a.dest, *a.option_strings))
    return found


def choices(command, name):
    return [*action(command, name).choices]


def told(command, name):
    return action(command, name).help


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Two classes whose source was edited after the file of classes was written."""
    room = tmp_path / "lightning_modules"
    room.mkdir()
    (room / "late.py").write_text("class Late:\n    def __init__(self, new: int): ...\n")
    monkeypatch.setattr(known, "_HOME", tmp_path)
    return known.Known("Late", "", "methods", ["old"], ["lightning_modules/late.py"])


def test_what_was_written_since_is_not_taken_for_a_slip(written):
    assert [written.may_take(name) for name in ("old", "new", "ne", "Late")] == [1, 1, 0, 0]
    assert [known.is_class(name) for name in ("FedPer", "Late", "Lat")] == [1, 1, 0]


@pytest.mark.parametrize("command", [name for name, one in commands().items() if one.configuration])
def test_the_help_shows_what_the_parser_takes(command):
    shown = " ".join(overview(command).format_help().replace(",", "").split())
    needs = commands()[command].configuration
    unread = {name for name in ("model", "data") if not getattr(needs, name)}
    if needs.loop is not None:
        unread |= {"seed", "print_config"}
        unread |= {f"loop.{name}" for name in known.loop() if name not in needs.loop}
    for action in make_parser(command)._actions:
        if {action.dest, action.dest.partition(".")[0]} & unread:
            assert f"--{action.dest}" not in shown
            continue
        flags = [word for word in action.option_strings if word.startswith("-")]
        of_a_class = action.dest.endswith("help") and action.dest != "help"
        # jsonargparse adds a flag of its own for shtab once a parser is used.
        if not flags or flags in (["--loop"], ["--print_shtab"]) or of_a_class:
            continue
        assert f" {flags[0]} " in shown
        if action.dest.startswith("loop."):
            told = str(action.help).partition(".")[0].replace("``", "").replace(",", "")
            assert " ".join(told.split()) in shown
