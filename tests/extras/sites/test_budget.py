"""An owner's epsilon: what a site lets out of single samples, whatever a server says."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lightning_modules import FedAvg, FedAvgP, FedPer, FedProto
from pfl.__main__ import main
from pfl.core.plain import plain_value
from pfl.core.state import clone
from pfl.core.types import Broadcast
from pfl.disk.reading import FileError
from pfl.engines.transport import wire
from pfl.extras.privacy import accountant, separable
from pfl.extras.privacy.budget import _SIGMAS, Budget
from pfl.extras.privacy.privacy import Privacy
from pfl.extras.privacy.sample_level import PrivateSamples
from pfl.extras.sites import command as verb_site
from pfl.extras.sites.site import Allowed, Refusal, Site
from pfl.extras.sites.transport import SiteError
from pfl.testing.toy import ToyNet
from tests.extras.sites.asking import hello, order, read
from tests.extras.sites.hosts import OWNER, RUN, Looks, host, owner, ran
from tests.helpers.federation import SGD, ToyFederation, contexts
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

pytest.importorskip("dp_accounting")

PRIVATE = plain_value(Privacy(1.0, 2.0, 1e-3, level="sample", noise="system"))

BALANCED = {
    **RUN["data"],
    "init_args": {**RUN["data"]["init_args"], "loss": {"class_weights": "balanced"}},
}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")


def toy_job(method=FedPer, **level):
    """Return the context and a job of client 0: six samples, in two batches of an epoch."""
    federation = ToyFederation(method(mlp(), optimizer=SGD), blobs((6, 5, 4), batch_size=3))
    job = federation.job(0)
    private = PrivateSamples(**{"clip": 1.0, "sigma": 2.0, "system": True, **level})
    info = replace(job.info, label_counts=None)
    return federation.context, replace(job, info=info, steps=(private,))


def spent(file="spent.json"):
    return [tuple(line.values()) for line in json.loads(Path(file).read_text())["spent"]]


def test_rounds_of_all_runs_add_up():
    """A host has one budget for its data, whatever run a server starts."""
    own, (other, _) = Budget(Path("spent.json"), 50.0, 1e-3), host(1)
    one, told = host(0, allowed=Allowed(("FedPer",), budget=own))
    for _ in range(2):
        ran(one, other, uplink=[PRIVATE])
    batches = -(-len(owner().data.split(0, "train")) // 16)
    assert spent() == [(batches, 2.0, 4 * batches)]
    assert not any("refused" in line for line in told)


def test_the_run_ends_before_a_round_that_would_exceed_the_owners_epsilon():
    (other, _), own = host(1), Budget(Path("spent.json"), 0.1, 1e-3)
    one, told = host(0, allowed=Allowed(("FedPer",), budget=own))
    with pytest.raises(SiteError, match=parts("client 0 (here) refuses ~ allows epsilon 0.1 at")):
        ran(one, other, uplink=[PRIVATE])
    assert told[-1].startswith("refused train: the owner allows epsilon 0.1 at")
    assert not [*Path("site0").rglob("*.state"), *Path().glob("spent.json")]


def test_epsilon_is_that_of_all_steps_at_the_site():
    """Of a second process too; two kinds of noise stand apart, and a refused job is free."""
    allowed = accountant.of_parts(((0.5, 2.0, 4), (0.5, 3.0, 2)), 1e-2)
    for level, after in [
        ({}, [(2, 2.0, 2)]),
        ({"sigma": 3.0}, [(2, 2.0, 2), (2, 3.0, 2)]),
        ({}, [(2, 2.0, 4), (2, 3.0, 2)]),
    ]:
        Budget(Path("spent.json"), allowed, 1e-2).charge(*toy_job(**level))
        assert spent() == after
    with pytest.raises(Refusal, match=parts(f"epsilon {allowed:g} ~ 0.01 ~ round 1")):
        Budget(Path("spent.json"), allowed, 1e-2).charge(*toy_job(sigma=50.0))
    assert spent() == after


def test_sigma_counts_as_the_next_lower_of_a_hundred():
    """Never as more noise than there is; usual values are exact."""
    assert len(_SIGMAS) == 100
    assert sorted({*_SIGMAS}) == _SIGMAS
    assert {0.3, 0.5, 0.8, 1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 50.0, 1000.0} <= {*_SIGMAS}
    for number, (sigma, counted) in enumerate([(1.0999, 1.0), (1.1, 1.1), (999.9, 900.0)]):
        file = Path(f"{number}.json")
        Budget(file, 50.0, 1e-2).charge(*toy_job(sigma=sigma))
        assert spent(file) == [(2, counted, 2)]


def test_what_is_written_can_be_read_and_a_kind_too_many_is_refused(monkeypatch):
    """After it the site starts again, and known kinds are charged as before."""
    monkeypatch.setattr(accountant, "of_parts", lambda parts, delta: len(parts) / 1000)
    file = Path("spent.json")
    lines = [{"batches": n, "sigma": 2.0, "steps": 1} for n in range(2, 1001)]
    file.write_text(json.dumps({"spent": lines}))
    own = Budget(file, 8.0, 1e-2)
    own.charge(*toy_job(sigma=3.0))
    assert len(spent()) == 1000
    with pytest.raises(Refusal, match=parts("1000 kinds of steps ~ earlier rounds")):
        own.charge(*toy_job(sigma=4.0))
    Budget(file, 8.0, 1e-2).charge(*toy_job(sigma=3.0))
    assert (2, 3.0, 4) in spent()
    assert len(spent()) == 1000
    with pytest.raises(ValueError, match="at most 1000"):
        own._write({(n, 2.0): 1 for n in range(1, 1002)})


ACCOUNTS = st.dictionaries(
    st.tuples(st.integers(1, 2**31 - 1), st.sampled_from(_SIGMAS)),
    st.integers(1, 10**6),
    max_size=30,
)
SOME = settings(max_examples=100, derandomize=True, deadline=None)


def check_account(spent):
    with TemporaryDirectory() as folder:
        budget = Budget(Path(folder, "spent.json"), 8.0, 1e-2)
        budget._write(spent)
        assert budget._read() == spent


test_an_account_that_is_written_is_read = SOME(given(ACCOUNTS)(check_account))
test_an_account_that_is_written_is_read_in_many_draws = pytest.mark.long(
    settings(SOME, max_examples=2000)(given(ACCOUNTS)(check_account))
)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [((0, 2.0), 1), ((2, 0.29), 1), ((2, 1001.0), 1), ((2, 2.0), 0), ((2, 2.0), 10**6 + 1)],
)
def test_an_account_that_could_not_be_read_is_not_written(kind, steps):
    with pytest.raises(ValueError, match="validation error for Spent"):
        Budget(Path("spent.json"), 8.0, 1e-2)._write({kind: steps})
    assert not Path("spent.json").exists()


def test_other_sites_do_not_wait_for_epsilon_and_both_are_charged(monkeypatch):
    """Another site charges while it is computed: it is computed once more, with its steps."""
    file, asked = Path("spent.json"), []
    one, other = Budget(file, 50.0, 1e-2), Budget(file, 50.0, 1e-2)
    computed = accountant.of_parts

    def of_parts(parts, delta):
        asked.append(parts)
        if len(asked) == 1:
            other.charge(*toy_job(sigma=3.0))
        return computed(parts, delta)

    monkeypatch.setattr(accountant, "of_parts", of_parts)
    one.charge(*toy_job())
    assert spent() == [(2, 2.0, 2), (2, 3.0, 2)]
    assert asked[-1] == ((0.5, 2.0, 2), (0.5, 3.0, 2))
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("method", "level", "told"),
    [
        (FedPer, {"system": False}, "level: sample and noise: system ~ system=False"),
        (FedPer, {"sigma": 0.2}, "sigma ~ at least 0.3 ~ 0.2"),
        (FedPer, {"sigma": 0.0}, "sigma ~ at least 0.3 ~ 0"),
        (FedPer, {"sigma": 1e6}, "sigma ~ at most 1000 ~ 1e+06"),
        (FedProto, {}, "FedProto ~ statistics of the samples without noise"),
    ],
)
def test_steps_that_do_not_keep_samples_private_are_refused(method, level, told):
    with pytest.raises(Refusal, match=parts(told)):
        Budget(Path("spent.json"), 50.0, 1e-2).charge(*toy_job(method, **level))
    assert not Path("spent.json").exists()


def test_a_job_without_privacy_is_refused_whatever_the_run_said():
    context, job = toy_job()
    with pytest.raises(Refusal, match=parts("the owner ~ level: sample ~ round 1 has None")):
        Budget(Path("spent.json"), 50.0, 1e-2).charge(context, replace(job, steps=()))


OTHER = plain_value(Privacy(1.0, 2.0, 1e-3, noise="system"))


@pytest.mark.parametrize("uplink", [None, [], [OTHER], "Privacy", [{"class_path": 3}, 7]])
def test_a_run_without_privacy_of_samples_is_refused_at_once(uplink):
    one, _ = host(0, allowed=Allowed(("FedPer",), budget=Budget(Path("s.json"), 50.0, 1e-3)))
    run = {**RUN, "loop": {**RUN["loop"], "uplink": uplink}}
    content = hello(config=yaml.safe_dump(run))
    record, _ = read("hello", wire.Introduction, one.answer({"verb": "hello"}, content))
    assert "the owner requires Privacy in loop.uplink, with level: sample" in record.message


def test_a_damaged_account_is_no_new_one():
    line = '{"spent": [{"batches": %s, "sigma": %s, "steps": %s}]}'
    wrong = [("0", "1.0", "2"), ("2", "NaN", "2"), ("2", "Infinity", "2"), ("2", "0", "2")]
    wrong += [("2", "1.0", str(10**18)), ("2", "1.0", "0"), ("2.0", "1.0", "1"), ("2", '"1"', "1")]
    for content in ("{", "{}", "[]", "9" * 5000, *(line % one for one in wrong)):
        Path("spent.json").write_text(content)
        with pytest.raises(FileError, match=r"spent\.json is damaged"):
            Budget(Path("spent.json"), 50.0, 1e-2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"epsilon": 8}, "give both epsilon and delta, or neither"),
        ({"epsilon": 8, "delta": 0.5}, "delta=0.5 must be below"),
        ({"epsilon": 0, "delta": 1e-4}, "epsilon must be positive, got 0"),
        ({"epsilon": 8, "delta": 1e-4, "data": BALANCED}, "class_weights: balanced counts"),
        ({"epsilon": 8, "delta": 1e-4, "class_counts": True}, "class_counts reveals single"),
        ({"clip": 1.0}, "give epsilon and delta as well"),
    ],
)
def test_a_mistake_in_the_budget_is_told_in_one_line(options, told, capsys):
    Path("my_site.yaml").write_text(yaml.safe_dump({**OWNER, "data": RUN["data"], **options}))
    assert main(["site", "--config", "my_site.yaml"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def privately(tmp_path, data=None, scores=False, module=None, epsilon=50.0, **level):
    """Return a site with an owner's epsilon, and a message to train."""
    found = contexts(module or FedPer(mlp(), optimizer=SGD), data or blobs((6,), batch_size=3))
    budget = Budget(tmp_path / "spent.json", epsilon, 1e-2)
    allowed = Allowed(class_counts=True, scores=scores, budget=budget)
    site = Site(found, 0, tmp_path / "site", allowed=allowed)
    private = PrivateSamples(**{"clip": 1.0, "sigma": 2.0, "system": True, **level})
    return site, order(rounds=1, steps=[wire.StepRecord.of(private)])


