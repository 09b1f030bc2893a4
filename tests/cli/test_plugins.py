"""Methods, networks and metrics that installed packages bring are found by their names."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pfl.__main__ import main
from pfl.cli import catalogue, commands
from pfl.core.task import Classification
from pfl.federation import evaluation, identity
from pfl.imports import plugins
from pfl.results import pictures
from pfl.training.metrics import Scorer

GROUPS = (
    *plugins.GROUPS,
    *("pfl.arguments", "pfl.budgets", "pfl.callbacks", "pfl.commands", "pfl.engines"),
    *("pfl.evaluations", "pfl.pictures", "pfl.promises"),
    *("pfl.readers", "pfl.records", "pfl.starts", "pfl.uplink"),
)
PACKAGE = '''
from torch import nn
from torchmetrics import MeanMetric

from lightning_modules.nets import SplitNet


class Brought(SplitNet):
    """A network of somebody else."""

    def __init__(self, num_classes: int):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes), features=64)


class Right(MeanMetric):
    def update(self, probabilities, labels):
        super().update((probabilities.argmax(-1) == labels).float())


class Unannounced(SplitNet):
    """It is in the package, and no entry point names it."""
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs somebody's package; it is forgotten after the test."""
    imported = {*sys.modules}
    caches = (plugins._points, plugins.entry_points, commands._installed)
    caches = (*caches, catalogue.load, catalogue._brought)

    def forget():
        for cached in caches:
            cached.cache_clear()
        plugins._noted.clear()
        plugins._failed.clear()

    def install(package, points, version="1.0", commands_yaml=None, **files):
        home = tmp_path / package
        info = home / f"{package}.dist-info"
        info.mkdir(parents=True)
        about = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        (info / "METADATA").write_text(about)
        (info / "entry_points.txt").write_text(points)
        for name, text in files.items():
            (home / f"{name}.py").write_text(text)
        if commands_yaml is not None:
            (home / package / "__init__.py").parent.mkdir()
            (home / package / "__init__.py").write_text("")
            (home / package / "commands.yaml").write_text(commands_yaml)
        monkeypatch.syspath_prepend(str(home))
        forget()

    forget()
    yield install
    monkeypatch.undo()
    forget()
    for name in {*sys.modules} - imported:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


COMMAND = """
{name}:
  function: run.run
  summary: a command of {package}
  description: It does something.
  examples: [pfl {name}]
"""

COMPLETE = "function: a.b, summary: s, description: d, examples: []"


def of_everything(value):
    """Return entry points that name one value in every group."""
    return "".join(f"[{group}]\nthing = {value}\n" for group in GROUPS)


def notes(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pfl: note")]


def test_a_plug_in_is_listed_with_its_package_and_found_by_its_name(install, capsys):
    points = "[pfl.nets]\nBrought = brought_by:Brought\n[pfl.metrics]\nright = brought_by:Right\n"
    install("somebodys", points, brought_by=PACKAGE)
    assert main(["list", "nets"]) == 0
    shown = capsys.readouterr().out
    assert "brought_by.Brought" in shown
    assert "A network of somebody else." in shown
    assert "Unannounced" not in shown
    assert "Right" not in shown
    assert main(["list", "metrics"]) == 0
    captured = capsys.readouterr()
    assert "brought_by.Right" in captured.out
    assert "Brought " not in captured.out
    assert "torchmetrics.AUROC" in captured.out
    assert captured.err == ""
    assert Scorer(Classification(), 3, ["right"]).added == ("right",)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise RuntimeError('no\\x1b[31m')", "RuntimeError: no"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class E(BaseException):\n    def __str__(self): 1 / 0\nraise E", ": E; update"),
        ("def f(:", "SyntaxError"),
        ("import no_such_package", "No module named 'no_such_package'"),
        ("def __getattr__(name): raise SystemExit(name)", "SystemExit"),
        (None, "No module named 'broken'"),
    ],
)
def test_a_broken_plug_in_of_any_group_is_named_once_and_all_else_works(
    body, said, install, capsys
):
    files = {} if body is None else {"broken": body}
    install("some.body_s", of_everything("broken:Thing"), version="7.1", **files)
    assert main(["--help"]) == 0
    assert main(["list", "methods"]) == 0
    assert main(["fit", "--config", "quickstart", "--model.epoch=1"]) == 2
    assert "saliency" not in pictures.kinds()
    assert list(evaluation.installed())
    told = notes(capsys)
    assert len(told) == len({*told})
    assert told
    for line in told:
        assert "the plug-in broken.Thing of some-body-s 7.1 cannot be imported: " in line
        assert said in line
        assert line.endswith("update some-body-s, or remove it: pip uninstall some-body-s")
        assert line.isprintable()


