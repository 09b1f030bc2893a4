"""Random faults at five sites: each run goes on, as if the clients that fail were absent."""

from __future__ import annotations

import pytest

from tests.extras.sites.absent import ROUNDS, check_faults, method, random_faults

pytestmark = pytest.mark.campaign


def test_a_run_with_random_faults_ends_with_the_numbers_of_the_survivors(case, draw, tmp_path):
    share = draw.choice([0.05, 0.1, 0.3, 0.6])
    run = check_faults(tmp_path, method(draw), random_faults(draw, share))
    assert run.round == ROUNDS
