"""What training steps log is recorded for each client under every engine, and changes nothing."""

from __future__ import annotations

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.federation.sampling import UniformSampler
from tests.engines.agreement import Logs, fit
from tests.engines.test_workers import OneWorker
from tests.helpers.federation import SGD
from tests.helpers.messages import parts
from tests.helpers.tables import csv_rows
from tests.helpers.toy import Line, lines, mlp


class LogsWeight(FedAvg):
    """Descends ``x w`` and logs w before each step."""

    def losses(self, batch):
        self.log("w", self.net.w.sum())
        return {"slope": (batch.x * self.net.w).mean()}


def test_each_client_has_the_mean_over_its_steps(tmp_path):
    """w = 1 and 1 - 0.1 x: clients with slopes 2 and 3 log (1 + 0.8) / 2 and (1 + 0.7) / 2."""
    module = LogsWeight(Line(), optimizer=SGD, epochs=2)
    data = lines(2.0, 3.0)
    loop = {"default_root_dir": str(tmp_path), "sampler": UniformSampler()}
    run = fit(module, SequentialEngine(), 1, data, **loop)
    assert run.history[0]["log/w"] == pytest.approx(0.875)
    rows = csv_rows(run.folder / "clients.csv")
    assert [float(row["log/w"]) for row in rows] == pytest.approx([0.9, 0.85])


def test_what_is_logged_keeps_no_graph_alive():
    module = LogsWeight(Line(), optimizer=SGD)
    module.collect_logged(True)
    module.log("w", 2 * module.net.w.sum())
    assert not module.take_logged()["w"].requires_grad


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (SequentialEngine(), "sequential"),
        (ThreadsEngine(2), "threads"),
        (VectorisedEngine(), "vectorised"),
        (OneWorker(), "one worker"),
    ],
)
def test_every_engine_records_it_and_no_number_changes(engine, name):
    found = fit(Logs(mlp(), optimizer=SGD), engine, precision="64-true")
    plain = fit(FedAvg(mlp(), optimizer=SGD), engine, precision="64-true")
    assert name in found.header["engine"]
    assert found.fingerprint == plain.fingerprint
    reference = fit(Logs(mlp(), optimizer=SGD), SequentialEngine(), precision="64-true")
    for row, expected in zip(found.latest.clients, reference.latest.clients, strict=True):
        names = {key for key in row if key.startswith("log/")}
        assert names == ({"log/mass", "log/one", "log/lost"} if row["trained"] else set())
        for key in names:
            assert row[key] == pytest.approx(expected[key], rel=1e-12, nan_ok=True)
            assert key != "log/one" or row[key] == 1.0


class ForgetsPadding(FedAvg):
    """Logs a mean that counts padded samples."""

    def losses(self, batch):
        self.log("mean", self(batch.x).mean())
        return super().losses(batch)


def test_a_number_that_stacking_would_change_is_recorded_one_client_at_a_time():
    run = fit(ForgetsPadding(mlp(), optimizer=SGD), VectorisedEngine(), 1)
    assert "gives different numbers when stacked: the logged mean" in run.header["engine"]


def test_a_value_that_is_no_number_is_refused():
    class LogsOutputs(FedAvg):
        def losses(self, batch):
            self.log("outputs", torch.zeros(3))
            return super().losses(batch)

    with pytest.raises(ValueError, match=parts("self.log('outputs', ...) ~ one number ~ tensor")):
        fit(LogsOutputs(mlp(), optimizer=SGD), SequentialEngine(), 1)