@pytest.mark.parametrize("value", ["7", "int", "object", "dict", "print", "type('T', (), {})"])
def test_a_plug_in_of_another_type_is_named_and_left_out(value, install, capsys):
    install("somebodys", of_everything("odd:Thing"), odd=f"Thing = {value}\nPICTURES = Thing")
    assert main(["--help"]) == 0
    assert main(["list", "methods"]) == 0
    assert main(["list", "metrics"]) == 0
    assert list(evaluation.installed())
    pictures.kinds()
    told = notes(capsys)
    assert any(
        "as pfl.methods needs" in line and "a concrete subclass of ClientModule" in line
        for line in told
    )
    assert any("commands.yaml" in line or "odd" in line for line in told)
    assert all("somebodys 1.0" in line for line in told)


@pytest.mark.parametrize(
    "points",
    [
        "[pfl.commands]\nno equals sign\n",
        "[pfl.commands]\nthing = not a module!\n",
        "[pfl.engines]\nit's = broken:Thing\n",
        "[pfl.metrics]\ntorchmetrics.AUROC = broken:Thing\n",
        "[pfl.nets]\n = broken\n",
    ],
)
def test_an_entry_point_that_cannot_be_read_is_named(points, install, capsys):
    install("somebodys", points)
    assert main(["--help"]) == 0
    plugins.installed(*GROUPS)
    (told,) = notes(capsys)
    assert "somebodys" in told


def test_a_distribution_that_is_on_the_path_twice_counts_once(install):
    install("somebodys", "[g]\n[pfl.nets]\na = older:A\n", version="1.0")
    install("Somebodys", "[pfl.nets]\na = newer:A\n", version="2.0")
    found = [one for one in plugins.installed("pfl.nets") if not one.is_own]
    assert [(one.path, one.version) for one in found] == [("newer.A", "2.0")]


def test_the_project_s_names_stay_its_own_and_the_other_is_named_with_both_paths(install, capsys):
    points = (
        "[pfl.commands]\ngo = evil\n[pfl.methods]\nFedAvg = evil_classes:FedAvg\n"
        "[pfl.engines]\nsequential = evil_classes:Engine\n[pfl.nets]\nMLP = evil_classes:Other\n"
    )
    classes = """
from lightning_modules.fedavg import FedAvg as Base
from torch import nn

class FedAvg(Base):
    pass

class Other(nn.Linear):
    pass
"""
    install(
        "evil",
        points,
        commands_yaml=COMMAND.format(name="fit", package="evil"),
        evil_classes=classes,
    )
    assert main(["--help"]) == 0
    assert main(["list", "methods"]) == 0
    captured = capsys.readouterr()
    assert "a command of evil" not in captured.out
    assert "evil_classes" not in captured.out
    told = [line for line in captured.err.splitlines() if "of this project" in line]
    assert any("command fit" in line and "evil.run" not in line for line in told)
    assert any(
        "evil_classes.FedAvg" in line and "FedAvg: lightning_modules." in line for line in told
    )
    assert any("the class MLP" in line and "evil_classes.Other" in line for line in told)
    assert commands.commands()["fit"].function == "pfl.cli.runs.fit"
    assert catalogue.classes()["FedAvg"].__module__ == "lightning_modules.fedavg"


def test_two_packages_with_one_name_are_both_left_out_and_named(install, capsys):
    net = "from torch import nn\nclass Twin(nn.Linear):\n    pass\n"
    for package in ("left", "right"):
        points = f"[pfl.commands]\ngo = {package}\n[pfl.nets]\nTwin = {package}_net:Twin\n"
        yaml = COMMAND.format(name="go" if package == "left" else "go far", package=package)
        install(package, points, commands_yaml=yaml, **{f"{package}_net": net})
    assert main(["go"]) == 2
    assert main(["list", "methods"]) == 0
    told = notes(capsys)
    assert len(told) == 2
    for line, paths in zip(
        told, (("left", "right"), ("left_net.Twin", "right_net.Twin")), strict=True
    ):
        assert all(f"the plug-in {path} of " in line for path in paths)
        assert line.endswith("remove one: pip uninstall left or right")
    assert "go" not in commands.commands()
    assert "Twin" not in catalogue.classes()


@pytest.mark.parametrize(
    "yaml",
    [
        "- a list",
        "go: {function: run.run}",
        f"--help: {{{COMPLETE}}}",
        f"go: {{{COMPLETE}, usage: '%(no)s'}}",
        f"go: {{{COMPLETE}, arguments: {{--a: {{type: no}}}}}}",
        f"go: {{{COMPLETE}, arguments: {{--a: {{b: c}}}}}}",
        f"go: {{{COMPLETE}, configuration: {{loop: [no]}}}}",
    ],
)
def test_a_command_that_cannot_be_shown_is_left_out(yaml, install, capsys):
    install("somebodys", "[pfl.commands]\ngo = somebodys\n", commands_yaml=yaml)
    assert main(["completion", "bash"]) == 0
    (told,) = notes(capsys)
    assert "the plug-in somebodys of somebodys 1.0" in told
    assert "go" not in commands.commands()


