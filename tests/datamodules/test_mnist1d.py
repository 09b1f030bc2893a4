"""Signals that the optional package mnist1d generates."""

from __future__ import annotations

import random
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from datamodules import MNIST1D
from tests.helpers.data import batch

real_mnist1d = pytest.mark.skipif(find_spec("mnist1d") is None, reason="mnist1d is not installed")


def test_a_package_that_is_not_there_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "mnist1d", None)
    with pytest.raises(ImportError, match=r"pip install 'pfl-lightning\[mnist1d\]'"):
        MNIST1D().setup()


@pytest.fixture
def generator(monkeypatch):
    """A stand-in for the package: signals of ones, times the digit."""
    from types import ModuleType, SimpleNamespace

    def make_dataset(arguments):
        random.seed(arguments.seed)
        np.random.seed(arguments.seed)
        y = np.arange(arguments.num_samples) % 10
        return {"x": np.ones((len(y), 40)) * y[:, None], "y": y}

    whole, data = ModuleType("mnist1d"), ModuleType("mnist1d.data")
    whole.data, data.get_dataset_args, data.make_dataset = data, SimpleNamespace, make_dataset
    monkeypatch.setitem(sys.modules, "mnist1d", whole)
    monkeypatch.setitem(sys.modules, "mnist1d.data", data)


def test_sensors_differ_by_gain_offset_and_slope(generator):
    """Digit y is y at all times: a sensor sees a straight line, of the same slope for all."""
    data = MNIST1D(sensors=3, samples=40, shift=0.5)
    assert (data.input_shape, data.num_classes, data.num_clients) == ((40,), 10, 3)
    assert len(data.contents.targets) == 120
    lines = []
    for client in range(3):
        found = batch(data, client)
        middle = found.x.mean(1).double()
        gain, offset = np.polyfit(found.y.double().numpy(), middle.numpy(), 1)
        slopes = (found.x[:, -1] - found.x[:, 0]) / 2
        assert slopes.std().item() < 1e-5
        residual = middle - (gain * found.y + offset)
        assert residual.abs().max().item() < 1e-5
        lines.append([gain, offset, slopes.mean().item()])
    spread = np.array(lines).std(0)
    assert (spread > 0.01).all()
    assert (np.array(lines)[:, 0] > 0).all()


def test_without_shift_sensors_are_alike(generator):
    found = batch(MNIST1D(sensors=2, samples=20, shift=0.0), 1)
    assert found.x[:, 7].tolist() == found.y.tolist()


def test_the_generators_seed_is_no_other_ones(generator):
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.rand()
    random.seed(5)
    np.random.seed(5)
    MNIST1D(sensors=2, samples=20).setup()
    assert (random.random(), np.random.rand()) == expected


@real_mnist1d
def test_the_real_signals():
    data = MNIST1D(sensors=2, samples=50, shift=0.0)
    assert batch(data).x.std().item() == pytest.approx(1, abs=0.2)
    again = MNIST1D(sensors=2, samples=50, shift=0.0)
    assert data.contents.content_hash() == again.contents.content_hash()