def told(site, verb, order, sent=None):
    form = {"train": wire.Report, "test": wire.Marks, "hello": wire.Introduction}[verb]
    return read(verb, form, site.answer(verb, wire.written(verb, order, sent)))[0]


def test_losses_and_scores_stay_at_the_site(tmp_path):
    """Unless the owner sends them."""
    site, order = privately(tmp_path)
    report, marks = told(site, "train", order), told(site, "test", order)
    assert (report.train.names, report.scores, marks.scores) == ([], {}, {})
    site.close()
    site, order = privately(tmp_path, scores=True)
    report, marks = told(site, "train", order), told(site, "test", order)
    assert report.train.names
    assert marks.scores["test"].names[0] == "acc"
    assert report.scores["test"].names[0] == "acc"


def test_the_owners_model_is_exported_without_scores(tmp_path):
    site, order = privately(tmp_path)
    exported = []
    site._tested = exported.append
    told(site, "train", order)
    told(site, "test", order)
    assert len(exported) == 2


def test_that_a_sample_fails_is_told_to_the_owner_alone(tmp_path):
    """Of a network that the server chose, which has too few rows for one of the samples."""
    data = blobs((6,), batch_size=6)
    rows = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [11.0]])
    data.splits["train"], lines = [(rows, torch.zeros(6).long())], []
    # Tuned on the same samples before a test.
    module = FedAvgP(ToyNet(Looks(), nn.Linear(6, 3)), optimizer=SGD)
    site, order = privately(tmp_path, data, module=module)
    site._notify = lines.append
    with pytest.warns(UserWarning, match=parts("a sample ~ counts as zero ~ index out of range")):
        report = told(site, "train", order)
    assert (report.steps, report.samples, report.finite) == (1, 6, True)
    sent = Broadcast(clone(site._contexts.first.template))
    tuned = replace(order, sent=True, steps=[])
    assert told(site, "test", tuned, sent).scores == {}
    assert lines[-1].startswith("failed test: ")
    assert "IndexError" in lines[-1]
    site.close()
    # What does not depend on samples is told: the examination fails, and not in words of theirs.
    module = FedAvg(mlp(dim=1, num_classes=2), optimizer=SGD)
    site, order = privately(tmp_path, data, module=module)
    assert told(site, "train", order).message == "it failed; only the site's owner can see why"


