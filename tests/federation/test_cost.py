"""Simulated seconds: what a round would take on clients with declared bandwidths and speeds."""

from dataclasses import replace

import pytest
import torch

from lightning_modules import FedAvg
from pfl.core.types import Broadcast, Upload
from pfl.federation.cost import Cost, LogNormal
from pfl.testing.federation import ToyFederation, fit
from pfl.testing.toy import mlp
from pfl.training import client_round


def test_simulated_seconds_by_hand():
    """The slowest: 400 bytes down at 100, 30 samples at 10, 200 bytes up at 50: 4 + 3 + 4 s."""
    found = ToyFederation(FedAvg(mlp()))
    jobs = [replace(found.job(c), broadcast=Broadcast({}, encoded=400)) for c in (0, 1)]
    results = {
        job.info.client: replace(client_round.train(found.context, found.job(0)), samples=samples)
        for job, samples in zip(jobs, (30, 10), strict=True)
    }
    uploads = [Upload(client, 1, {}, encoded=200) for client in (0, 1)]
    cost = Cost(up=50, down=100, speed=10)
    row = cost.of_round(jobs, results, uploads, 0, [{"comm/seconds_total": 2.0}])
    assert row == {"comm/seconds": 11.0, "comm/seconds_total": 13.0}
    assert cost.of_round([], {}, [], 0, []) == {"comm/seconds": 0.0, "comm/seconds_total": 0.0}


def test_spread_numbers_stay_with_a_client():
    cost = Cost(up=LogNormal(1000.0, 0.5), down=LogNormal(1000.0, 0.5), speed=7)
    drawn = torch.tensor([cost.of_client(3, client) for client in range(400)])
    assert cost.of_client(3, 9) == cost.of_client(3, 9) != cost.of_client(4, 9)
    logs = (drawn[:, 0] / 1000).log()
    assert logs.std().item() == pytest.approx(0.5, rel=0.15)
    assert abs(logs.mean().item()) < 0.1
    assert not drawn[:, 0].equal(drawn[:, 1])
    assert drawn[:, 2].unique().tolist() == [7]


def test_a_run_has_simulated_seconds_and_no_other_number_changes():
    plain, costed = fit(FedAvg(mlp())), fit(FedAvg(mlp()), cost=Cost(up=1e3, down=1e4, speed=100))
    assert costed.fingerprint == plain.fingerprint
    assert "comm/seconds" not in plain.history[-1]
    rows = costed.history
    assert rows[-1]["comm/seconds_total"] == pytest.approx(sum(row["comm/seconds"] for row in rows))
