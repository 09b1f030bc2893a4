"""Numbers that are not finite, or cannot be repeated: told with whom they are from."""

from __future__ import annotations

import json
import math
import re
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.fedproto import FedProto
from lightning_modules.nets import SplitNet
from pfl.core.failure import NonFiniteError
from pfl.core.server import Server, ServerState
from pfl.federation import checkpoint, soundness
from pfl.federation.sampling import BernoulliSampler, UniformSampler
from pfl.loop import FederatedLoop
from pfl.results.runs import RunFolder
from tests.helpers.federation import SGD, fit
from tests.helpers.messages import parts
from tests.helpers.tables import csv_rows
from tests.helpers.toy import blobs, mlp, normed

NAN, INF = math.nan, math.inf
EVERYONE = UniformSampler()


def rows_of(run):
    return csv_rows(run.folder / "clients.csv")


# The server's aggregate.


class NoWeights(Server):
    """From round two on, its weights are not numbers."""

    def begin(self, state, senders):
        self.round = state.round + 1
        return super().begin(state, senders)

    def weight(self, upload):
        return super().weight(upload) if self.round < 2 else NAN


@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize("on_nonfinite", ["stop", "skip"])
def test_weights_of_a_server_that_are_no_numbers_are_blamed_on_it(tmp_path, rounds, on_nonfinite):
    """In the last round too; the round before is saved, and a client is not named."""
    module = FedAvg(mlp(), optimizer=SGD)
    module.server = NoWeights
    options = {"default_root_dir": str(tmp_path), "on_nonfinite": on_nonfinite}
    with pytest.raises(NonFiniteError) as found:
        fit(module, blobs(), rounds, sampler=EVERYONE, **options)
    told = str(found.value)
    assert told.startswith("round 2, the server's aggregation: the new entry 'net.backbone.0.weig")
    assert "NoWeights" in told
    (file,) = tmp_path.glob("*/*/checkpoints/last.ckpt")
    saved = checkpoint.load(file)
    assert saved["round"] == 1
    assert all(value.isfinite().all() for value in saved["server"]["shared"].values())
    assert RunFolder.read(file.parents[1]).round == 1


@dataclass(frozen=True, kw_only=True)
class Remembers(ServerState):
    extra: object = None


def check(before, after):
    soundness.check_aggregate(Server(), before, after)


def test_what_was_not_known_before_may_be_unknown_again():
    old = ServerState({"w": torch.tensor([NAN, 1.0])})
    check(old, ServerState({"w": torch.tensor([NAN, 2.0])}))
    check(old, ServerState({"w": torch.tensor([3.0, 2.0])}))
    with pytest.raises(NonFiniteError, match=r"round 1, .* 'w'"):
        check(old, ServerState({"w": torch.tensor([NAN, NAN])}))
    fit(FedProto(mlp(), optimizer=SGD), blobs(), 2)


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        (torch.tensor(INF), "extra"),
        ({3: {"net.head": torch.tensor(NAN)}}, "extra.3.net.head"),
        ([torch.zeros(2), (torch.tensor(-INF),)], "extra.1.0"),
    ],
)
def test_a_server_s_own_fields_are_examined(extra, name):
    with pytest.raises(NonFiniteError, match=parts(f"round 1, the server ~ '{name}'")):
        check(Remembers(shared={}), Remembers(shared={}, extra=extra))
    check(Remembers(shared={}), Remembers(shared={}, extra=torch.tensor(7), report={"x": NAN}))
    # What an aggregate left alone is not read.
    check(Remembers(shared={}, extra=extra), Remembers(shared={}, extra=extra))


def test_large_finite_values_are_no_overflow():
    """Their sum is infinite."""
    check(ServerState({}), ServerState({"w": torch.full((4,), 3e38)}))


def test_a_sound_state_is_read_once_for_each_device(monkeypatch):
    calls = []
    monkeypatch.setattr(soundness, "finite", lambda state: calls.append(len(state)) or True)
    state = ServerState({str(n): torch.ones(3) for n in range(5)})
    monkeypatch.setattr(Tensor, "item", None)
    check(ServerState({}), state)
    assert calls == [5]


# Clients that are left out.


class Spoils(FedPer):
    """In the given rounds, some clients upload NaN."""

    lost = {1: (1,), 2: (0, 1, 2)}  # noqa: RUF012

    def upload(self, info):
        found = super().upload(info)
        if info.client in self.lost.get(info.round, ()):
            found.shared["net.backbone.0.bias"][0] = NAN
        return found


def spoilt(folder, rounds=3, **options):
    loop = FederatedLoop(
        rounds,
        **{"on_nonfinite": "skip", "progress": False, "sampler": EVERYONE, **options},
        default_root_dir=str(folder),
    )
    return loop, Spoils(mlp(), optimizer=SGD), blobs()


def test_clients_that_are_left_out_are_named(tmp_path, capsys):
    loop, module, data = spoilt(tmp_path, progress=True)
    with pytest.warns(UserWarning, match=parts("round 2: every client ~ on_nonfinite")) as told:
        run = loop.fit(module, data)
    assert sum("every client" in str(one.message) for one in told) == 1
    words = {"True": "x", "False": "-"}
    did = [
        "".join(words[row[name]] for name in ("trained", "uploaded", "discarded"))
        for row in rows_of(run)
    ]
    assert did == ["xx-", "--x", "xx-", "--x", "--x", "--x", "xx-", "xx-", "xx-"]
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["failures"] == {"discarded": {"1": 2, "0": 1, "2": 1}}
    assert "discarded" in (shown := capsys.readouterr().out)
    assert "clients 0, 1, 2" in shown
    assert "discarded" not in RunFolder.read(run.folder).reported


