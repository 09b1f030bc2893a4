"""Answers that can be read and are not right: the site of client 1 is faulty, or hostile."""

from __future__ import annotations

import pytest
import torch

from lightning_modules.fedsimsup import FedSimSup
from lightning_modules.scaffold import SCAFFOLD
from pfl.disk import container
from pfl.extras.codecs.coding import Codecs
from pfl.extras.privacy.privacy import Privacy
from pfl.extras.sites import answers
from pfl.extras.sites.transport import GoneError
from pfl.federation.sampling import UniformSampler
from tests.extras.sites.sites import Garbles, Recorded, everyone, fit, small
from tests.helpers.discovery import build
from tests.helpers.federation import SGD
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

SIZES = (4, 9, 3)
PRIVACY = Privacy(clip=1.0, sigma=0.0, delta=1e-3, adaptive=True)
WEIGHT = "shared:net.backbone.0.weight"


def told(**changes):
    """Return a change of what a site reports."""

    def change(answer):
        content, tensors = container.unpack(answer)
        (name,) = content
        return container.pack({name: {**content[name], **changes}}, tensors)

    return change


def sent(edit):
    """Return a change of the tensors that a site sends."""

    def change(answer):
        content, tensors = container.unpack(answer)
        edit(tensors)
        return container.pack(content, tensors)

    return change


def entry(name, new):
    return sent(lambda tensors: tensors.update({name: new(tensors.get(name))}))


def refused(change, what, tmp_path, module=None, sampler=everyone, **options):
    options = {"data": blobs(SIZES), "sampler": sampler, **options}
    for_engine = {k: options.pop(k) for k in ("verb", "turn") if k in options}
    verb = for_engine.get("verb", "train")
    with pytest.raises(GoneError, match=parts(f"client 1 ~ no answer to {verb}: ~ {what}")):
        fit(module or small(), Garbles(tmp_path, change, **for_engine), **options)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (told(client=0), "it is from client 0"),
        (told(upload=10**6), "client 1 with 9 samples says client 1 with 1000000"),
        (told(upload=-9), "train.upload: ~ greater than or equal to 0, got -9"),
        (told(steps=-1), "train.steps: ~ greater than or equal to 0"),
        (entry(WEIGHT, lambda value: value[:1]), "'net.backbone.0.weight' as float32[1, 5]"),
        (entry(WEIGHT, torch.Tensor.double), "as float64[6, 5] instead of float32[6, 5]"),
        (entry("shared:net.head.weight", lambda _: torch.zeros(3, 6)), "'net.head.weight', which"),
        (sent(lambda tensors: tensors.pop(WEIGHT)), "upload lacks 'net.backbone.0.weight'"),
        (entry("extra:images", lambda _: torch.zeros(9, 5)), "the extra 'images', missing"),
        (
            entry("kept:net.head.weight", lambda _: torch.zeros(3, 6)),
            "it has state that the client keeps",
        ),
    ],
)
def test_what_does_not_fit_its_question_is_no_answer(change, what, tmp_path):
    """Not another client's place, weight or part of the network."""
    refused(change, what, tmp_path)


FORMS = [torch.Tensor.double, lambda v: v[None], lambda v: v.repeat(2), lambda v: v[:-1]]


@pytest.mark.parametrize("error", [KeyError("a key"), TypeError("no such number"), RuntimeError()])
def test_what_cannot_be_looked_at_is_no_answer(error, tmp_path, monkeypatch):
    stumbles_over_client_1(error, monkeypatch)
    refused(lambda answer: answer, type(error).__name__, tmp_path)


def test_that_memory_is_short_here_is_no_fault_of_a_site(tmp_path, monkeypatch):
    stumbles_over_client_1(MemoryError(), monkeypatch)
    with pytest.raises(MemoryError):
        fit(small(), Recorded(tmp_path), data=blobs(SIZES), sampler=everyone)


def stumbles_over_client_1(error, monkeypatch):
    inner = answers.CHECKS["train"]

    def check(reported, job, *given):
        if job.info.client == 1:
            raise error
        inner(reported, job, *given)

    monkeypatch.setattr(answers, "CHECKS", {**answers.CHECKS, "train": check})


