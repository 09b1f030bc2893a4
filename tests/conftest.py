"""Tests run on one thread of the CPU, and draw the same examples in every run.

Their networks are too small to be shared out over busy cores. A failure is a change's, then, and
not an example's; ``pytest --hypothesis-profile=explore`` draws new ones.
"""

import os
import re
import shutil
import signal
import sys
from collections import Counter
from functools import cache
from importlib import metadata
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from _pytest.doctest import DoctestModule
from hypothesis import settings
from lightning.fabric.utilities import registry
from torch.utils.data import BatchSampler, DataLoader

from pfl.__main__ import main
from pfl.core import devices
from tests.tiers import is_long

LEFT = pytest.StashKey[int]()

settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile("repeat")

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# The campaign kills processes, and limits their memory, as POSIX does.
collect_ignore = ["campaign"] if os.name == "nt" else []

# A shell starts background jobs deaf to Ctrl-C, and so would be the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _on_the_cpu():
    """Take the CPU where no device is named, also where Lightning would find a GPU.

    Its numbers are those that tests expect. The tests of a GPU name it; programs that tests start
    see no CUDA device.
    """
    usual = devices.fabric

    def fabric(accelerator, *options):
        return usual("cpu" if accelerator == "auto" else accelerator, *options)

    torch.cuda.is_available()  # From here on, CUDA reads no variable of this process.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "fabric", fabric)
        # Every Fabric asks all installed packages for callbacks, a sixth of a small federation.
        patch.setattr(registry, "entry_points", cache(registry.entry_points))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Seed torch's default stream before a test and its fixtures, for those that draw from it."""
    torch.manual_seed(0)


_LOADERS = {
    (kind, name): getattr(kind, name)
    for kind in (DataLoader, BatchSampler)
    for name in ("__init__", "__setattr__", "__delattr__")
}


@pytest.fixture(autouse=True)
def _loaders_as_they_were():
    """Fail a test after which Lightning has left loaders replaced, and give them back."""
    yield
    left: list[str] = []
    for (kind, name), usual in _LOADERS.items():
        if getattr(kind, name) is not usual:
            left.append(f"{kind.__name__}.{name}")
            setattr(kind, name, usual)
    assert not left, "Lightning left them replaced, which breaks the loaders of later tests"


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Work in a folder of the test's own; what a command adds to the module path is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])


def pytest_addoption(parser):
    """Add the options of the campaign (see ``tests/campaign``) and of ``.ci/run``."""
    parser.addoption("--campaign", choices=("default", "full"), default="default")
    parser.addoption("--campaign-seed", type=int, default=0, metavar="N")
    parser.addoption(
        "--expected-skips",
        type=Path,
        metavar="FILE",
        help="count the skips by reason, and fail if a reason is not a line of this file",
    )


def _check_entry_points():
    """Refuse an installation from before the entry points of pyproject.toml, which brings rooms."""
    try:
        import tomllib
    except ImportError:  # Python 3.10
        return
    content = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(content)["project"]["entry-points"]
    for group, points in declared.items():
        found = {one.name: one.value for one in metadata.entry_points(group=group)}
        if not points.items() <= found.items():
            raise pytest.UsageError(
                f"the entry points {group} of pyproject.toml are not installed: repeat pip install "
                "-e . or, without installing, python setup.py -q egg_info"
            )


def pytest_configure(config):
    """Check the installation, and print the twenty slowest of the long tier."""
    _check_entry_points()
    if config.option.markexpr == "long" and config.option.durations is None:
        config.option.durations = 20


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Look for examples in docstrings of the source alone: those of tests have none."""
    found = yield
    return [collector for collector in found if not isinstance(collector, DoctestModule)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the long tier, and count what is left to it."""
    own = re.compile(r"tests/lightning_modules/test_(?!contract)\w+\.py::")
    for item in items:
        parameters = {} if own.match(item.nodeid) else getattr(item, "callspec", None)
        apart = any(item.get_closest_marker(name) for name in ("slow", "campaign"))
        if parameters and not apart and is_long(parameters.params):
            item.add_marker(pytest.mark.long)
    if config.option.markexpr.startswith("not long"):
        config.stash[LEFT] = sum(item.get_closest_marker("long") is not None for item in items)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left"] = config.stash.get(LEFT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Take over what a worker of xdist has counted: each of them collects all tests."""
    # One that crashed has told nothing.
    node.config.stash[LEFT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(terminalreporter, config):
    """Say what was left, and how to run it."""
    if left := config.stash.get(LEFT, 0):
        terminalreporter.write_line(f"{left} long tests were left: pytest -n auto -m long")


def pytest_sessionfinish(session):
    """Compare the reasons of skipped tests with those that are expected."""
    file = session.config.getoption("expected_skips")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if file is None or reporter is None:  # a worker of xdist reports nothing
        return
    expected = file.read_text(encoding="utf-8").splitlines()
    skipped = reporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    reporter.write_sep("=", "skips by reason")
    for reason, count in sorted(reasons.items()):
        note = "" if reason in expected else f" (not in {file})"
        reporter.write_line(f"{count} {reason}{note}")
    if not set(reasons) <= {*expected}:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="module")
def finished(request, tmp_path_factory):
    """The folder of a run of ``FIT``: what a file of tests gives to ``pfl fit``.

    Its ``CONFIG``, if there is one, is the text of ``c.yaml``.
    """
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WANDB_MODE", "disabled")
        if text := getattr(request.module, "CONFIG", ""):
            Path("c.yaml").write_text(text)
        assert main(["fit", *request.module.FIT]) == 0
    return folder


@pytest.fixture
def run(finished, own_folder):
    """The folder of the run, in the test's own folder."""
    shutil.copytree(finished, own_folder, dirs_exist_ok=True)
    (folder,) = Path("runs").glob("*/*")
    return folder
