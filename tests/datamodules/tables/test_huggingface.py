"""Folders that the package ``datasets`` wrote."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules import IID, ByDomain, HFDataset
from pfl.core.task import Regression
from tests.helpers.data import batch
from tests.helpers.messages import parts

COLUMNS = {
    "tokens": [[i, i + 1, 0] for i in range(8)],
    "mask": [[1, 1, 0]] * 8,
    "value": [i / 2 for i in range(8)],
    "text": ["word"] * 8,
    "ragged": [[i + 1] * (i + 1) for i in range(8)],
    "label": ["pos", "neg"] * 4,
    "site": [10, 9] * 4,
    "day": [f"2020-01-0{8 - i}" for i in range(8)],
    "hole": [1, None] * 4,
}


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def folder(datasets, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("saved") / "all")
    datasets.Dataset.from_dict(COLUMNS).save_to_disk(path)
    return path


def saved(folder, inputs="tokens", target="label", num_clients=1, partition=None, **options):
    return HFDataset(folder, inputs, target, num_clients, partition or IID(), **options)


def test_columns_are_inputs_and_classes(folder):
    data = saved(folder)
    ids = data.division.holdings[0].train
    assert (data.class_names, data.input_shape) == (["neg", "pos"], (3,))
    assert batch(data).x.equal(torch.tensor(COLUMNS["tokens"])[ids])
    assert batch(data).y.tolist() == [1 - i % 2 for i in ids]


def test_several_columns_are_a_dictionary(folder):
    data = saved(folder, ["tokens", "mask"], "value", task="regression")
    ids = data.division.holdings[0].train
    assert data.task == Regression()
    assert batch(data).x["mask"].equal(torch.tensor(COLUMNS["mask"])[ids])
    assert batch(data).y[:, 0].tolist() == [i / 2 for i in ids]


def test_lists_of_tokens_are_padded_and_cut(folder):
    """Row i has i + 1 tokens, all i + 1."""
    data = saved(folder, ["ragged", "value"], max_length=4)
    ids = data.division.holdings[0].train
    expected = [([i + 1] * (i + 1) + [0] * 4)[:4] for i in ids.tolist()]
    assert batch(data).x["ragged"].tolist() == expected
    assert batch(data).x["value"].shape == (len(ids),)
    with pytest.raises(ValueError, match=r"max_length.* 1.* 0"):
        saved(folder, max_length=0)


def test_columns_say_client_and_time(folder):
    """Days run backwards: of the even rows 0 to 6 the first is the latest, and tested on."""
    options = {"client_column": "site", "time_column": "day", "test_protocol": "future"}
    data = saved(folder, num_clients=2, partition=ByDomain(), **options)
    assert data.contents.domain_names == ("9", "10")
    held = data.division.holdings[1]
    assert (held.train.tolist(), held.test.tolist()) == ([6, 4, 2], [0])


def test_splits_and_class_labels_are_those_of_the_data_set(datasets, tmp_path):
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "emu"])}
    )
    pixels = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    rows = {"image": [Image.fromarray(pixels)] * 4, "label": [0, 1, 1, 0]}
    train = datasets.Dataset.from_dict(rows, features)
    splits = {"train": train, "validation": train, "test": train.select([1])}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "d"))
    data = saved(str(tmp_path / "d"), "image", test_protocol="global", mean=0.0, std=1.0)
    assert (data.class_names, data.input_shape) == (["cat", "dog", "emu"], (3, 2, 3))
    assert data.contents.num_train == 4
    assert data.pooled_test().targets.tolist() == [1]
    expected = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    assert torch.allclose(batch(data).x[0], expected)
    datasets.DatasetDict({"validation": train}).save_to_disk(str(tmp_path / "v"))
    with pytest.raises(ValueError, match=parts("'train' ~ validation")):
        saved(str(tmp_path / "v"), "image").setup()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "none"}, "'none' ~ tokens, mask"),
        ({"inputs": "text"}, "row 1, column 'text': 'word' ~ numbers ~ convert"),
        ({"inputs": "ragged"}, "x of sample 1 ~ (2,) ~ (1,) ~ max_length"),
        ({"target": "value"}, "'value' ~ task"),
        ({"target": "hole"}, "row 2, column 'hole': ~ missing"),
    ],
)
def test_columns_that_do_not_fit_are_refused(folder, options, message):
    with pytest.raises(ValueError, match=parts(message)):
        saved(folder, **options).setup()


def test_the_package_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=parts("here ~ datasets: pip install 'pfl-lightning[")):
        saved("here").setup()


def test_a_folder_that_is_none_is_refused(datasets, tmp_path):
    with pytest.raises(OSError, match="none"):
        saved(str(tmp_path / "none")).setup()


def test_an_offset_that_is_damaged_is_told_of_the_file(datasets, tmp_path):
    rows = {"x": [[1.0, 2.0]] * 9, "y": [0, 1, 2] * 3}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "d"))
    (file,) = (tmp_path / "d").glob("*.arrow")
    # The third list begins at the fourth number, 4 as four bytes, and then at 260.
    offsets = np.arange(0, 20, 2, dtype=np.int32).tobytes()
    whole = file.read_bytes()
    place = whole.index(offsets) + 9
    file.write_bytes(whole[:place] + b"\x01" + whole[place + 1 :])
    with pytest.raises(ValueError, match=r"is damaged: .*offset.* save it again"):
        saved(tmp_path / "d", "x", "y").setup()
