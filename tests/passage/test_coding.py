"""Messages through codecs: what clients remember, what arrives, and how many bytes it takes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from lightning_modules import IFCA, SCAFFOLD, CD2PFed, FedAvg, FedBN, FedPer, FedProto
from pfl.core.types import Broadcast, Sending, Upload
from pfl.disk import container
from pfl.engines.stack import round as stack_round
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.cost import Cost, LogNormal
from pfl.federation.run import Callback
from pfl.federation.sampling import UniformSampler
from pfl.passage.codecs import CODECS, QSGD, Cast, Identity, TopK, codec_of, codec_text, make_codec
from pfl.passage.coding import Codecs, Coding, residuals_of
from pfl.testing.federation import ToyFederation, fit
from pfl.testing.toy import mlp, normed
from pfl.training import client_round
from pfl.training.server_round import uploads_of
from tests.helpers.extras import LOOPBACK
from tests.helpers.messages import parts, refuses

SGD = partial(torch.optim.SGD, lr=0.1)


def federation(codecs, module=None, precision="64-true"):
    found = ToyFederation(module or FedAvg(mlp(), optimizer=SGD), precision=precision)
    first = found.server.broadcast(found.state, 0, 1)
    found.coordinator.coding = Coding(codecs, found.module, first, seed=5)
    return found


def round_of(found):
    """Play a round; return each client's job, what it would have sent, and its decoded result."""
    played = []
    for client in range(3):
        job = found.job(client)
        plain = client_round.train(found.context, replace(job, sending=None))
        result = client_round.train(found.context, job)
        played.append((job, plain, found.coordinator.coding.received(job, result)))
    found.kept.update({result.client: result.kept for _, _, result in played})
    found.state = found.coordinator.aggregate(found.state, uploads_of(r for _, _, r in played))
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
    jobs = [found.job(client, number) for client in range(3) for number in (1, 2)]
    sent = [client_round.train(found.context, job).upload.shared for job in jobs]
    keys = [int(v) for own in sent for name, v in own.items() if name.endswith(":key")]
    assert len(set(keys)) == len(keys) == 6 * 4


def test_bytes_are_the_length_of_the_message():
    """Message and bytes of a client of mlp (57 weights in four tensors) with 1 number of each."""
    found = federation(Codecs(up=TopK(share=0.01)), precision="32-true")
    job = found.job(0)
    sent = client_round.train(found.context, job).upload
    assert sorted(sent.shared)[:2] == ["net.backbone.0.bias:place", "net.backbone.0.bias:value"]
    assert sum(v.numel() * v.element_size() for v in sent.shared.values()) == 4 * (4 + 1)
    message = {f"shared/{name}": value for name, value in sent.shared.items()}
    length = len(container.pack({"client": 0, "samples": 9}, message))
    result = client_round.train(found.context, job)
    assert found.coordinator.coding.received(job, result).upload.encoded == length


def test_identity_changes_no_bit_and_counts_whole_messages():
    plain, coded = fit(FedPer(mlp())), fit(FedPer(mlp()), codec=Codecs())
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
    options = {"codec": codecs, "precision": "64-true"}
    one = fit(FedPer(mlp(), optimizer=SGD), engine="sequential", **options)
    other = fit(FedPer(mlp(), optimizer=SGD), engine=engine, **options)
    if engine != "vectorised":
        assert other.server.shared.keys() == one.server.shared.keys()
        assert all(v.equal(other.server.shared[n]) for n, v in one.server.shared.items())
    for name in ("train/local/ce", "comm/bytes_up", "comm/bytes_down", "test/personal/acc"):
        assert other.history[-1][name] == pytest.approx(one.history[-1][name], abs=1e-9)


def test_a_resumed_run_remembers(tmp_path):
    options = {"codec": CODED, "name": "run", "default_root_dir": str(tmp_path)}
    whole = fit(FedAvg(mlp()), rounds=4, codec=CODED)
    fit(FedAvg(mlp()), rounds=2, **options)
    resumed = fit(FedAvg(mlp()), rounds=4, ckpt_path="last", **options)
    assert resumed.fingerprint == whole.fingerprint
    assert any(residuals_of(kept) for kept in resumed.kept.values())


