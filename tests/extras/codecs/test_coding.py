"""Messages through codecs: what clients remember, what arrives, and how many bytes it takes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from lightning_modules import IFCA, SCAFFOLD, CD2PFed, FedAvg, FedBN, FedPer, FedProto
from pfl.core.server import Server
from pfl.core.state import residuals_of
from pfl.core.types import Broadcast
from pfl.extras.codecs import QSGD, Cast, Codecs, TopK
from pfl.extras.codecs.coding import codec_of, codec_text, codecs, make_codec
from pfl.federation import checkpoint
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.run import Callback
from pfl.federation.sampling import UniformSampler
from pfl.testing.federation import ToyFederation, fit
from pfl.testing.toy import mlp, normed
from pfl.training import client_round
from pfl.training.server_round import uploads_of
from pfl.training.uplink import UplinkStep
from tests.helpers.extras import LOOPBACK, needs
from tests.helpers.messages import parts

SGD = partial(torch.optim.SGD, lr=0.1)


def federation(codecs, module=None, precision="64-true"):
    found = ToyFederation(module or FedAvg(mlp(), optimizer=SGD), precision=precision)
    found.coordinator.bind([codecs], data=found.context.data, sampler=None)
    return found


def job_of(found, client, number=None):
    return found.coordinator.chain.job(found.job(client, number), found.state, True)


def round_of(found):
    """Play a round; return each client's job, what it would have sent, and its decoded result."""
    played = []
    for client in range(3):
        job = job_of(found, client)
        plain = client_round.train(found.context, replace(job, steps=()))
        result = client_round.train(found.context, job)
        played.append((job, plain, found.coordinator.chain.received(job, result)))
    found.kept.update({result.client: result.kept for _, _, result in played})
    found.state = found.coordinator.aggregated(found.state, uploads_of(r for _, _, r in played))
    found.number += 1
    return played


@pytest.mark.parametrize("codec", ["cast", "topk", "sign"])
def test_what_was_sent_and_what_is_remembered_make_up_all_changes(codec):
    found, sums = federation(Codecs(up=codec)), {}
    for _ in range(4):
        for job, plain, result in round_of(found):
            for name, value in plain.upload.shared.items():
                received = job.broadcast.shared[name]
                wanted, sent = sums.get((result.client, name), (0, 0))
                sums[result.client, name] = (
                    wanted + value - received,
                    sent + result.upload.shared[name] - received,
                )
    for (client, name), (wanted, sent) in sums.items():
        left = found.kept[client][f"residual:{name}"]
        assert left.abs().max() > 0
        torch.testing.assert_close(sent + left, wanted, rtol=0, atol=1e-12)


def test_unbiased_codecs_remember_nothing():
    found = federation(Codecs(up="qsgd"))
    assert all(not residuals_of(result.kept) for _, _, result in round_of(found))


def test_random_places_differ_by_client_round_and_entry():
    found = federation(Codecs(up="randk"))
    jobs = [job_of(found, client, number) for client in range(3) for number in (1, 2)]
    sent = [client_round.train(found.context, job).upload.shared for job in jobs]
    keys = [int(v) for own in sent for name, v in own.items() if name.endswith(":key")]
    assert len(set(keys)) == len(keys) == 6 * 4


def test_bytes_are_those_of_header_tensors_and_checksum():
    """Message and bytes of a client of mlp (57 weights in four tensors) with 1 number of each."""
    found = federation(Codecs(up=TopK(share=0.01)), precision="32-true")
    job = job_of(found, 0)
    sent = client_round.train(found.context, job).upload
    assert sorted(sent.shared)[:2] == ["net.backbone.0.bias:place", "net.backbone.0.bias:value"]
    assert sum(v.numel() * v.element_size() for v in sent.shared.values()) == 4 * (4 + 1)
    kinds = [
        [f"shared/{name}", "uint8" if name.endswith("place") else "float32", [1]]
        for name in sent.shared
    ]
    header = str({"content": {"client": 0, "samples": 9}, "tensors": kinds}).replace(" ", "")
    length = 12 + len(header) + 4 * (4 + 1) + 32
    result = client_round.train(found.context, job)
    assert found.coordinator.chain.received(job, result).upload.encoded == length