@pytest.mark.parametrize("new", FORMS)
def test_what_is_sent_in_addition_has_the_form_of_its_entry(new, tmp_path):
    module = build(SCAFFOLD, mlp(), optimizer=SGD)
    refused(entry("extra:change", new), "upload sends 'change' as", tmp_path, module)


def test_what_is_sent_in_addition_is_sent_by_everyone(tmp_path):
    module = build(SCAFFOLD, mlp(), optimizer=SGD)
    change = sent(lambda tensors: tensors.pop("extra:change"))
    refused(change, "upload lacks 'change'", tmp_path, module)


def test_weights_that_are_not_finite_are_seen_whatever_the_site_says(tmp_path):
    change = entry(WEIGHT, lambda value: torch.full_like(value, torch.nan))
    options = {"data": blobs(SIZES), "sampler": everyone, "on_nonfinite": "skip"}
    run = fit(small(), Garbles(tmp_path, change), **options)
    assert run.failures == {"discarded": {1: 1}}
    assert all(value.isfinite().all() for value in run.server.shared.values())


@pytest.mark.parametrize("verb", ["train", "test"])
def test_scores_have_the_names_that_a_test_gives(verb, tmp_path):
    change = told(scores={"test": {"names": ["round"], "values": [7]}})
    points = ["post_local" if verb == "train" else "post_broadcast"]
    refused(change, "loss, ~ got round", tmp_path, verb=verb, evaluate_at=points)


@pytest.mark.parametrize(
    ("up", "part", "new", "what"),
    [
        ("qsgd", "level", lambda value: value[1:], "'level': 'uint8[14]'} instead of"),
        ("cast", "value", lambda value: value.float(), "'float32[6, 5]'} instead of"),
        ("topk", "place", lambda value: value | 255, "an index of 31 in a tensor of 30 numbers"),
        ("randk", "extra", lambda _: torch.zeros(3), "'extra': 'float32[3]'} instead of"),
    ],
)
def test_encoded_weights_can_be_decoded(up, part, new, what, tmp_path):
    change = entry(f"{WEIGHT}:{part}", new)
    what = f"encodes 'net.backbone.0.weight' wrongly: ~ {what}"
    refused(change, what, tmp_path, uplink=[Codecs(up=up)])


def test_all_encoded_weights_are_sent(tmp_path):
    change = sent(lambda tensors: tensors.pop(f"{WEIGHT}:value"))
    refused(change, "upload lacks 'net.backbone.0.weight'", tmp_path, uplink=[Codecs(up="cast")])


def test_encoded_weights_are_sent_encoded(tmp_path):
    change = entry(WEIGHT, lambda _: torch.zeros(6, 5))
    refused(change, "'net.backbone.0.weight', which", tmp_path, uplink=[Codecs(up="cast")])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (told(upload=9), "reports 9 samples, but all clients count as one"),
        (entry(WEIGHT, lambda value: value[:1]), "as float64[1, 5] instead of float32[6, 5]"),
        (entry(WEIGHT, torch.Tensor.long), "as int64["),
        (entry("extra:passage/whole", lambda value: value.expand(4)), "whole' as float32[4]"),
        (entry("extra:images", lambda _: torch.zeros(9, 5)), "the extra 'images', which stays"),
    ],
)
def test_differences_of_a_private_run_are_as_declared(change, what, tmp_path):
    options = {"sampler": UniformSampler(1.0), "uplink": [PRIVACY]}
    refused(change, what, tmp_path, turn=1, **options)


@pytest.mark.parametrize("counts", [[9, 0], [5, 5, 0], [3, 3, 2]])
def test_class_counts_fit_the_samples_and_the_classes(counts, tmp_path):
    change, module = told(label_counts=counts), FedSimSup(mlp(), mlp(), optimizer=SGD)
    what = "label_counts do not fit 9 samples of 3 classes"
    refused(change, what, tmp_path, module, verb="hello", turn=1)


def test_a_site_has_no_fewer_than_no_samples(tmp_path):
    change = told(sizes={"train": -9, "val": 0, "test": 0})
    refused(
        change, "hello.sizes.train: ~ greater than or equal to 0", tmp_path, verb="hello", turn=1
    )