@pytest.mark.parametrize("codec", ["cast", "topk"])
def test_what_is_remembered_of_a_tensor_that_shrinks_is_dropped(codec, tmp_path):
    """CD2-pFed sends fewer channels each round, here 5, 4, 3 and 3 of 6; a resume does the same."""

    def run(rounds, **options):
        method = CD2PFed(mlp(), ramp_rounds=3, average_ramp=0, optimizer=SGD)
        return fit(method, rounds=rounds, codec=Codecs(up=codec), **options)

    whole, options = run(4), {"name": "run", "default_root_dir": str(tmp_path)}
    assert len(whole.kept[0]["residual:net.backbone.0.bias"]) == 3
    for rounds in (2, 4):
        resumed = run(rounds, ckpt_path="last" if rounds == 4 else None, **options)
    assert resumed.fingerprint == whole.fingerprint


def test_a_residual_of_another_shape_is_refused(tmp_path):
    options = {"codec": CODED, "name": "run", "default_root_dir": str(tmp_path)}
    run = fit(FedAvg(mlp()), rounds=1, **options)
    file = run.folder / "checkpoints" / "last.ckpt"
    content = torch.load(file, weights_only=True)
    for kept in content["kept"].values():
        kept["residual:net.head.bias"] = torch.zeros(7)
    torch.save(content, file)
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
        codec=Codecs(up="topk"),
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
    job = replace(found.job(1), sending=None)
    after = residuals_of(client_round.train(found.context, job).kept)
    assert before.keys() == after.keys()
    assert all(value.equal(after[name]) for name, value in before.items())


def test_a_stack_remembers_as_single_clients_do():
    found = federation(Codecs(up="topk"))
    round_of(found)
    jobs = [found.job(client) for client in range(3)]
    alone = [client_round.train(found.context, job) for job in jobs]
    for one, other in zip(alone, stack_round.train(found.context, jobs), strict=True):
        for name, value in {**one.kept, **one.upload.shared}.items():
            found_here = {**other.kept, **other.upload.shared}[name]
            torch.testing.assert_close(found_here, value, rtol=0, atol=1e-10)


def test_clipped_differences_are_encoded_as_they_are():
    """The bound comes first: what the server adds up is a difference within the clip."""
    found = federation(Codecs(up=Cast("bfloat16", remembers=False)))
    job = found.job(0)
    job = replace(job, sending=replace(job.sending, clip=0.01, extra=()))
    result = found.coordinator.coding.received(job, client_round.train(found.context, job))
    lengths = [v.double().norm() for v in result.upload.shared.values()]
    assert torch.stack(lengths).norm().item() == pytest.approx(0.01, rel=2**-8)


def test_statistics_of_batch_norms_and_extra_travel_whole():
    found = federation(Codecs(up="sign"), FedAvg(normed(), optimizer=SGD))
    sent = client_round.train(found.context, found.job(0)).upload.shared
    assert "net.backbone.1.running_mean" in sent
    assert "net.backbone.1.weight:sign" in sent
    found = federation(Codecs(up="sign"), SCAFFOLD(mlp(), optimizer=SGD))
    assert client_round.train(found.context, found.job(0)).upload.extra["change"].numel() == 57


def test_ifca_sends_the_difference_of_the_network_that_it_chose():
    found = federation(Codecs(up=TopK(share=1.0)), IFCA(mlp(), k=2, optimizer=SGD))
    for _, plain, result in round_of(found):
        for name, value in plain.upload.shared.items():
            torch.testing.assert_close(result.upload.shared[name], value, rtol=0, atol=1e-12)


def test_methods_without_weights_that_travel_are_refused():
    with pytest.raises(ValueError, match=parts("loop.codec: FedProto ~ no weights")):
        fit(FedProto(mlp()), codec=Codecs(up="topk"))
    assert fit(FedProto(mlp()), rounds=1, codec=Codecs()).round == 1


def test_a_server_that_sends_other_weights_is_refused():
    with pytest.raises(ValueError, match=parts("codec: FedAvg ~ server ~ 'net.backbone.0.")):
        Coding(Codecs(up="topk"), FedAvg(mlp()), Broadcast({}), 0)


def test_the_server_sends_weights_and_no_differences():
    with pytest.raises(ValueError, match=parts("down: ~ weights ~ TopK ~ identity, cast or qsgd")):
        Codecs(down="topk")


