"""The progress that a run shows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from datamodules import TensorData
from lightning_modules.fedavg import FedAvg
from pfl.callbacks.progress import NotebookBars, ProgressBar, closing_sheet
from pfl.core.task import Binary
from pfl.federation.run import Callback
from pfl.loop import FederatedLoop
from pfl.results.find import common_score, find_runs
from tests.helpers.toy import blobs, mlp


class Stops(Callback):
    """Ends the run after its second round."""

    def on_round_end(self, run, result):
        self.should_stop = result.round == 2


def test_the_bar_of_clients_is_full_after_each_round_and_begins_anew_with_the_next():
    bar, seen = ProgressBar(), []

    class Looks(Callback):
        def on_result(self, run, result):
            seen.append((bar._progress.tasks[1].completed, bar._progress.tasks[1].total))

        def on_round_end(self, run, result):
            task = bar._progress.tasks[1]
            seen.append((task.completed, task.total))

    FederatedLoop(5, progress=False, callbacks=[bar, Looks(), Stops()]).fit(FedAvg(mlp()), blobs())
    assert seen == [(1, 3), (2, 3), (3, 3), (3, 3)] * 2


@pytest.mark.parametrize(
    ("rounds", "said"),
    [(400, "about 3.3 h of training here; --loop.rounds=5 for a look"), (4, None)],
)
def test_a_long_run_says_after_its_first_client_how_long_it_takes(
    rounds, said, monkeypatch, capsys
):
    """The first of three clients takes 10 s: 400 rounds of 30 s."""
    now = 0.0
    monkeypatch.setattr("pfl.callbacks.progress.time.perf_counter", lambda: now)

    class Slow(Callback):
        def on_result(self, run, result):
            nonlocal now
            now += 10.0

        def on_round_end(self, run, result):
            self.should_stop = True

    loop = FederatedLoop(rounds, progress=False, callbacks=[Slow(), ProgressBar()])
    loop.fit(FedAvg(mlp()), blobs())
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("about")]
    assert lines == ([said] if said else [])


def test_bars_in_a_notebook_are_text_that_is_replaced(monkeypatch):
    """They are shown anew after a fifth of a second, and at the end."""
    now, shown = 0.0, []
    monkeypatch.setattr("pfl.callbacks.progress.time.perf_counter", lambda: now)

    def display(told, *, raw, display_id):
        assert raw
        assert display_id
        shown.append(told["text/plain"])
        return SimpleNamespace(update=lambda told, raw: shown.append(told["text/plain"]))

    found = SimpleNamespace(display=display)
    monkeypatch.setattr("pfl.callbacks.progress.import_module", lambda name: found)
    with NotebookBars("{task.completed}/{task.total}") as bars:
        task = bars.add_task("round", total=4)
        for moment in (0.1, 0.3, 0.4):
            now = moment
            bars.advance(task)
    assert shown == ["", "2/4", "3/4"]


def test_the_closing_table_has_the_score_by_which_runs_are_compared(tmp_path):
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    tensors = {"x": x, "y": (x.sum(1) > 0).long(), "client": torch.arange(60) % 2}
    loop = FederatedLoop(1, progress=False, default_root_dir=tmp_path, name="two")
    run = loop.fit(FedAvg(nn.Linear(5, 2)), TensorData(tensors, task=Binary()))
    told = dict(closing_sheet(run, "").rows)
    judged = common_score(find_runs([tmp_path]))
    assert judged == "test/personal/auroc"
    assert told["personal AUROC"] == f"{run.summary[f'{judged}/last']:.4f}"