def test_whether_a_method_is_refused_depends_on_no_sample(tmp_path, monkeypatch):
    """It is examined on random samples of the same shapes."""
    seen, inner = [], separable._batch
    monkeypatch.setattr(separable, "_batch", lambda *a: seen.append(inner(*a)) or seen[-1])
    for value in (0.0, 1e30):
        data = blobs((6,), batch_size=3)
        data.splits["train"] = [(torch.full((6, 5), value), torch.zeros(6).long())]
        site, order = privately(tmp_path, data)
        told(site, "train", order)
        site.close()
    before, after = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert len(before) == len(after) > 0
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


def test_a_private_site_goes_on_from_no_state_of_a_run_without_noise(tmp_path):
    site, _ = privately(tmp_path)
    folder = site._kept.folder
    site.close()
    found = contexts(FedPer(mlp(), optimizer=SGD), blobs((6,), batch_size=3))
    assert Site(found, 0, tmp_path / "site")._kept.folder != folder


def test_two_sites_of_one_table_have_one_budget(tmp_path):
    """Also while both are at work: each reads what the other has spent."""
    one, other = (Budget(tmp_path / "t.csv.spent.json", 50.0, 1e-2) for _ in range(2))
    for budget in (one, other, one):
        budget.charge(*toy_job())
    assert spent(tmp_path / "t.csv.spent.json") == [(2, 2.0, 6)]