def test_clients_that_are_left_out_are_counted_across_a_resume(tmp_path):
    """And rounds that are not tested count as well."""
    loop, module, data = spoilt(tmp_path / "whole", evaluate_every=3)
    with pytest.warns(UserWarning, match="every client"):
        whole = loop.fit(module, data)
    loop, module, data = spoilt(tmp_path / "parts", evaluate_every=3, checkpoint_every=1)
    rounds = loop.rounds_of(module, data)
    next(rounds)
    with pytest.warns(UserWarning, match="every client"):
        run, _ = next(rounds)
    rounds.close()
    assert run.failures == {"discarded": {0: 1, 1: 2, 2: 1}}
    loop, module, data = spoilt(tmp_path / "parts", evaluate_every=3)
    resumed = loop.fit(module, data, str(run.folder))
    assert resumed.failures == whole.failures == {"discarded": {0: 1, 1: 2, 2: 1}}
    assert resumed.fingerprint == whole.fingerprint


def test_a_run_that_loses_everybody_in_every_round_fails(tmp_path, monkeypatch):
    """It can still be looked at, but it is not a finished run; a resume says the same."""
    monkeypatch.setattr(Spoils, "lost", dict.fromkeys((1, 2), (0, 1, 2)))
    loop, module, data = spoilt(tmp_path, rounds=2)
    with pytest.warns(UserWarning, match="every client"), pytest.raises(NonFiniteError) as found:
        loop.fit(module, data)
    assert re.match(parts("no client ~ 6 times ~ loop.on_nonfinite"), str(found.value))
    (folder,) = tmp_path.glob("*/*/")
    assert not (folder / "summary.json").exists()
    assert checkpoint.load(folder / "checkpoints" / "last.ckpt")["round"] == 2
    loop, module, data = spoilt(tmp_path, rounds=2)
    with pytest.raises(NonFiniteError, match=parts("no client ~ 6 times ~ loop.on_nonfinite")):
        loop.fit(module, data, str(folder))


def test_rounds_without_clients_lose_nobody():
    nobody = BernoulliSampler(1e-9, minimum=0, train_all=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = fit(FedAvg(mlp(), optimizer=SGD), blobs(), 2, sampler=nobody, on_nonfinite="skip")
    assert run.failures == {}


def test_a_client_that_could_take_no_step_has_not_uploaded(tmp_path):
    data = blobs((8, 1, 5))
    with pytest.warns(UserWarning, match=parts("client 1 ~ 'local' ~ one sample")):
        run = fit(
            FedAvg(normed(), optimizer=SGD),
            data,
            1,
            sampler=EVERYONE,
            engine="sequential",
            default_root_dir=str(tmp_path),
        )
    assert [row["uploaded"] for row in rows_of(run)] == ["True", "False", "True"]


# Models whose outputs are not finite.


class Breaks(FedPer):
    """In the last round, the personalised model of client 1 is NaN, in one weight."""

    def personalise(self, broadcast, info):
        super().personalise(broadcast, info)
        if info.client == 1 and info.round == 3:
            self.net.head.weight[0, 0] = NAN


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_personal_model_that_is_no_number_is_reported_and_has_no_score(tmp_path, engine):
    """Nor has the round before in its place, also where the smallest client alone is read."""
    options = {"sampler": EVERYONE, "engine": engine, "default_root_dir": str(tmp_path)}
    data = blobs((8, 2, 5))
    data.metrics = ["torchmetrics.AUROC"]
    with pytest.warns(UserWarning, match=parts("round 3: ~ outputs ~ client 1 ")):
        run = fit(Breaks(mlp(), optimizer=SGD), data, 3, evaluate_at=["post_broadcast"], **options)
    for name in ("acc", "f1", "ece", "loss", "auroc"):
        by_round = [row[f"test/personal/{name}"] for row in run.history]
        assert [math.isnan(value) for value in by_round] == [False, False, True]
    assert math.isnan(run.history[2]["test/personal/acc_worst10"])
    assert math.isnan(run.history[2]["test/personal/acc_weighted"])
    cells = {(row["round"], row["client"]): row["test/personal/acc"] for row in rows_of(run)}
    assert [key for key, cell in cells.items() if cell == "nan"] == [("3", "1")]
    assert run.failures == {"undefined": {1: 1}}
    folder = RunFolder.read(run.folder)
    assert folder.evaluated("test/personal/acc").tolist() == [1, 2, 3]
    assert folder.chosen("best_on_test", "test/personal/acc") in (1, 2)
    assert not math.isnan(run.summary["test/personal/acc/best_on_test"])
    assert math.isnan(run.summary["test/personal/acc/mean_last10"])
    assert math.isnan(run.summary["test/personal/acc/last"])
    for metric in ("test/personal/acc", "test/personal/acc_smallest10"):
        assert folder.chosen("last", metric).tolist() == [3]
        assert math.isnan(folder.mean(metric, folder.chosen("last", metric)))


# Draws from torch's default stream.


class Rarely(nn.Module):
    """Draws where a first look, with two samples, cannot see it."""

    def forward(self, x):
        return x + torch.randn_like(x) if self.training and len(x) > 2 else x


@pytest.mark.parametrize("engine", ["sequential", "threads", "auto"])
@pytest.mark.parametrize("layer", [Rarely, nn.Dropout])
def test_a_run_that_cannot_be_repeated_says_so_once(layer, engine):
    net = SplitNet(nn.Sequential(nn.Linear(5, 6), layer()), nn.Linear(6, 3))
    with warnings.catch_warnings(record=True) as told:
        fit(FedPer(net, optimizer=SGD), blobs(), 3, engine=engine)
    found = ["torch's default stream" in str(one.message) for one in told]
    assert sum(found) == (layer is Rarely)
