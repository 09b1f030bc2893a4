"""`on_error: absent`: whoever fails in a round is absent from it, and named with the reason."""

from __future__ import annotations

import csv
import json
import random
import re
import warnings

import numpy as np
import pytest

from pfl.core.failure import JobError
from pfl.disk.reading import read_json
from pfl.extras.sites.transport import SiteError
from pfl.results.runs import RunFolder
from tests.engines.agreement import without
from tests.extras.sites.absent import check_faults, method, random_faults
from tests.extras.sites.sites import KINDS, Faulty, everyone, fit, same, small
from tests.helpers.messages import parts
from tests.helpers.toy import blobs

SIZES = (4, 9, 3)
REASONS = {
    "error": "a error =1+1, at the site of client 1 (loopback)",
    "refusal": "the site of client 1 (loopback) refuses train: a refusal =1+1",
    "lost": "the site of client 1 (loopback) has lost what client 1 keeps: a lost =1+1",
    "silence": "site 1 is gone (loopback): nobody is there",
    "damaged message": "the site of client 1 (loopback) sent no answer to train: the ",
    "damaged answer": "the site of client 1 (loopback) sent no answer to train: ",
}


def ran(folder, faults, engine=None, **options):
    engine = engine or Faulty(folder / "sites", faults, on_error="absent")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = fit(
            small(),
            engine,
            data=blobs(SIZES),
            **{"sampler": everyone, "default_root_dir": str(folder / "runs"), **options},
        )
    # That is for data without samples to test on.
    assert not any("no model is tested" in str(one.message) for one in told)
    return run


@pytest.mark.parametrize("case", range(4))
def test_survivors_get_the_numbers_of_a_run_without_the_absent(case, tmp_path):
    draw = random.Random(case)
    check_faults(tmp_path, method(draw), random_faults(draw, 0.2))


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_fails_is_named_with_the_reason(kind, tmp_path):
    """Also after a round that is not tested: the first of three."""
    run = ran(tmp_path, {(1, 1, "train"): kind, (1, 3, "train"): kind}, evaluate_every=3)
    with (run.folder / "clients.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["failed"]]
    assert [(row["round"], row["client"]) for row in rows] == [("1", "1"), ("3", "1")]
    assert all(row["failed"].startswith(REASONS[kind]) for row in rows)
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["failures"] == {"discarded": {"1": 2}}
    assert list(summary["reasons"]) == ["1"]
    assert summary["reasons"]["1"] == rows[1]["failed"]
    # The commands that read runs take the words for no score.
    read = RunFolder.read(run.folder)
    assert "failed" not in {*read.reported, *read.clients.columns}
    scores = np.asarray(read.over_rounds("test/personal/acc", read.evaluated()))
    assert scores[0, [0, 2]].tolist() == [
        row["test/personal/acc"] for row in run.latest.clients if row["client"] != 1
    ]


def test_an_absence_is_told_when_it_begins(tmp_path):
    """Client 1 fails in rounds 1, 2 and 4, and client 2 in round 2."""
    faults = {(1, number, "train"): "silence" for number in (1, 2, 4)}
    faults[2, 2, "train"] = "error"
    engine = Faulty(tmp_path, faults, on_error="absent")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(small(), engine, 4, blobs(SIZES), sampler=everyone)
    found = [re.findall(r"round (\d) .* without client (\d)", str(one.message)) for one in told]
    assert [pair for one in found for pair in one] == [("1", "1"), ("2", "2"), ("4", "1")]


def test_a_resumed_run_equals_an_unbroken_one_with_the_same_faults(tmp_path):
    faults = {(1, 1, "train"): "error", (0, 3, "train"): "silence", (2, 4, "test"): "lost"}
    whole = ran(tmp_path / "whole", faults, rounds=4)
    broken = ran(tmp_path / "parts", faults, rounds=2)
    again = ran(tmp_path / "parts", faults, rounds=4, ckpt_path=str(broken.folder))
    assert same(again, whole)
    assert again.failures == whole.failures == {"discarded": {1: 1, 0: 1}, "untested": {2: 1}}
    assert again.reasons == whole.reasons
    for name in ("clients.csv", "summary.json"):
        assert (again.folder / name).read_text() == (whole.folder / name).read_text()


def test_a_round_in_which_all_fail_is_one_without_clients(tmp_path):
    faults = {(client, 2, "train"): "error" for client in range(3)}
    run = ran(tmp_path, faults)
    alone = fit(
        small(), "sequential", data=blobs(SIZES), sampler=without({(c, 2) for c in range(3)})
    )
    assert run.fingerprint == alone.fingerprint
    assert run.history[1]["train/discarded"] == 3
    assert not any(key.startswith("test/") for key in run.history[1])


def test_a_run_in_which_all_fail_in_every_round_fails(tmp_path):
    faults = {(client, n, "train"): "error" for client in range(3) for n in (1, 2, 3)}
    with pytest.raises(JobError, match=parts("no client ~ 9 times ~ client 0: a error")):
        ran(tmp_path, faults)
    (folder,) = (tmp_path / "runs").glob("*/*")
    assert not read_json(folder / "summary.json")


def test_enough_sites_have_to_answer_all_the_same(tmp_path):
    faults = {(client, 2, "train"): "error" for client in (1, 2)}
    options = {"on_error": "absent", "min_sites": 2}
    with pytest.raises(SiteError, match="1 of 3 sites answered, but min_sites is 2"):
        ran(tmp_path, faults, Faulty(tmp_path / "a", faults, **options))
    del faults[2, 2, "train"]
    assert ran(tmp_path, faults, Faulty(tmp_path / "b", faults, **options)).round == 3
