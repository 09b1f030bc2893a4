"""The field's workloads: loops by hand and engines train the same federation."""

from __future__ import annotations

from argparse import Namespace
from functools import partial

import pytest
import torch

from benchmarks import field
from benchmarks.field import WORKLOADS, Workload, by_hand, peak, rows, turns, variants
from lightning_modules.nets import MLP
from pfl.engines import op_threads

TINY = Workload(partial(MLP, 10, (4,), []), (4,), 6, 5, cohort=3, epochs=2, batch_size=2, rounds=2)
GIVEN = Namespace(engines=["sequential", "vectorised"], rivals=["not.installed:rounds"])


def test_each_variant_has_its_turns_its_peak_and_its_row(capsys):
    started = {name: start() for name, start in variants(TINY, GIVEN).items()}
    seconds = turns(started, TINY, 2)
    assert {*map(len, seconds.values())} == {2}
    assert [*seconds][-2:] == ["`sequential`", "`vectorised`"]
    assert "not.installed:rounds is left out: No module named" in capsys.readouterr().err
    assert peak(TINY, GIVEN, "`sequential`") >= 0
    _, _, *table = rows({"by hand": [2.0, 4.0], "by hand, 2": [9.0, 9.0], "a": [1, 4]}, (1, 2, 3))
    assert table[0] == "| by hand | 3.000 (2.000-4.000) | 1.00 (1.00-1.00) | 1 |"
    assert table[2] == "| a | 2.500 (1.000-4.000) | 0.75 (0.50-1.00) | 3 |"


def test_a_rival_takes_part_if_it_is_installed(monkeypatch):
    monkeypatch.setattr(field, "his", by_hand, raising=False)
    given = Namespace(engines=[], rivals=["benchmarks.field:his"])
    assert next(variants(TINY, given)["benchmarks.field:his"]()) > 0


def test_threads_by_hand_give_the_bits_of_one():
    with op_threads.using(1):
        alone, beside = (by_hand(TINY, threads) for threads in (1, 2))
        for _ in range(2):
            one, two = next(alone), next(beside)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("name", "size"), [("cnn", 1_626_442), ("lenet", 44_426), ("logistic", 7_850)]
)
def test_the_networks_have_the_size_that_is_said(name, size):
    work = WORKLOADS[name]
    assert sum(value.numel() for value in work.start.parameters()) == size
    assert work.start.eval()(torch.zeros(2, *work.shape)).shape == (2, 10)
