"""A Lightning logger gets what a Trainer would give it, and what a federation knows besides."""

from __future__ import annotations

import pytest
import yaml
from lightning.pytorch.loggers import CSVLogger

from lightning_modules.fedavg import FedAvg
from pfl.federation.run import Callback
from tests.helpers.federation import SGD, fit
from tests.helpers.tables import csv_rows
from tests.helpers.toy import blobs, mlp


def test_it_gets_hyperparameters_metrics_summary_and_fingerprint(tmp_path):
    logger = CSVLogger(tmp_path)
    run = fit(FedAvg(mlp(), optimizer=SGD), blobs(), 2, loggers=[logger], seed=5)
    told = yaml.safe_load((tmp_path / "lightning_logs/version_0/hparams.yaml").read_text())
    assert told == {
        **{**yaml.safe_load(run.config), "header": run.header},
        "fingerprint": run.fingerprint,
    }
    assert told["loop"]["rounds"] == 2
    assert told["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.1
    first, second, last = csv_rows(tmp_path / "lightning_logs/version_0/metrics.csv")
    assert [row["step"] for row in (first, second, last)] == ["1", "2", "2"]
    for row, expected in ((first, run.history[0]), (second, run.history[1]), (last, run.summary)):
        for name, value in expected.items():
            assert float(row[name]) == pytest.approx(value)


class Ends(Callback):
    def on_round_end(self, run, result):
        raise KeyboardInterrupt


def test_a_logger_of_an_interrupted_run_is_closed(tmp_path):
    class Closed(CSVLogger):
        def finalize(self, status):
            self.status = status

    logger = Closed(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit(FedAvg(mlp()), blobs(), 2, loggers=[logger], callbacks=[Ends()])
    assert logger.status == "aborted"