def test_the_budget_lies_beside_the_data_and_is_named_by_the_owners_folder_else(tmp_path):
    table, folder = tmp_path / "data" / "t.csv", tmp_path / "site"
    for data, place in [
        (SimpleNamespace(path=str(table)), table.with_name("t.csv.spent.json")),
        (SimpleNamespace(root=table.parent), tmp_path / "data.spent.json"),
        (SimpleNamespace(), folder / "spent.json"),
    ]:
        assert verb_site._spent_file(data, folder) == place


def test_the_owner_sets_clip_and_least_sigma():
    budget = Budget(Path("spent.json"), 50.0, 1e-2, clip=1.0, sigma=1.5)
    budget.charge(*toy_job())
    with pytest.raises(Refusal, match=parts("the owner requires clip=1 ~ round 1 has 0.5")):
        budget.charge(*toy_job(clip=0.5))
    with pytest.raises(Refusal, match=parts("sigma must be at least 1.5 ~ got 1.4")):
        budget.charge(*toy_job(sigma=1.4))
    with pytest.raises(ValueError, match=parts("clip ~ 1e-12 ~ 0")):
        Budget(Path("spent.json"), 50.0, 1e-2, clip=0.0)


def test_more_steps_than_can_be_accounted_for_are_refused():
    context, job = toy_job(sigma=1000.0)
    Path("spent.json").write_text(
        json.dumps({"spent": [{"batches": 2, "sigma": 1000.0, "steps": 10**6}]})
    )
    with pytest.raises(Refusal, match=parts("accounts for 1000000 steps ~ 1000002")):
        Budget(Path("spent.json"), 50.0, 1e-2).charge(context, job)


def test_a_charge_is_on_the_disk_before_the_steps_are_taken(monkeypatch):
    """The file and its folder."""
    synced, inner = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(file) or inner(file))
    Budget(Path("spent.json"), 50.0, 1e-2).charge(*toy_job())
    assert len(synced) == 2