def test_identity_changes_no_bit_and_counts_whole_messages():
    plain, coded = fit(FedPer(mlp())), fit(FedPer(mlp()), uplink=[Codecs()])
    assert coded.fingerprint == plain.fingerprint
    for one, other in zip(plain.history, coded.history, strict=True):
        assert one["test/personal/acc"] == other["test/personal/acc"]
        # Three messages or two, with headers of some hundred bytes.
        assert 0 < other["comm/bytes_up"] - one["comm/bytes_up"] < 3 * 400
        assert 0 < other["comm/bytes_down"] - one["comm/bytes_down"] < 3 * 400


CODED = Codecs(up="topk", down=QSGD(bits=8))


@pytest.mark.parametrize("engine", ["threads", "vectorised", LOOPBACK])
@pytest.mark.parametrize("codecs", [CODED, Codecs(up="qsgd", down="cast")], ids=["topk", "qsgd"])
def test_engines_send_the_same(engine, codecs):
    options = {"uplink": [codecs], "precision": "64-true"}
    one = fit(FedPer(mlp(), optimizer=SGD), engine="sequential", **options)
    other = fit(FedPer(mlp(), optimizer=SGD), engine=engine, **options)
    if engine != "vectorised":
        assert other.server.shared.keys() == one.server.shared.keys()
        assert all(v.equal(other.server.shared[n]) for n, v in one.server.shared.items())
    for name in ("train/local/ce", "comm/bytes_up", "comm/bytes_down", "test/personal/acc"):
        assert other.history[-1][name] == pytest.approx(one.history[-1][name], abs=1e-9)


def test_a_resumed_run_remembers(tmp_path):
    options = {"uplink": [CODED], "name": "run", "default_root_dir": str(tmp_path)}
    whole = fit(FedAvg(mlp()), rounds=4, uplink=[CODED])
    fit(FedAvg(mlp()), rounds=2, **options)
    resumed = fit(FedAvg(mlp()), rounds=4, ckpt_path="last", **options)
    assert resumed.fingerprint == whole.fingerprint
    assert any(residuals_of(kept) for kept in resumed.kept.values())


@pytest.mark.parametrize("codec", ["cast", "topk"])
def test_what_is_remembered_of_a_tensor_that_shrinks_is_dropped(codec, tmp_path):
    """CD2-pFed sends fewer channels each round, here 5, 4, 3 and 3 of 6; a resume does the same."""

    def run(rounds, **options):
        method = CD2PFed(mlp(), ramp_rounds=3, average_ramp=0, optimizer=SGD)
        return fit(method, rounds=rounds, uplink=[Codecs(up=codec)], **options)

    whole, options = run(4), {"name": "run", "default_root_dir": str(tmp_path)}
    assert len(whole.kept[0]["residual:net.backbone.0.bias"]) == 3
    for rounds in (2, 4):
        resumed = run(rounds, ckpt_path="last" if rounds == 4 else None, **options)
    assert resumed.fingerprint == whole.fingerprint


def test_a_residual_of_another_shape_is_refused(tmp_path):
    options = {"uplink": [CODED], "name": "run", "default_root_dir": str(tmp_path)}
    run = fit(FedAvg(mlp()), rounds=1, **options)
    file = run.folder / "checkpoints" / "last.ckpt"
    content = checkpoint.load(file)
    for kept in content["kept"].values():
        kept["residual:net.head.bias"] = torch.zeros(7)
    checkpoint.save(file, content)
    with pytest.raises(CheckpointError, match=parts("residual.net.head.bias ~ [3] ~ [7]")):
        fit(FedAvg(mlp()), rounds=2, ckpt_path=str(file), **options)


class Watching(Callback):
    """Collects results."""

    def __init__(self):
        self.results = []

    def on_result(self, run, result):
        self.results.append(result)


def test_who_does_not_upload_takes_nothing_for_sent():
    """All three train, and one uploads: only that client has a residual."""
    watching = Watching()
    run = fit(
        FedAvg(mlp()),
        rounds=1,
        sampler=UniformSampler(0.34, train_all=True),
        uplink=[Codecs(up="topk")],
        callbacks=[watching],
    )
    assert len(watching.results) == 3
    assert sum(bool(residuals_of(kept)) for kept in run.kept.values()) == 1
    # Callbacks see whole uploads.
    shapes = {name: value.shape for name, value in run.server.shared.items()}
    for result in watching.results:
        assert {name: v.shape for name, v in result.upload.shared.items()} == shapes


def test_a_residual_waits_until_its_client_takes_part_again():
    found = federation(Codecs(up="topk"))
    round_of(found)
    before = residuals_of(found.kept[1])
    job = replace(job_of(found, 1), steps=())
    after = residuals_of(client_round.train(found.context, job).kept)
    assert before.keys() == after.keys()
    assert all(value.equal(after[name]) for name, value in before.items())


