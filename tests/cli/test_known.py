"""What is listed and shown without an import of torch is what there is."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from inspect import Parameter

import pytest
from torch import nn
from torch.optim import SGD, AdamW

from pfl.cli import catalogue
from pfl.cli.catalogue import KINDS
from pfl.cli.commands import commands, parser
from pfl.cli.overview import overview
from pfl.cli.parser import make_parser
from pfl.federation.summary import KINDS as KINDS_OF_ROUNDS
from pfl.imports import hints, modules, signatures, stubs
from pfl.imports.plugins import PACKAGES
from pfl.loop import FederatedLoop
from pfl.results.analyses import brought
from pfl.results.names import JUDGED_BY
from pfl.results.pictures import kinds
from pfl.results.sheets import FORMATS
from tests.helpers.extras import has

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


# Packages whose classes no configuration names.
INTERNAL = ("pfl.campaign.", "pfl.cli.", "pfl.extras.", "pfl.testing.")


def of_this_project():
    """Return every class of this project that a configuration can name."""
    homes = [(item, item.__module__) for item in catalogue._everything()]
    return [one for one, at in homes if at.startswith(PACKAGES) and not at.startswith(INTERNAL)]


def own_classes():
    catalogue.load()
    found = (*of_this_project(), FederatedLoop, SGD, AdamW, nn.Linear, nn.Sequential)
    return {f"{kind.__module__}.{kind.__name__}": kind for kind in found}


def test_a_source_says_of_each_class_what_the_class_itself_says():
    """Names, types and defaults of arguments, those of bases and of called constructors too."""
    told = 0
    for path, kind in own_classes().items():
        made = stubs.stub(path)
        assert inspect.isabstract(made) == inspect.isabstract(kind)
        if (taken := signatures.parameters(made)) is None:
            continue
        told += 1
        declared = hints.declared(kind)
        of_torch = getattr(kind.__init__, "__module__", "").startswith("torch.")
        if of_torch and not kind.__module__.startswith("torch."):
            continue
        assert taken.keys() == declared.keys()
        usual = hints.defaults(kind)
        for name, hint in declared.items():
            if not hints.is_known(hint) or not hints.is_known(taken[name].annotation):
                continue
            assert spelt(taken[name].annotation) == spelt(hint)
            assert (taken[name].default is Parameter.empty) <= (
                name not in usual or hints.takes_null(hint)
            )
    assert told > 120


def spelt(hint):
    text = hints.spelt(hints.bare(hint)).replace("torch._tensor.", "torch.")
    # So the parser marks types whose values it does not check.
    text = re.sub(r"Unvalidated<(.*?)>", r"\1", text)
    # Python gives a union the order in which somebody else spelt an equal one first.
    return sorted(text.split(" | "))


SOURCES = {
    "passed on": "class A(Base):\n    def __init__(self, own: float, **options):\n"
    "        super().__init__(**options)\n",
    "fixed": "class A(Base):\n    def __init__(self, own: float, **options):\n"
    "        super().__init__(given=3, **options)\n",
    "left to the base": "class A(Base):\n    def __init__(self, given, own: float):\n"
    "        super().__init__(given)\n",
    "changed on the way": "class A(Base):\n    def __init__(self, own: float, **options):\n"
    "        super().__init__(**{**options, 'given': 1})\n",
    "fields": "@dataclass\nclass A(Base):\n    own: float\n    shared: ClassVar[int] = 2\n",
    "wrapped": "@wrapped\nclass A(Base):\n    pass\n",
}
TAKEN = {
    "passed on": {"own": float, "given": int},
    "fixed": {"own": float},
    "left to the base": {"own": float, "given": int},
    "changed on the way": None,
    "fields": {"own": float, "given": int},
    "wrapped": None,
}


@pytest.mark.parametrize("case", SOURCES)
def test_arguments_are_read_from_a_source_that_is_never_run(case, own_folder):
    base = "class Base:\n    def __init__(self, given: int): ...\n\n"
    (own_folder / "own_source.py").write_text(f"1 / 0\n{base}{SOURCES[case]}")
    taken = signatures.parameters(stubs.stub("own_source.A"))
    found = taken and {name: one.annotation for name, one in taken.items()}
    assert found == TAKEN[case]
    assert "own_source" not in sys.modules
    assert [modules.lacks(f"own_source.{name}") for name in ("A", "B")] == [False, True]


def test_the_words_of_options_are_those_of_the_code():
    """The file of commands repeats them, as nothing is imported for a help."""
    assert choices("plot", "--at") == choices("compare", "--at") == [*KINDS_OF_ROUNDS]
    assert choices("list", "kind") == [*KINDS, catalogue.METRICS]
    for command in ("compare", *(["table"] if has("papers") else [])):
        assert told(command, "--out").endswith(f"({', '.join(FORMATS)})")
    own = [name for name in kinds() if name not in brought({})]
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


@pytest.mark.parametrize("command", [name for name, one in commands().items() if one.configuration])
def test_the_help_shows_what_the_parser_takes(command):
    shown = " ".join(overview(command).format_help().replace(",", "").split())
    needs = commands()[command].configuration
    unread = {name for name in ("model", "data") if not getattr(needs, name)}
    if needs.loop is not None:
        unread |= {"seed", "print_config"}
        unread |= {f"loop.{name}" for name in catalogue.loop_options() if name not in needs.loop}
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
