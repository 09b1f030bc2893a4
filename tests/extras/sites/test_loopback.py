"""Clients at sites give the sequential engine's bits; all that passes between them is bytes."""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from lightning_modules.cd2_pfed import CD2PFed
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.fedproto import FedProto
from lightning_modules.nets import PerClient, SplitNet
from lightning_modules.scaffold import SCAFFOLD
from pfl.core.state import clone, nbytes, select
from pfl.core.types import Broadcast
from pfl.disk import container
from pfl.extras.codecs import QSGD
from pfl.extras.codecs.coding import Codecs, Encoded, codec_text
from pfl.extras.newcomers.newcomers import Newcomers
from pfl.extras.privacy.clip import Clip
from pfl.extras.privacy.difference import norm
from pfl.extras.sites.loopback import LoopbackEngine
from pfl.federation.sampling import UniformSampler
from pfl.training import client_round
from tests.extras.sites.sites import Recorded, fit, same
from tests.helpers.discovery import build, methods
from tests.helpers.federation import HEAVY, SGD, contexts, equal, job
from tests.helpers.toy import blobs, mlp, normed

JOINING = [Newcomers(join_rounds=2)]


@pytest.mark.parametrize("method", methods(), ids=lambda m: m.__name__)
def test_every_method_gives_the_sequential_bits(method):
    alone, away = (
        fit(build(method, mlp(), optimizer=SGD), engine) for engine in ("sequential", "loopback")
    )
    assert same(away, alone)


def test_sites_have_networks_of_their_own():
    nets = [mlp(), mlp(seed=2), SplitNet(nn.Linear(5, 6), nn.Linear(6, 3))]
    alone, away = (
        fit(FedProto(PerClient(deepcopy(nets)), optimizer=SGD), engine)
        for engine in ("sequential", "loopback")
    )
    assert same(away, alone)


class Drops(nn.Module):
    """Drops by a function, as attention of transformers does."""

    def forward(self, x):
        return nn.functional.dropout(x, 0.3, self.training)


def test_dropout_by_a_function_gives_the_sequential_bits():
    """Also at sites of clients other than the first, who have none of its samples."""
    net = mlp()
    net.backbone.append(Drops())
    alone, away = (
        fit(FedAvg(deepcopy(net), optimizer=SGD), engine) for engine in ("sequential", "loopback")
    )
    assert same(away, alone)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_dropout_batch_norm_clipping_and_kept_momentum_give_the_sequential_bits(precision):
    """Dropout draws from a stream that all threads share, so the sites take turns."""

    def made():
        net = normed()
        net.backbone.append(nn.Dropout())
        return FedAvg(net, optimizer=HEAVY, persist_optimizer=True, buffers="local", epochs=2)

    loop = {"precision": precision, "gradient_clip_val": 0.5}
    assert same(fit(made(), "loopback", **loop), fit(made(), "sequential", **loop))


def test_newcomers_and_the_common_test_set_are_tested_here(tmp_path):
    """Their data belong to no site. Members cannot choose the epochs of the tuned baseline."""
    runs = []
    for engine in ("sequential", Recorded(tmp_path)):
        data = blobs((4, 9, 3, 6, 5))
        data.apart = {"unseen": (4,), "validation": (3,)}
        runs.append(
            fit(
                FedPer(mlp(), optimizer=SGD),
                engine,
                2,
                data,
                evaluations=JOINING,
            )
        )
        runs.append(
            fit(
                FedAvg(mlp(), optimizer=SGD),
                engine,
                2,
                data,
                evaluations=JOINING,
            )
        )
    assert same(runs[2], runs[0])
    assert same(runs[3], runs[1])
    assert "test/unseen_joined/acc" in runs[2].history[-1]
    assert "test/pooled/acc" in runs[3].history[-1]
    data.apart = {"unseen": (4,)}
    run = fit(
        FedAvg(mlp(), optimizer=SGD),
        Recorded(tmp_path),
        2,
        data,
        evaluations=JOINING,
    )
    assert "test/unseen_joined/acc" in run.history[-1]
    assert "test/unseen_tuned/acc" not in run.history[-1]


@pytest.mark.parametrize("points", [["post_local"], ["post_broadcast", "post_local"]])
def test_every_point_of_evaluation_gives_the_sequential_scores(points, tmp_path):
    runs = [
        fit(FedPer(mlp(), optimizer=SGD), engine, evaluate_at=points, evaluate_every=2)
        for engine in ("sequential", Recorded(tmp_path))
    ]
    assert same(*runs)


