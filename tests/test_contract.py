"""The promises of every method, of DESIGN's list; methods are found, not listed.

The promise that engines agree stands in ``tests/engines``, that a method builds from its YAML in
``tests/test_configs.py``.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Literal, get_origin, get_type_hints

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pfl import local
from pfl.callbacks import Callback
from pfl.federation import Federation, NonFiniteError
from pfl.loop import FederatedLoop
from pfl.run import Run
from pfl.sampling import BernoulliSampler, UniformSampler
from pfl.state import clone, fingerprint, finite, matches, nbytes
from pfl.types import Batch
from tests.discovery import build, floats, methods
from tests.federation import Federation as Stepped
from tests.toy import blobs, mlp, normed

SGD = partial(torch.optim.SGD, lr=0.05)
every_method = pytest.mark.parametrize("method", methods(), ids=lambda m: m.__name__)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def federation(method, net=mlp, rounds=3, **loop):
    loop = {"sampler": UniformSampler(0.7), "progress": False, **loop}
    return FederatedLoop(rounds=rounds, **loop), build(method, net(), optimizer=SGD), blobs()


def fit(method, net=mlp, rounds=3, ckpt_path=None, **loop) -> Run:
    loop, module, data = federation(method, net, rounds, **loop)
    return loop.fit(module, data, ckpt_path=ckpt_path)


@every_method
def test_a_misspelt_argument_is_refused(method):
    with pytest.raises(TypeError, match="epoch_count"):
        build(method, mlp(), epoch_count=3)


def words(method):
    """Arguments of a method that take one of several words."""
    hints = [get_type_hints(kind.__init__) for kind in method.__mro__ if "__init__" in vars(kind)]
    return {name for own in hints for name, hint in own.items() if get_origin(hint) is Literal}


@every_method
def test_an_unknown_word_is_refused(method):
    assert {"buffers", "weighting", "lr_schedule"} <= words(method)
    for name in words(method):
        with pytest.raises(ValueError, match=f"{name} must be one of .*, got 'so'"):
            build(method, mlp(), **{name: "so"})


@every_method
def test_fits_under_a_plain_trainer_and_the_loss_falls(method):
    module = build(method, mlp(), optimizer=SGD)
    x, y = blobs().split(0, "train").x, blobs().split(0, "train").labels
    before = _supervised_loss(module, x, y)
    trainer = L.Trainer(
        max_epochs=15,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=4))
    assert _supervised_loss(module, x, y) < before


def _supervised_loss(module, x, y):
    """Of the module's own objective, as a mean over draws where it is random."""
    module.eval()
    losses = [module.training_step(Batch(x, y), 0)["loss"].item() for _ in range(8)]
    return sum(losses) / len(losses)


@every_method
def test_patterns_match_and_do_not_overlap(method):
    module = build(method, mlp())
    shared, kept = module.shared_names(), module.kept_names()
    assert not set(shared) & set(kept)
    for pattern in (*module.shared, *module.kept):
        assert any(matches(name, (pattern,)) for name in module.state_dict())


@every_method
@pytest.mark.parametrize("net", [mlp, normed], ids=["plain", "batch_norm"])
def test_a_client_does_not_depend_on_who_ran_before(method, net):
    context, jobs = _jobs(method, net)
    forward = {job.info.client: local.train(context, job) for job in jobs}
    backward = {job.info.client: local.train(context, job) for job in reversed(jobs)}
    for client, result in forward.items():
        assert _bits(result) == _bits(backward[client])


@every_method
@pytest.mark.parametrize("net", [mlp, normed], ids=["plain", "batch_norm"])
def test_clients_leave_broadcast_server_and_template_as_they_are(method, net):
    context, jobs = _jobs(method, net)
    sent = [state for job in jobs for state in (job.broadcast.shared, job.broadcast.extra)]
    before = fingerprint([*sent, context.template])
    for job in jobs:
        local.train(context, job)
        local.test(context, job)
    assert fingerprint([*sent, context.template]) == before


@every_method
def test_testing_changes_nothing_and_repeats(method):
    context, jobs = _jobs(method, mlp)
    once = [local.test(context, job) for job in jobs]
    assert once == [local.test(context, job) for job in jobs]


class StopAfter(Callback):
    """Ends a run after some round, as an interruption between two rounds does."""

    def __init__(self, rounds):
        self.rounds = rounds

    def on_round_end(self, run, result):
        self.should_stop = result.round == self.rounds


@every_method
def test_a_resumed_run_equals_an_unbroken_one(method, tmp_path):
    whole = fit(method, rounds=4)
    broken = fit(method, rounds=4, default_root_dir=str(tmp_path), callbacks=[StopAfter(2)])
    resumed = fit(method, rounds=4, default_root_dir=str(tmp_path), ckpt_path=str(broken.folder))
    assert broken.round == 2
    assert resumed.fingerprint == whole.fingerprint
    assert [_numbers(row) for row in resumed.history] == [_numbers(row) for row in whole.history]


