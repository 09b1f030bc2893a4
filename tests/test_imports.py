"""The imports between parts, and the names that packages export."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from pfl.cli.catalogue import listed
from tests.helpers.messages import parts

ROOT = Path(__file__).parent.parent
PACKAGES = ("pfl", "lightning_modules", "datamodules")
FACADES = ("pfl.method", "lightning_modules.steps", "lightning_modules.base")


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def imports(file):
    """Return the module and names of every ``from ... import`` in a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [(node.module, [alias.name for alias in node.names]) for node in nodes]


def test_the_mainland_loads_no_room():
    """Each room can be removed, and costs nothing until it is used."""
    parts = ("campaign", "verification", "engines.transport", "engines.processes", "engines.ray")
    rooms = (*(f"pfl.{one}" for one in parts), "datamodules.tables")
    data = [f"datamodules.{file.stem}" for file in (ROOT / "datamodules").glob("[a-z]*.py")]
    kernel = ("pfl.engines.auto", "pfl.testing.contract", *data)
    loaded = f"import sys, pfl.cli.runs; print(*sys.modules); import {', '.join(kernel)}"
    code = f"{loaded}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    command, found = map(str.split, done.stdout.splitlines())
    # What computes rounds is loaded when a run is prepared.
    assert "pfl.loop" in command
    assert not {"pfl.federation.rounds", "pfl.training.phases", "pfl.training.context"} & {*command}
    assert {"pfl.training.phases", "datamodules.folder"} <= {*found}
    assert [name for name in found if name.startswith(rooms)] == []


def test_imports_keep_to_the_layers_that_pyproject_declares():
    """In a process of its own, as the check sets up logging anew and closes what others opened."""
    pytest.importorskip("importlinter")
    run("import sys; from importlinter import cli; sys.exit(cli.lint_imports(no_cache=True))")


def offered(module):
    """Return what type checkers see in a module that only passes names on, as (module, name).

    Nothing in one that was removed.
    """
    found, spec = [], find_spec(module)
    for home, names in imports(Path(spec.origin)) if spec else ():
        if home.startswith(("typing", "pfl.imports")):
            continue
        found += offered(home) if names == ["*"] else [(home, name) for name in names]
    return found


@pytest.mark.parametrize("package", [*PACKAGES, *FACADES])
def test_a_package_exports_at_run_time_what_type_checkers_see(package):
    """Each name once: with two homes, one would hide the other."""
    exported = import_module(package).__all__
    seen = offered(package)
    assert sorted(name for _, name in seen) == exported
    for module, name in seen:
        assert getattr(import_module(package), name) is getattr(import_module(module), name)
    assert set(dir(import_module(package))) == set(exported)
    with pytest.raises(AttributeError, match=parts(f"'{package}' ~ 'Nothing'")):
        import_module(package).Nothing  # noqa: B018


def test_every_method_and_network_is_exported():
    names = {item.name for kind in ("methods", "nets") for item in listed(kind)}
    assert not {*names, "SplitNet"} - set(import_module("lightning_modules").__all__)


def test_a_method_imports_by_name_only_what_base_does_not_offer():
    """Another method, or a part that serves it alone."""
    base = import_module("lightning_modules.base")
    offenders = [
        f"{file.name}: {module}.{name}"
        for file in (ROOT / "lightning_modules").glob("*.py")
        if file.stem not in {"__init__", "base"}
        for module, names in imports(file)
        if module.startswith(PACKAGES)
        for name in names
        if getattr(base, name, None) is getattr(import_module(module), name)
    ]
    assert offenders == []


@pytest.mark.long
def test_nothing_inside_the_project_imports_an_exported_name():
    """It would pull the whole package through its ``__init__``, and hide where a name lives."""
    offenders = [
        f"{file.relative_to(ROOT)}: {module}.{name}"
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for module, names in imports(file)
        if module in PACKAGES
        for name in names
        if name in import_module(module).__all__
    ]
    assert not offenders


def test_importing_pfl_imports_nothing_heavy():
    run("import sys, pfl; assert not {'torch', 'lightning', 'numpy', 'rich'} & set(sys.modules)")


@pytest.mark.long
def test_a_name_imports_only_what_it_needs():
    """A process of its own imports torch and Lightning anew: ten seconds on busy cores."""
    run(
        "import sys\n"
        "from lightning_modules import FedPer, CNN2\n"
        "from pfl import FederatedLoop, UniformSampler\n"
        "heavy = {'lightning_modules.fedas', 'sklearn', 'wandb', 'ray'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )


def test_no_string_hides_an_import_from_the_layers():
    """Only the entry point names functions of its commands, and it stands on the highest floor."""
    hidden = [
        f"{file.relative_to(ROOT)}: {ast.unparse(node)}"
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
        if node.args and ast.unparse(node.args[0]).lstrip("f'").startswith(PACKAGES)
    ]
    assert [one for one in hidden if not one.startswith("pfl/__main__.py")] == []
