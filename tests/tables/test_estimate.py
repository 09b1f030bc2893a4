"""Estimates: each run is told of as it goes."""

from __future__ import annotations

import pytest

from tests.tables.conftest import table, write


@pytest.mark.usefixtures("_in_a_folder_of_its_own")
def test_each_run_is_told_of_as_it_goes(capsys):
    write(columns=None)
    assert table("--dry-run") == 0
    said = capsys.readouterr()
    for name in ("FedPer", "FedAvg"):
        assert f"{name}, seed 1: missing, " in said.err
    assert "together" in said.out