def test_bytes_of_tensors_are_the_traffic_and_those_of_messages_are_counted(tmp_path):
    """Each training message has its tensors, its header and the header's length."""
    engine = Recorded(tmp_path)
    run = fit(build(SCAFFOLD, mlp(), optimizer=SGD), engine, 2)
    down = up = 0
    for call in engine.of("train"):
        for content, way in ((call.sent, "down"), (call.answer, "up")):
            header = int.from_bytes(content[:8], "little")
            size = nbytes(container.unpack(content)[1])
            assert len(content) == size + header + 8
            down, up = down + size * (way == "down"), up + size * (way == "up")
    assert down == sum(row["comm/bytes_down"] for row in run.history)
    assert up == sum(row["comm/bytes_up"] for row in run.history)
    calls = [call for call in engine.calls if call.verb in ("train", "test")]
    assert sum(len(c.sent) for c in calls) == sum(row["comm/wire_down"] for row in run.history)
    assert sum(len(c.answer) for c in calls) == sum(row["comm/wire_up"] for row in run.history)


def test_what_a_client_does_to_its_upload_happens_at_its_site(tmp_path):
    """The clip of a private run travels with the job; what arrives is the clipped difference."""
    engine = Recorded(tmp_path)
    found, here = (contexts(FedAvg(mlp(), optimizer=SGD), blobs()) for _ in range(2))
    engine.setup(found)
    whole = job(blobs(), 0, Broadcast(clone(select(found.first.template, ("net.*",)))))
    private = replace(whole, steps=(Clip(0.01, ("a", "b")),))
    (result,), wanted = engine.train([private]), client_round.train(here.first, private)
    engine.close()
    assert equal(result.upload.shared, wanted.upload.shared)
    assert norm(result.upload) == pytest.approx(0.01)


@pytest.mark.parametrize(("up", "down"), [("qsgd", "cast"), ("topk", "qsgd"), ("sign", "cast")])
def test_codecs_work_at_sites_and_what_they_remember_stays_there(up, down, tmp_path):
    options = {"uplink": [Codecs(up=up, down=down)], "sampler": UniformSampler(0.7)}
    alone, away = (
        fit(FedPer(mlp(), optimizer=SGD), engine, **options)
        for engine in ("sequential", Recorded(tmp_path))
    )
    assert same(away, alone)


def test_what_the_server_encodes_is_sent_encoded(tmp_path):
    """Two bytes of each weight; running statistics travel whole, counters not at all."""
    engine = Recorded(tmp_path)
    run = fit(FedAvg(normed(), optimizer=SGD), engine, 1, uplink=[Codecs(down="cast")])
    weights = sum(value.numel() for value in normed().parameters())
    whole = sum(value.nbytes for value in normed().buffers() if value.is_floating_point())
    calls = engine.of("train")
    for call in calls:
        assert nbytes(container.unpack(call.sent)[1]) == 2 * weights + whole
    alone = fit(FedAvg(normed(), optimizer=SGD), "sequential", 1, uplink=[Codecs(down="cast")])
    assert same(run, alone)


def test_a_part_of_a_weight_is_sent_encoded_with_its_shape(tmp_path):
    """Of channels that are private the server sends nothing, and clients know the whole weight."""
    options = {"optimizer": SGD, "ramp_rounds": 1, "private_share": 0.5}
    runs = [
        fit(CD2PFed(mlp(), **options), engine, 2, uplink=[Codecs(down="qsgd")])
        for engine in (Recorded(tmp_path), "sequential")
    ]
    assert same(*runs)


def test_parts_larger_than_the_weight_are_refused():
    for shape in ([3, 2], [-1, 2], [2]):
        payload = {
            "w:scale": torch.ones(1),
            "w:level": torch.ones(1),
            "w:shape": torch.tensor(shape),
        }
        with pytest.raises(ValueError, match="a part of shape"):
            Encoded(codec_text(QSGD()), ()).unpacked(payload, {"w": torch.zeros(2, 2)})


def test_a_run_begun_here_without_kept_states_goes_on_at_sites(tmp_path):
    options = {"default_root_dir": str(tmp_path), "data": blobs()}
    begun = fit(FedAvg(mlp(), optimizer=SGD), "sequential", 1, **options)
    engine = Recorded(tmp_path / "sites")
    away = fit(FedAvg(mlp(), optimizer=SGD), engine, 2, ckpt_path=str(begun.folder), **options)
    assert same(away, fit(FedAvg(mlp(), optimizer=SGD), "sequential", 2, data=blobs()))


def warned(method, engine, folder, **options):
    """Whether a run says before its first round that it cannot be resumed."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(method(mlp(), optimizer=SGD), engine, 1, default_root_dir=folder, **options)
    return any("set loop.engine.folder" in str(one.message) for one in told)


def test_sites_in_a_temporary_folder_say_that_nothing_can_be_resumed(tmp_path):
    folder = str(tmp_path / "runs")
    assert warned(FedPer, "loopback", folder)
    assert not warned(FedPer, "sequential", folder)
    assert not warned(FedPer, LoopbackEngine(str(tmp_path / "sites")), folder)
    # Nothing that a checkpoint would lack, and no checkpoint.
    assert not warned(FedAvg, "loopback", folder)
    assert not warned(FedAvg, "loopback", folder, uplink=[Codecs(up="qsgd")])
    assert warned(FedAvg, "loopback", folder, uplink=[Codecs(up="topk")])
    assert not warned(FedPer, "loopback", None)
