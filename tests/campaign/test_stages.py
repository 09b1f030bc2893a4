"""The moments at which the campaign cuts a run; part of the suite, unlike the campaign."""

from __future__ import annotations

import pytest

from tests.campaign import folders
from tests.campaign.programs import program
from tests.campaign.test_kills import RESUMING, run


@pytest.mark.long
def test_a_resumed_run_passes_through_every_stage_of_resuming(tmp_path):
    job = program(0)
    job.write(tmp_path / "r")
    for words in (job.words, (*job.words, *job.again)):
        code, stages = run(words, tmp_path / "r")
        assert code == 0, (tmp_path / "r" / "err.txt").read_text()
    # All its rounds are done.
    assert {name for name, _ in stages} >= {*RESUMING} - {"training", "rows", "checkpoint"}
    assert len(folders.finished(tmp_path / "r")) == 1
