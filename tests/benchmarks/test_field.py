"""The field's workloads: loops by hand and engines train the same federation."""

from __future__ import annotations

from argparse import Namespace
from functools import partial

import pytest
import torch

from benchmarks import field, rivals
from benchmarks.field import WORKLOADS, Workload, begin, by_hand, peak, rows, turns
from benchmarks.rivals.worker import NETWORKS
from lightning_modules.nets import MLP
from pfl.engines import op_threads

TINY = Workload(partial(MLP, 10, (4,), []), (4,), 6, 5, cohort=3, epochs=2, batch_size=2, rounds=2)
GIVEN = Namespace(engines=["sequential", "vectorised"], rivals=["not.installed:rounds"])


def test_each_variant_has_its_turns_its_peak_and_its_row(capsys):
    seconds = turns(begin(TINY, GIVEN), TINY, 2)
    assert {*map(len, seconds.values())} == {2}
    assert [*seconds][-2:] == ["`sequential`", "`vectorised`"]
    assert "not.installed:rounds is left out: No module named" in capsys.readouterr().err
    assert peak(TINY, GIVEN, "`sequential`") >= 0
    _, _, *table = rows(
        {"by hand": [2.0, 4.0], "by hand, 2": [9.0, 9.0], "a": [1, 4]}, {"by hand": 1}
    )
    assert table[0] == "| by hand | 3.000 (2.000-4.000) | 1.00 (1.00-1.00) | 1 |"
    assert table[2] == "| a | 2.500 (1.000-4.000) | 0.75 (0.50-1.00) |  |"


def test_a_rival_takes_part_if_it_is_installed(monkeypatch):
    monkeypatch.setattr(field, "his", by_hand, raising=False)
    given = Namespace(engines=[], rivals=["benchmarks.field:his"])
    assert next(begin(TINY, given)["benchmarks.field:his"]) > 0


@pytest.mark.parametrize("name", rivals.NAMES)
def test_a_rival_without_its_environment_names_the_command(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PFL_RIVALS", str(tmp_path))
    given = Namespace(engines=[], rivals=[f"benchmarks.rivals:{name}"])
    assert all(one.startswith("by hand") for one in begin(TINY, given))
    assert f"no environment for it: python -m benchmarks.rivals {name}" in capsys.readouterr().err


@pytest.mark.parametrize("name", WORKLOADS)
def test_rivals_train_the_same_network(name, tmp_path):
    ours, net = WORKLOADS[name].start.eval(), NETWORKS[name]().eval()
    for value, given in zip(net.parameters(), ours.parameters(), strict=True):
        value.data.copy_(given)
    x = torch.rand(2, *WORKLOADS[name].shape)
    assert torch.allclose(net(x), ours(x), atol=1e-6)


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
