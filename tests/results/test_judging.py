"""The score that runs are judged by: of personal models, or of the global one where it is alone."""

from __future__ import annotations

import pytest

from lightning_modules.fedas import FedAS
from lightning_modules.fedavg import FedAvg
from lightning_modules.pfedvem import PFedVEM
from lightning_modules.univarfl import UniVarFL
from pfl.__main__ import main
from pfl.results.files import RunError
from pfl.results.find import common_score
from pfl.results.runs import RunFolder
from tests.helpers.discovery import build
from tests.helpers.federation import SGD, fit
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp
from tests.results.folders import write_run


def run_of(method, root, data=None):
    module = build(method, mlp(), optimizer=SGD)
    return fit(module, data or blobs(), 1, default_root_dir=str(root), name=method.__name__).folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return run_of(FedAvg, tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("method", [FedAS, PFedVEM, UniVarFL], ids=lambda m: m.__name__)
def test_a_methods_run_is_reported_and_compared(method, tmp_path, reference, capsys):
    run = run_of(method, tmp_path)
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.endswith("report.html (test accuracy, personal models)\n")
    assert "judged by test accuracy, personal models" in (run / "report.html").read_text("utf-8")
    assert main(["compare", str(reference), str(run)]) == 0
    assert "Test accuracy (personal models, last round)" in capsys.readouterr().out


def test_runs_are_judged_by_the_first_score_that_all_have(tmp_path):
    both, personal, pooled = (
        RunFolder.read(write_run(tmp_path / name, [[0.5]], group=group))
        for name, group in (("a", "personal"), ("b", "personal"), ("c", "pooled"))
    )
    both.metrics["test/pooled/acc"] = both.metrics["test/personal/acc"]
    assert common_score([both, personal]) == "test/personal/acc"
    assert common_score([both, pooled]) == "test/pooled/acc"
    with pytest.raises(RunError, match=parts("b has test/personal/acc ~ c has test/pooled/acc")):
        common_score([personal, pooled])
