"""Cases of the campaign: each is a number, from which everything random of it is drawn."""

from __future__ import annotations

import random
import shutil

import pytest

from tests.campaign import folders
from tests.campaign.programs import config, dumped
from tests.campaign.server import Server

# By test module: cases in a default and in a full campaign. Together the damaged and hostile
# things and the configurations are 520 and 2,200 files.
CASES = {
    "test_kills": (40, 200),
    "test_configurations": (342, 1401),
    "test_checkpoints": (14, 57),
    "test_files": (20, 100),
    "test_attacks": (60, 240),
    "test_sites": (40, 200),
    "test_absent": (100, 400),
}


def pytest_generate_tests(metafunc):
    """Make the cases of a test that asks for their number."""
    if "case" in metafunc.fixturenames:
        default, full = CASES[metafunc.module.__name__.rpartition(".")[2]]
        count = full if metafunc.config.getoption("--campaign") == "full" else default
        metafunc.parametrize("case", range(count), ids=lambda number: f"case-{number}")


@pytest.fixture
def draw(request, case):
    """What a case is drawn from; told where the case fails."""
    seed = request.config.getoption("--campaign-seed")
    print(f"seed {seed}, case {case}")
    return random.Random(f"{seed}/{request.module.__name__}/{case}")


@pytest.fixture(scope="module")
def server():
    """The process in which the commands of a module run."""
    process = Server()
    yield process
    process.close()


@pytest.fixture(scope="module")
def begin(server, tmp_path_factory):
    """Make a run of one round less than planned; return it and the mark that it would end with."""

    def run(number, rounds, **loop):
        folder = tmp_path_factory.mktemp("begun") / str(number)
        folder.mkdir()
        content = config(number, rounds=rounds)
        content["loop"] |= loop
        (folder / "c.yaml").write_bytes(dumped(content))
        words = ["fit", "--config", "c.yaml"]
        assert server.run([*words, f"--loop.rounds={rounds - 1}"], folder).code == 0
        whole = shutil.copytree(folder, folder.with_name("whole"))
        assert server.run([*words, "--ckpt_path", "last"], whole).code == 0
        (mark,) = folders.finished(whole)
        return folder, mark

    return run
