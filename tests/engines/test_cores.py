"""Cores by mask and quota, shared among runs."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace

import pytest

from lightning_modules.fedavg import FedAvg
from pfl.engines import auto, cores
from pfl.engines.named import make_engine
from pfl.federation.run import Callback
from pfl.loop import FederatedLoop
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp


@pytest.fixture
def eight(monkeypatch, tmp_path):
    """A mask of eight cores, no cgroup, and no other run on the machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "CGROUP", tmp_path / "none")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return monkeypatch


def test_the_affinity_mask_counts_and_the_environment_does_not(eight):
    eight.setenv("OMP_NUM_THREADS", "1")
    assert cores.usable() == 8


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "9900000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_a_quota_counts_rounded_up(eight, tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / "cg" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cg" / name).write_text(text + "\n")
    eight.setattr(cores, "CGROUP", tmp_path / "cg")
    assert cores.usable() == expected


def test_runs_share_the_cores_and_leave_them_to_others(eight):
    """8, then 8 / 2, then 8 / 3; one again where all others have gone."""
    with cores.Share() as first, cores.Share() as second, cores.Share() as third:
        assert (first, second, third) == (8, 4, 2)
    with cores.Share() as first, cores.Share(wanted=3) as second:
        assert (first, second) == (8, 3)


def test_every_run_has_a_core_at_least_and_leaves_nothing_behind(eight, tmp_path):
    eight.setattr(cores, "usable", lambda: 1)
    closed, close = [], os.close
    eight.setattr(os, "close", lambda descriptor: closed.append(descriptor) or close(descriptor))
    with cores.Share() as first, cores.Share() as second, cores.Share(wanted=3) as third:
        assert (first, second, third) == (1, 1, 3)
        closed.clear()
    assert len(closed) == 3
    assert not [*tmp_path.rglob("run-*")]
    eight.setattr(cores, "usable", lambda: 8)
    with cores.Share() as alone:
        assert alone == 8


class Beside(Callback):
    """Records how many cores a run would get that began beside a round."""

    def __init__(self):
        self.found = []

    def on_round_end(self, run, result):
        with cores.Share() as count:
            self.found.append(count)


@pytest.mark.parametrize("engine", ["auto", "threads", "processes"])
def test_a_suspended_run_leaves_its_cores_to_others_until_its_next_round(eight, engine):
    eight.setattr(auto, "TINY_STEP", 0)
    eight.setattr(auto, "CACHED", 0)
    beside = Beside()
    loop = FederatedLoop(2, engine=engine, progress=False, callbacks=[beside])
    first, second = (one.rounds_of(FedAvg(mlp()), blobs()) for one in (loop, replace(loop)))
    for rounds in (first, second):
        run, _ = next(rounds)
        assert "3 clients side by side" in run.header["engine"]
    assert beside.found == []
    next(first)
    assert beside.found == [4]
    first.close()
    second.close()
    with cores.Share() as alone:
        assert alone == 8


def test_what_a_killed_run_left_behind_takes_no_core(eight, tmp_path):
    with cores.Share():
        (folder,) = tmp_path.glob("pfl-cores-*/*")
    (folder / "run-killed").touch()
    with cores.Share() as alone:
        assert alone == 8
        assert not (folder / "run-killed").exists()


def test_workers_are_for_engines_that_have_some():
    assert make_engine("auto", 3).workers == 3
    told = "sequential ~ workers=2 ~ auto, threads, processes, ray"
    with pytest.raises(ValueError, match=parts(told)):
        FederatedLoop(engine="sequential", workers=2)
    with pytest.raises(ValueError, match=parts("workers=2 ~ engine itself")):
        FederatedLoop(engine=make_engine("threads"), workers=2)