def test_a_message_is_encoded_once_for_all_clients():
    found = federation(Codecs(down="qsgd"))
    jobs = [found.job(client) for client in range(3)]
    assert all(job.broadcast.shared is jobs[0].broadcast.shared for job in jobs)
    again = found.job(0, number=2)
    assert again.broadcast.shared is not jobs[0].broadcast.shared
    names = [n for n, v in again.broadcast.shared.items() if v.equal(jobs[0].broadcast.shared[n])]
    assert names == []


def test_running_statistics_go_down_whole():
    found = federation(Codecs(down="cast"), FedBN(normed()))
    whole, sent = found.state.shared, found.job(0).broadcast.shared
    for name, value in whole.items():
        assert sent[name].equal(value.to(torch.bfloat16).to(value))


@pytest.mark.parametrize("codec", [*map(make_codec, CODECS), TopK(0.25, remembers=False)], ids=str)
def test_a_codec_travels_as_text(codec):
    assert codec_of(codec_text(codec)) == codec


@pytest.mark.parametrize("text", ['["gzip", {}]', '{"a": 1}', '["topk", {"share": 2}]', "[]"])
def test_a_text_of_no_codec_is_refused(text):
    with pytest.raises(ValueError, match=parts(f"codec ~ '{text}'")):
        codec_of(text)


def test_codecs_of_other_classes_are_refused():
    with pytest.raises(TypeError, match=parts("codec ~ identity, cast, qsgd, topk ~ object")):
        Codecs(up=object())


def test_simulated_seconds_by_hand():
    """The slowest: 400 bytes down at 100, 30 samples at 10, 200 bytes up at 50: 4 + 3 + 4 s."""
    found = federation(Codecs())
    jobs = [replace(found.job(c), broadcast=Broadcast({}, encoded=400)) for c in (0, 1)]
    results = {
        job.info.client: replace(client_round.train(found.context, found.job(0)), samples=samples)
        for job, samples in zip(jobs, (30, 10), strict=True)
    }
    uploads = [Upload(client, 1, {}, encoded=200) for client in (0, 1)]
    cost = Cost(up=50, down=100, speed=10)
    row = cost.of_round(jobs, results, uploads, 0, [{"comm/seconds_total": 2.0}])
    assert row == {"comm/seconds": 11.0, "comm/seconds_total": 13.0}
    assert cost.of_round([], {}, [], 0, []) == {"comm/seconds": 0.0, "comm/seconds_total": 0.0}


def test_spread_numbers_stay_with_a_client():
    cost = Cost(up=LogNormal(1000.0, 0.5), down=LogNormal(1000.0, 0.5), speed=7)
    drawn = torch.tensor([cost.of_client(3, client) for client in range(400)])
    assert cost.of_client(3, 9) == cost.of_client(3, 9) != cost.of_client(4, 9)
    logs = (drawn[:, 0] / 1000).log()
    assert logs.std().item() == pytest.approx(0.5, rel=0.15)
    assert abs(logs.mean().item()) < 0.1
    assert not drawn[:, 0].equal(drawn[:, 1])
    assert drawn[:, 2].unique().tolist() == [7]
    with pytest.raises(ValueError, match=parts("up ~ positive ~ 0")):
        Cost(up=0, down=1, speed=1)


def test_a_spread_beyond_all_numbers_is_refused():
    refuses(partial(LogNormal, 1.0), "[0, 10]", sigma=(-1.0, 11.0, float("nan")))
    refuses(LogNormal, "finite", median=float("inf"))


def test_a_run_has_simulated_seconds_and_no_other_number_changes():
    plain, costed = fit(FedAvg(mlp())), fit(FedAvg(mlp()), cost=Cost(up=1e3, down=1e4, speed=100))
    assert costed.fingerprint == plain.fingerprint
    assert "comm/seconds" not in plain.history[-1]
    rows = costed.history
    assert rows[-1]["comm/seconds_total"] == pytest.approx(sum(row["comm/seconds"] for row in rows))


def test_sending_without_codec_or_bound_changes_nothing():
    found = federation(Codecs())
    job = found.job(0)
    assert job.sending is None
    upload = client_round.train(found.context, replace(job, sending=Sending())).upload
    plain = client_round.train(found.context, job).upload
    assert all(value.equal(upload.shared[name]) for name, value in plain.shared.items())
    assert isinstance(found.coordinator.coding.up, Identity)
