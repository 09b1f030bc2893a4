"""What ``.ci/run`` and the list of the oldest versions promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent


def lines_of(name):
    """Return the lines of a file without comments."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_a_new_environment_gets_the_two_commands_of_the_readme_and_nothing_else():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"```bash\n(.*)\n```", readme)[:2]
    script = lines_of(".ci/run")
    start = max(i for i, line in enumerate(script) if "-m venv" in line)
    assert [line.strip() for line in script[start:] if "install" in line] == commands


def test_every_promise_is_asked_of_every_method():
    """The long tier has what the short one asks of a few; nothing of it is left out."""
    script = lines_of(".ci/run")
    assert "pip install -e '.[test]' && pytest -n auto" in script
    (long,) = (line for line in script if "-m long" in line)
    assert "tests/lightning_modules" in long
    assert not re.search(r" -k | --deselect| --ignore", long)


def project():
    """Return what ``pyproject.toml`` says of the project."""
    tomllib = pytest.importorskip("tomllib", reason="tomllib comes with Python 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_tests_of_every_optional_package_have_a_command():
    """Those of ``sweep`` belong to every test environment."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"^pip install .*'\.\[test,([\w,]+)\]' && pytest", text, re.MULTILINE)
    extras = {*project()["optional-dependencies"]} - {"dev", "docs", "sweep", "test"}
    assert sorted(",".join(named).split(",")) == sorted(extras)


def test_the_oldest_versions_are_the_lower_bounds():
    # Tools of developers and of the site are pinned by constraints.txt.
    extras = {**project()["optional-dependencies"], "dev": (), "docs": ()}
    wanted = [word for words in (project()["dependencies"], *extras.values()) for word in words]
    bounds = [re.match(r"([\w-]+)(?:\[\w+\])?>=([\w.]+)", word) for word in wanted]
    pinned = sorted(f"{bound[1]}=={bound[2]}" for bound in bounds if bound)
    assert lines_of("constraints-oldest.txt") == pinned


def test_no_floor_has_a_published_advisory():
    """The first versions without one: heap overflows in images, escapes of the sandbox, leaks."""
    mended = {
        **{"pillow": (12, 1, 1), "jinja2": (3, 1, 6), "scikit-learn": (1, 5)},
        **{"ray": (2, 52), "pytest": (9, 0, 3), "filelock": (3, 20, 3), "pyarrow": (14, 0, 1)},
    }
    floors = dict(line.split("==") for line in lines_of("constraints-oldest.txt"))
    for name, version in mended.items():
        assert tuple(map(int, floors[name].split("."))) >= version, name


def test_both_ends_of_the_versions_are_audited_and_tested_each_week():
    weekly = yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text("utf-8"))
    job = weekly["jobs"]["versions"]
    steps = [step.get("run", "") for step in job["steps"]]
    assert [one["constraints"] for one in job["strategy"]["matrix"]["include"]] == [
        "-c constraints-oldest.txt",
        "--upgrade",
    ]
    assert sum("pip-audit --" in step for step in steps) == 1
    assert sum("-m pytest" in step for step in steps) == 1


def test_skips_are_expected_only_of_modules_that_a_test_skips_without():
    """A skip whose module was renamed in its test would fail ``.ci/run`` after all else passed."""
    tests = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    asked = re.findall(r"importorskip\(\"([\w.]+)\"", "".join(tests))
    expected = re.findall(r"^could not import '(.+?)'", "\n".join(lines_of(".ci/skips.txt")), re.M)
    assert {*expected} <= {*asked}
