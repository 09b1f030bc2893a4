"""Configurations with mistakes: each runs, or is refused by one clear message."""

from __future__ import annotations

import pytest

from tests.campaign.mutate import CANARY, mutated
from tests.campaign.programs import config, dumped, sweep, table

pytestmark = pytest.mark.campaign


def test_a_mutated_configuration_runs_or_is_refused(case, draw, server, tmp_path):
    file, words = tmp_path / "c.yaml", ["fit", "--config", "c.yaml"]
    content = config(draw.randrange(1000), rounds=2)
    if case % 10 == 8:
        # The configuration is sound, and the table is not.
        file.write_bytes(mutated(content, draw) if draw.random() < 0.2 else dumped(content))
        file, words, content = tmp_path / "t.yaml", ["table", "t.yaml"], table()
    elif case % 10 == 9:
        file.write_bytes(dumped(content))
        file, words, content = tmp_path / "s.yaml", ["sweep", "s.yaml"], sweep()
    file.write_bytes(mutated(content, draw))
    answer = server.run(words, tmp_path)
    print(answer.code, answer.err)
    answer.check()
    assert not [*tmp_path.rglob(CANARY)], "what is no method was called"