@needs("privacy")
def test_clipped_differences_are_encoded_as_they_are():
    """The bound comes first: what the server adds up is a difference within the clip."""
    from pfl.extras.privacy.clip import Clip

    found = federation(Codecs(up=Cast("bfloat16", remembers=False)))
    job = job_of(found, 0)
    job = replace(job, steps=(Clip(0.01), *job.steps))
    result = found.coordinator.chain.received(job, client_round.train(found.context, job))
    lengths = [v.double().norm() for v in result.upload.shared.values()]
    assert torch.stack(lengths).norm().item() == pytest.approx(0.01, rel=2**-8)


def test_statistics_of_batch_norms_and_extra_travel_whole():
    found = federation(Codecs(up="sign"), FedAvg(normed(), optimizer=SGD))
    sent = client_round.train(found.context, job_of(found, 0)).upload.shared
    assert "net.backbone.1.running_mean" in sent
    assert "net.backbone.1.weight:sign" in sent
    found = federation(Codecs(up="sign"), SCAFFOLD(mlp(), optimizer=SGD))
    assert client_round.train(found.context, job_of(found, 0)).upload.extra["change"].numel() == 57


def test_ifca_sends_the_difference_of_the_network_that_it_chose():
    found = federation(Codecs(up=TopK(share=1.0)), IFCA(mlp(), k=2, optimizer=SGD))
    for _, plain, result in round_of(found):
        for name, value in plain.upload.shared.items():
            torch.testing.assert_close(result.upload.shared[name], value, rtol=0, atol=1e-12)


def test_methods_without_weights_that_travel_are_refused():
    with pytest.raises(ValueError, match=parts("loop.uplink: FedProto ~ no weights")):
        fit(FedProto(mlp()), uplink=[Codecs(up="topk")])
    assert fit(FedProto(mlp()), rounds=1, uplink=[Codecs()]).round == 1


def test_a_server_that_sends_other_weights_is_refused():
    class Silent(Server):
        def broadcast(self, state, client, number):
            return Broadcast({})

    class Method(FedAvg):
        def server(self):
            return Silent()

    with pytest.raises(ValueError, match=parts("Method ~ server ~ 'net.backbone.0.")):
        federation(Codecs(up="topk"), Method(mlp()))


def test_the_server_sends_weights_and_no_differences():
    with pytest.raises(ValueError, match=parts("down: ~ weights ~ TopK ~ identity, cast or qsgd")):
        Codecs(down="topk")


def test_a_message_is_encoded_once_for_all_clients():
    found = federation(Codecs(down="qsgd"))
    jobs = [job_of(found, client) for client in range(3)]
    assert all(job.broadcast.shared is jobs[0].broadcast.shared for job in jobs)
    again = job_of(found, 0, number=2)
    assert again.broadcast.shared is not jobs[0].broadcast.shared
    names = [n for n, v in again.broadcast.shared.items() if v.equal(jobs[0].broadcast.shared[n])]
    assert names == []


def test_running_statistics_go_down_whole():
    found = federation(Codecs(down="cast"), FedBN(normed()))
    whole, sent = found.state.shared, job_of(found, 0).broadcast.shared
    for name, value in whole.items():
        assert sent[name].equal(value.to(torch.bfloat16).to(value))


@pytest.mark.parametrize(
    "codec", [*map(make_codec, codecs()), TopK(0.25, remembers=False)], ids=str
)
def test_a_codec_travels_as_text(codec):
    assert codec_of(codec_text(codec)) == codec


@pytest.mark.parametrize("text", ['["gzip", {}]', '{"a": 1}', '["topk", {"share": 2}]', "[]"])
def test_a_text_of_no_codec_is_refused(text):
    with pytest.raises(ValueError, match=parts(f"codec ~ '{text}'")):
        codec_of(text)


def test_codecs_of_other_classes_are_refused():
    with pytest.raises(TypeError, match=parts("codec ~ identity, cast, qsgd, topk ~ object")):
        Codecs(up=object())


def test_codecs_come_last():
    """What follows would not find the method's entries."""

    class Other(UplinkStep):
        pass

    with pytest.raises(ValueError, match=parts("Codecs must come last ~ after Other")):
        fit(FedAvg(mlp()), uplink=[Codecs(), Other()])
    assert fit(FedAvg(mlp()), rounds=1, uplink=[Other(), Codecs()]).round == 1
