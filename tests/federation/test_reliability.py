"""Tables of confidence: whose they can be."""

from __future__ import annotations

import pytest

from lightning_modules.fedavg import FedAvg
from pfl.core.task import MultiLabel, Regression
from pfl.federation.reliability import FILE, rows, tabulated
from pfl.federation.resume import Wanted
from pfl.loop import FederatedLoop
from tests.helpers.federation import fit
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp


@pytest.mark.parametrize("task", [Regression(), MultiLabel()], ids=["regression", "labels"])
def test_a_task_without_classes_has_no_confidence(task, tmp_path):
    run = fit(FedAvg(mlp(), task=task), blobs(task=task), 1, default_root_dir=str(tmp_path))
    wanted = Wanted(FederatedLoop(), FedAvg(mlp(), task=task), blobs(task=task), str(run.folder))
    with pytest.raises(ValueError, match=parts(f"a task with classes ~ {task}")):
        tabulated(wanted, FILE, rows)
    assert not (run.folder / FILE).exists()