def _numbers(row):
    return {key: value for key, value in row.items() if not key.startswith("time/")}


@every_method
def test_evaluating_more_often_changes_nothing(method):
    assert fit(method, evaluate_every=3).fingerprint == fit(method, evaluate_every=1).fingerprint


@every_method
def test_uploads_carry_what_is_declared_and_count_as_the_card_says(method):
    context, jobs = _jobs(method, mlp)
    for job in jobs:
        down, up = floats(context.module, job.info)
        upload = local.train(context, job).upload
        assert upload is not None
        assert set(upload.shared) <= set(context.module.shared_names())
        assert set(upload.extra) <= set(context.module.extra)
        size = 4
        assert nbytes(job.broadcast.shared) + nbytes(job.broadcast.extra) == size * down
        assert nbytes(upload.shared) + nbytes(upload.extra) == size * up


@every_method
def test_uploads_share_no_storage_with_the_module(method):
    context, jobs = _jobs(method, mlp)
    first = local.train(context, jobs[0])
    bits = _bits(first)
    local.train(context, jobs[1])
    assert _bits(first) == bits


@every_method
@pytest.mark.parametrize("net", [mlp, normed], ids=["plain", "batch_norm"])
def test_clients_of_one_class_and_of_one_sample_run(method, net):
    data = blobs(sizes=(8, 1, 5))
    x, y = data._splits["train"][2]
    data._splits["train"][2] = (x, torch.zeros_like(y))
    loop = FederatedLoop(rounds=2, progress=False)
    run = loop.fit(build(method, net(), optimizer=SGD), data)
    assert run.round == 2
    assert all(finite(state) for state in (run.server.shared, *run.kept.values()))


@every_method
def test_a_client_without_data_is_left_out(method):
    data = blobs(sizes=(8, 0, 5))
    loop = FederatedLoop(rounds=2, progress=False)
    run = loop.fit(build(method, mlp(), optimizer=SGD), data)
    assert 1 not in run.kept


@every_method
def test_rounds_without_anybody_leave_the_server_and_its_model(method):
    nobody = BernoulliSampler(1e-9, minimum=0, train_all=False)
    loop, module, data = federation(method, rounds=2, sampler=nobody)
    before = Federation(loop, module, data).run.server.shared
    run = loop.fit(module, data)
    assert fingerprint([run.server.shared]) == fingerprint([before])
    assert not run.kept
    assert (run.round, run.history[-1]["comm/bytes_total"]) == (2, 0)
    assert 0 <= run.history[-1]["test/personal/acc"] <= 1


def with_nan():
    """The inputs of client 1 are no numbers."""
    data = blobs()
    x, y = data._splits["train"][1]
    data._splits["train"][1] = (torch.full_like(x, float("nan")), y)
    return data


@every_method
def test_a_client_of_nan_is_left_out_and_reaches_nobody(method):
    loop = FederatedLoop(rounds=2, progress=False, on_nonfinite="skip")
    module = build(method, mlp(), optimizer=SGD)
    before = Federation(loop, module, with_nan()).run.server.shared
    run = loop.fit(module, with_nan())
    assert [row["train/discarded"] for row in run.history] == [1, 1]
    assert 1 not in run.kept
    assert all(finite(state) for state in run.kept.values())
    for name, value in run.server.shared.items():
        # FedProto's table starts with NaN, for classes without a prototype.
        assert not (value.isnan() & ~before[name].isnan()).any()


@every_method
def test_a_client_of_nan_ends_the_run_by_name(method):
    loop = FederatedLoop(rounds=2, progress=False)
    with pytest.raises(NonFiniteError, match="round 1, client 1: the loss or the weights"):
        loop.fit(build(method, mlp(), optimizer=SGD), with_nan())


@every_method
def test_who_sits_out_keeps_every_bit(method):
    """Of its state, whatever the others do meanwhile; and no kept entry is the server's."""
    federation_ = Stepped(build(method, mlp(), optimizer=SGD))
    federation_.round()
    before = clone(federation_.kept.get(1, {}))
    federation_.round(0, 2)
    assert fingerprint([federation_.kept.get(1, {})]) == fingerprint([before])
    assert not set(federation_.kept.get(1, {})) & set(federation_.state.shared)


def _jobs(method, net):
    """The jobs of a second round, so that kept states are not empty."""
    loop, module, data = federation(method, net, rounds=2, sampler=UniformSampler(1.0))
    federation_ = Federation(loop, module, data)
    for _ in federation_.rounds(lambda result: None):
        break
    jobs = [federation_._job(client, federation_.run.server, 2) for client in range(3)]
    return federation_.context, [
        replace(job, kept=clone(job.kept), splits=("test",)) for job in jobs
    ]


def _bits(result):
    upload = result.upload
    return fingerprint([result.kept, {} if upload is None else {**upload.shared, **upload.extra}])
