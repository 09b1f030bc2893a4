"""When replaced parameters are tested."""

from __future__ import annotations

import pytest

from lightning_modules.fedavg import FedAvg
from pfl.callbacks.early_stopping import EarlyStopping
from pfl.extras.papers.fisher import ReplacedParameters
from pfl.loop import FederatedLoop
from pfl.results.files import read_table
from tests.helpers.toy import blobs, mlp


@pytest.mark.parametrize("turn", [0, 1])
def test_parameters_are_replaced_where_a_run_ends(turn, tmp_path):
    """Whoever ends it, and in whichever order: a run of nine rounds in its third or fourth."""
    for patience in (2, 3):
        callbacks = [EarlyStopping("round", patience, mode="min")]
        callbacks.insert(turn, ReplacedParameters([0.0]))
        loop = FederatedLoop(9, callbacks=callbacks, default_root_dir=str(tmp_path))
        path = None if patience == 2 else "last"
        run = loop.fit(FedAvg(mlp()), blobs(), ckpt_path=path)
        assert run.round == patience + 1
        assert {*read_table(run.folder / "replaced.csv")["round"]} == {run.round}
