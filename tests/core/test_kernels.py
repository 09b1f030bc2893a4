"""Runs compute with kernels that repeat, and leave those of the process as they were."""

from __future__ import annotations

import json

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from pfl.core.devices import kernels, repeatable
from pfl.federation.run import Callback
from pfl.loop import FederatedLoop
from tests.helpers.federation import SGD
from tests.helpers.toy import blobs, mlp

REPEATABLE = {"cudnn_deterministic": True, "cudnn_benchmark": False, "tf32": False}


@pytest.mark.parametrize(("precision", "tf32"), [("highest", False), ("high", True)])
def test_convolutions_use_tf32_where_products_of_matrices_may(precision, tf32):
    before, asked = kernels(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with repeatable():
            assert kernels() == REPEATABLE | {"tf32": tf32}
    finally:
        torch.set_float32_matmul_precision(asked)
    assert kernels() == before


class Seen(Callback):
    def on_round_end(self, run, result):
        self.kernels = kernels()
        if result.round == 2:
            raise ZeroDivisionError


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_records_them_and_puts_the_old_ones_back(rounds, tmp_path):
    before, seen = kernels(), Seen()
    loop = FederatedLoop(rounds, default_root_dir=str(tmp_path), callbacks=[seen], progress=False)
    try:
        loop.fit(FedAvg(mlp(), optimizer=SGD), blobs())
    except ZeroDivisionError:
        assert rounds == 2
    assert seen.kernels == REPEATABLE
    assert kernels() == before
    (file,) = tmp_path.rglob("environment.json")
    assert REPEATABLE.items() <= json.loads(file.read_text()).items()
