"""The runs of a table: shared by equal cells, resumed, retried, and never computed twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pfl.extras.papers.cells import expand
from pfl.extras.papers.plan import plan
from pfl.extras.papers.reader import read
from tests.extras.papers.conftest import LR, RUNS, finished, snapshot, table, write
from tests.helpers.messages import says


def folders():
    """Those of all runs, whether they came to their end or not."""
    return [path for path in RUNS.glob("*/*") if path.is_dir()]


# Sharing.


def test_equal_cells_share_a_run_within_a_table_and_between_tables(fits):
    write(columns=None, rows={"a": None, "b": {"set": {LR: 0.05}}})
    assert table() == 0
    assert fits == [(1, 1)]
    # Another table, with the configuration in another order and spelling, in another folder.
    Path("sub").mkdir()
    config = yaml.safe_load(Path("c.yaml").read_text())
    config["model"]["class_path"] = "lightning_modules.fedper.FedPer"
    content = {key: config[key] for key in ("data", "model", "loop")}
    Path("sub", "d.yaml").write_text(yaml.safe_dump(content))
    write("sub/u.yaml", config="d.yaml", columns=None, rows={"c": None})
    assert table("--loop.engine=sequential", file="sub/u.yaml") == 0
    assert fits == [(1, 1)]
    assert len(list(RUNS.iterdir())) == 1
    write("v.yaml", columns=None, rows={"d": {"set": {LR: 0.06}}})
    assert table(file="v.yaml") == 0
    assert fits == [(1, 1), (1, 1)]
    assert len(finished()) == 2


def test_flags_hold_for_all_cells_and_win_over_the_table():
    write()
    assert table(f"--{LR}=0.3", "--loop.rounds", "1", "--seeds", "5", "5") == 0
    # Both rates are now the same run.
    assert len(finished()) == 2
    for folder in finished():
        config = yaml.safe_load((folder / "config.yaml").read_text())
        rate = config["model"]["init_args"]["optimizer"]["init_args"]["lr"]
        assert (config["seed"], config["loop"]["rounds"], rate) == (5, 1, 0.3)


def test_a_tenth_of_a_run_is_all_that_a_killed_process_loses():
    write(columns=None, rows={"FedPer": None})
    described = read(Path("t.yaml"))

    def every(*overrides):
        (run,) = plan(described, expand(described), [1], 1, overrides).runs.values()
        return run.experiment.values.loop.checkpoint_every

    assert [every(f"--loop.rounds={rounds}") for rounds in (2, 50, 400)] == [1, 5, 10]
    # Who wants less is heard.
    assert every("--loop.rounds=50", "--loop.checkpoint_every=3") == 3


# Going on.


def test_a_table_that_was_killed_half_way_computes_nothing_again(fits, failing, capsys):
    """The second of three runs is interrupted after its first of two rounds."""
    write(columns=None, rows={"FedPer": None}, seeds=[1, 2, 3])
    failing(KeyboardInterrupt(), seed=2, number=1)
    assert table() == 130
    said = capsys.readouterr().err
    assert "interrupted: 1 of 3 runs are finished" in said
    assert said.endswith("To resume:\npfl table t.yaml\n")
    (first,) = finished()
    (second,) = {file.parents[1] for file in RUNS.glob("*/*/checkpoints/last.ckpt")} - {first}
    before = snapshot(first)

    failing(None)
    fits.clear()
    assert table() == 0
    # The second run goes on with its second round, in its own folder.
    assert fits == [(2, 2), (3, 1)]
    assert second in finished()
    assert len(folders()) == len(finished()) == 3
    assert snapshot(first) == before

    # The interrupted run is what an unbroken one is.
    assert table("--seeds", "2", "--loop.default_root_dir=other") == 0
    (unbroken,) = finished("other")
    for file in ("summary.json", "config.yaml"):
        mine, whole = (folder.joinpath(file).read_text() for folder in (second, unbroken))
        assert mine.replace(str(RUNS), "other") == whole
    assert (second / "clients.csv").read_text() == (unbroken / "clients.csv").read_text()


def test_a_table_that_was_killed_between_two_runs(fits, failing):
    """A run without a checkpoint is removed and begun anew; a third call runs nothing."""
    write(columns=None, rows={"FedPer": None}, seeds=[1, 2])
    failing(KeyboardInterrupt(), seed=2, number=0)
    assert table() == 130
    (first,) = finished()
    before = snapshot(first)
    assert len(folders()) == 2
    failing(None)
    fits.clear()
    assert table() == 0
    assert fits == [(2, 1)]
    assert len(folders()) == len(finished()) == 2
    assert snapshot(first) == before
    before = snapshot(RUNS)
    assert table() == 0
    assert fits == [(2, 1)]
    assert snapshot(RUNS) == before


# What goes wrong.


def test_a_failing_cell_is_told_of_and_retried_while_the_others_go_on(fits, capsys):
    write(columns={"rate": {"set": LR, "values": [-1.0, 1e30, 0.1]}}, rows={"FedPer": None})
    assert table("--out", "t.csv") == 2
    said = capsys.readouterr()
    assert says(said.err, "pfl table: error: 2 of 3 runs ~ \n")
    assert "Traceback" not in said.err
    assert "- [1]" in said.out
    said_of_rate = f"[1] --{LR}: Invalid learning rate: -1.0."
    assert said_of_rate in " ".join(said.out.split())
    assert "[2] round 1, client" in said.out
    assert "not finite" in said.out
    assert len(finished()) == 1
    before, made = snapshot(finished()[0]), len(fits)

    assert table() == 2
    # The finished one is not among them.
    assert len(fits) - made == made - 1
    assert snapshot(finished()[0]) == before


def test_a_damaged_run_stops_no_other(capsys):
    write(columns=None, rows={"FedPer": None}, seeds=[1, 2])
    assert table("--seeds", "1") == 0
    (first,) = finished()
    (first / "metrics.csv").write_text("round\nx\n")
    assert table() == 0
    said = capsys.readouterr().out
    assert f"[1] {first}/metrics.csv is not a table of numbers" in " ".join(said.split())
    assert len(finished()) == 2


@pytest.mark.campaign
@pytest.mark.parametrize("how", ["a worker is killed", "the first process is asked to end"])
def test_a_table_of_several_workers_that_is_broken_off_goes_on(how, fits):
    """What ended is saved, nobody is left behind, and the runs are what unbroken ones are."""
    write(columns=None, rows={"FedPer": None}, seeds=[1, 2])
    words = ["table", "t.yaml", "--workers=2", "--loop.rounds=120"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    first = subprocess.Popen([sys.executable, "-m", "pfl", *words], env=environment, **pipes)

    def children(process):
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [int(one) for one in found if "forkserver" in _words(one)]

    def workers():
        (server,) = children(first.pid)
        return children(server)

    while len([*RUNS.glob("*/*/checkpoints/last.ckpt")]) < 2:
        assert first.poll() is None
        time.sleep(0.05)
    started = workers()
    if how == "a worker is killed":
        os.kill(started[0], signal.SIGKILL)
    else:
        first.terminate()
    _, said = first.communicate(timeout=100)
    assert first.returncode == (2 if how == "a worker is killed" else 128 + signal.SIGTERM)
    assert (b"a worker was killed, perhaps" in said) == (how == "a worker is killed")
    assert not any("forkserver" in _words(one) for one in started)
    assert table("--loop.rounds=120") == 0
    assert all(number > 1 for _, number in fits)
    assert table("--loop.rounds=120", "--loop.default_root_dir=other") == 0
    for mine, whole in zip(finished(), finished("other"), strict=True):
        assert (mine / "clients.csv").read_text() == (whole / "clients.csv").read_text()


def _words(process):
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""