def test_a_command_whose_function_is_missing_names_its_package(install, capsys):
    yaml = COMMAND.format(name="go", package="somebodys")
    install("somebodys", "[pfl.commands]\ngo = somebodys\n", commands_yaml=yaml)
    assert main(["go"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("pfl go: error: the plug-in somebodys of somebodys 1.0 cannot be used: ")
    assert "No module named 'somebodys.run'" in told


def test_a_function_that_fails_before_a_command_spares_the_command(install, capsys):
    points = "[pfl.starts]\ns = odd:start\n[pfl.records]\nr = odd:start\nseed = odd:yes\n"
    install(
        "somebodys", points, odd="def start(*words): raise OSError('no')\ndef yes(): return True"
    )
    assert main(["list", "methods"]) == 0
    (told,) = notes(capsys)
    assert "the plug-in odd.start of somebodys 1.0 cannot be used: OSError: no" in told


def test_a_run_counts_as_one_of_its_plug_ins_versions(install, capsys):
    """By their names and by classes of their packages; what is not used does not count."""
    points = "[pfl.nets]\nBrought = brought_by:Brought\n[pfl.metrics]\nright = brought_by:Right\n"
    install("unused", "[pfl.nets]\na = unused_net:A\n")
    configs = (
        {
            "model": {
                "class_path": "FedAvg",
                "init_args": {"net": {"class_path": "brought_by.Brought"}},
            }
        },
        {"data": {"class_path": "Digits", "init_args": {"metrics": ["right"]}}},
        {"data": {"metrics": [{"metric": "right", "name": "r"}]}},
    )
    assert identity.beside(configs[0], None)["plugins"] == {}
    install("somebodys", points, version="1.2", brought_by=PACKAGE)
    for config in configs:
        recorded = identity.beside(config, None)
        assert recorded["plugins"] == {"somebodys": "1.2"}
        assert [*recorded["sources"]] == ["brought_by"]
        assert identity.of_run(config, recorded)["plugin.somebodys"] == "1.2"
    assert identity.beside({"model": {"class_path": "FedAvg"}}, None)["plugins"] == {}


THING = {"class_path": "brought.Thing"}
# Configurations that use a plug-in of a group, of whose thing the name is "thing".
USES = {
    "methods": {"model": THING},
    "nets": {"model": {"class_path": "FedAvg", "init_args": {"net": THING}}},
    "data": {"data": THING},
    "metrics": {"data": {"class_path": "Digits", "init_args": {"metrics": ["thing"]}}},
    "engines": {"loop": {"engine": "thing"}},
    "uplink": {"loop": {"uplink": [THING]}},
    "callbacks": {"loop": {"callbacks": [THING]}},
    "evaluations": {"loop": {"evaluations": [THING]}},
}


@pytest.mark.parametrize("group", [*USES, "commands", "pictures", "budgets"])
def test_a_run_counts_as_one_of_the_version_of_each_groups_plug_in_that_it_uses(group, install):
    """No run uses commands, pictures and budgets of owners."""
    config, digests = USES.get(group, {"model": {"class_path": "FedAvg"}}), []
    for package, version in (("somebodys", "1.2"), ("Somebodys", "1.3")):
        points = f"[pfl.{group}]\nthing = brought:Thing\n"
        install(package, points, version=version, brought="class Thing:\n    pass\n")
        recorded = identity.beside(config, None)
        assert recorded["plugins"] == ({"somebodys": version} if group in USES else {})
        digests.append(identity.digest(identity.of_run(config, recorded)))
    assert (digests[0] != digests[1]) == (group in USES)


def test_a_run_counts_as_none_of_a_plug_in_whose_name_is_the_projects(install):
    points = "[pfl.engines]\nthreads = brought:Thing\n[pfl.metrics]\nright = brought:Thing\n"
    install("somebodys", points, brought="class Thing:\n    pass\n")
    install("other", "[pfl.metrics]\nright = other_metric:Right\n")
    for config in ({"loop": {"engine": "threads"}}, {"data": {"metrics": ["right"]}}):
        assert identity.beside(config, None)["plugins"] == {}


ENGINE = """
from pfl.engines.sequential import SequentialEngine

class Mine(SequentialEngine):
    def setup(self, context):
        super().setup(context)
        return "mine"
"""


def test_a_run_with_plug_ins_engine_writes_its_version(install, tmp_path):
    """In a process of its own: engines are named once in a process."""
    points = "[pfl.engines]\nmine = brought_engine:Mine\nthreads = brought_engine:Mine\n"
    install("somebodys", points, version="3.4", brought_engine=ENGINE)
    words = ["--config", "quickstart", "--loop.engine=mine", "--loop.rounds=1", "--loop.name=run"]
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; from pfl.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "fit", *words, f"--loop.default_root_dir={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "pfl.engines.threads.ThreadsEngine of this project" in done.stderr
    environment = json.loads(next(tmp_path.rglob("environment.json")).read_text())
    assert environment["plugins"] == {"somebodys": "3.4"}
    assert environment["header"]["engine"] == "mine"
