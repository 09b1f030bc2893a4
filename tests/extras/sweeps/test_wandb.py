"""W&B in a sweep: only if asked for, and then without a word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.extras.sweeps.conftest import CONFIG, LR, sweep, write


def test_each_point_writes_its_run_and_prints_nothing_of_it(tmp_path, monkeypatch, capfd):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):  # there may be no home
        monkeypatch.setenv(name, str(tmp_path / name))
    # W&B reads its environment once a process; an earlier test may have been without it.
    wandb.teardown()
    Path("c.yaml").write_text(CONFIG.replace("loop:", "loop:\n  callbacks: [{class_path: WandB}]"))
    write({LR: {"values": [0.1]}})
    try:
        assert sweep() == 0
    finally:
        wandb.teardown()
    said = capfd.readouterr()
    assert len([*Path("runs").glob("**/offline-run-*")]) == 1
    assert "wandb" not in said.out + said.err
    assert "WANDB_SILENT" not in os.environ
