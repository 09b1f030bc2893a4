"""Words with a meaning of their own are checked before anything heavy is imported."""

from __future__ import annotations

import sys

import pytest
import torchmetrics

from pfl.core import words
from pfl.core.words import Device, Metrics


@pytest.mark.parametrize("name", ["gpu", "cuda"])
def test_a_gpu_needs_its_driver(name, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(words, "_has_driver", lambda: True)
    Device().check(name, closed=True)
    monkeypatch.setattr(words, "_has_driver", lambda: False)
    with pytest.raises(ValueError, match=f"this machine has no {name}, or lacks its driver"):
        Device().check(name, closed=True)


def test_what_may_be_there_is_left_to_lightning(monkeypatch):
    for name in ("auto", "cpu", "tpu"):
        Device().check(name, closed=True)
    # A module of somebody may register an accelerator.
    Device().check("xpu", closed=False)
    with pytest.raises(ValueError, match="there is no accelerator 'xpu'"):
        Device().check("xpu", closed=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    for name in ("mps", "gpu"):
        Device().check(name, closed=True)


def test_every_metric_of_torchmetrics_is_one():
    named = [f"torchmetrics.{name}" for name in torchmetrics.__all__ if name != "functional"]
    Metrics().check(named, closed=True)
    Metrics().check([{"metric": named[0], "name": "own"}], closed=True)
    for one in named:
        with pytest.raises(ValueError, match="is not a metric"):
            Metrics().check(f"{one}X", closed=True)
