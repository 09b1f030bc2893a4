"""An owner's epsilon: what a site lets out of single samples, whatever a server says."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from lightning_modules import FedPer, FedProto
from pfl.__main__ import main
from pfl.core.types import SampleLevel
from pfl.disk.reading import FileError
from pfl.engines.remote.budget import Budget
from pfl.engines.remote.host import Allowed
from pfl.engines.remote.site import Refusal
from pfl.engines.remote.transport import SiteError
from pfl.engines.transport import wire
from pfl.passage import accountant
from pfl.passage.privacy import Privacy
from tests.engines.remote.hosts import OWNER, RUN, host, owner, ran
from tests.helpers.federation import SGD, ToyFederation
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

pytest.importorskip("dp_accounting")

PRIVATE = asdict(Privacy(1.0, 2.0, 1e-3, level="sample", noise="system"))

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
    private = SampleLevel(**{"clip": 1.0, "sigma": 2.0, "system": True, **level})
    info = replace(job.info, label_counts=None)
    return federation.context, replace(job, info=info, sample_level=private)


def spent(file="spent.json"):
    return [tuple(line.values()) for line in json.loads(Path(file).read_text())["spent"]]


def test_rounds_of_all_runs_add_up():
    """A host has one budget for its data, whatever run a server starts."""
    own, (other, _) = Budget(Path("spent.json"), 50.0, 1e-3), host(1)
    one, told = host(0, allowed=Allowed(("FedPer",), budget=own))
    for _ in range(2):
        ran(one, other, privacy=PRIVATE)
    batches = -(-len(owner().data.split(0, "train")) // 16)
    assert spent() == [(batches, 2.0, 4 * batches)]
    assert not any("refused" in line for line in told)


def test_the_run_ends_before_a_round_that_would_exceed_the_owners_epsilon():
    (other, _), own = host(1), Budget(Path("spent.json"), 0.1, 1e-3)
    one, told = host(0, allowed=Allowed(("FedPer",), budget=own))
    with pytest.raises(SiteError, match=parts("client 0 (here) refuses ~ allows epsilon 0.1 at")):
        ran(one, other, privacy=PRIVATE)
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


@pytest.mark.parametrize(
    ("method", "level", "told"),
    [
        (FedPer, {"system": False}, "level: sample and noise: system ~ system=False"),
        (FedPer, {"sigma": 0.2}, "sigma ~ at least 0.3 ~ 0.2"),
        (FedPer, {"sigma": -2.0}, "sigma ~ at least 0.3 ~ -2"),
        (FedPer, {"sigma": math.nan}, "sigma ~ at least 0.3 ~ nan"),
        (FedProto, {}, "FedProto ~ statistics of the samples, without noise"),
    ],
)
def test_steps_that_do_not_keep_samples_private_are_refused(method, level, told):
    with pytest.raises(Refusal, match=parts(told)):
        Budget(Path("spent.json"), 50.0, 1e-2).charge(*toy_job(method, **level))
    assert not Path("spent.json").exists()


def test_a_job_without_privacy_is_refused_whatever_the_run_said():
    context, job = toy_job()
    with pytest.raises(Refusal, match=parts("the owner ~ level: sample ~ round 1 has None")):
        Budget(Path("spent.json"), 50.0, 1e-2).charge(context, replace(job, sample_level=None))


@pytest.mark.parametrize("privacy", [None, {**PRIVATE, "level": "user"}])
def test_a_run_without_privacy_of_samples_is_refused_at_once(privacy):
    one, _ = host(0, allowed=Allowed(("FedPer",), budget=Budget(Path("s.json"), 50.0, 1e-3)))
    run = {**RUN, "loop": {**RUN["loop"], "privacy": privacy}}
    hello = wire.written("hello", wire.Hello({}, False, yaml.safe_dump(run)))
    record, _ = wire.read("hello", wire.Introduction, one.answer({"verb": "hello"}, hello))
    assert "the owner asks for loop.privacy with level: sample" in record.message


def test_a_damaged_account_is_no_new_one():
    for content in ("{", "{}", '{"spent": [{"batches": 0, "sigma": 1.0, "steps": 2}]}'):
        Path("spent.json").write_text(content)
        with pytest.raises(FileError, match=r"spent\.json is damaged"):
            Budget(Path("spent.json"), 50.0, 1e-2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"epsilon": 8}, "give both epsilon and delta, or neither"),
        ({"epsilon": 8, "delta": 0.5}, "delta=0.5 must be below"),
        ({"epsilon": 0, "delta": 1e-4}, "epsilon must be positive, got 0"),
        ({"epsilon": 8, "delta": 1e-4, "data": BALANCED}, "class_weights: balanced is counted"),
    ],
)
def test_a_mistake_in_the_budget_is_told_in_one_line(options, told, capsys):
    Path("my_site.yaml").write_text(yaml.safe_dump({**OWNER, "data": RUN["data"], **options}))
    assert main(["site", "--config", "my_site.yaml"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
