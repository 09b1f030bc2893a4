"""The folder of JPEG files that runs of the ledger rest on is made of torchvision's CIFAR-10."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10

from benchmarks.jpeg import digest, main
from datamodules import ImageFolder
from datamodules.partition.partitioner import IID

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Ten smooth images a batch, one of each class, in the layout of the original archive."""
    folder = tmp_path / "data" / CIFAR10.base_folder
    folder.mkdir(parents=True)
    meta = {"label_names": CLASSES}
    (folder / CIFAR10.meta["filename"]).write_bytes(pickle.dumps(meta))
    slope = np.linspace(0, 200, 32)
    for name, _ in (*CIFAR10.train_list, *CIFAR10.test_list):
        colours = [
            [slope[:, None] + label + c + 0 * slope for c in (0, 9, 4)] for label in range(10)
        ]
        content = {"data": np.array(colours, np.uint8).reshape(10, -1), "labels": [*range(10)]}
        (folder / name).write_bytes(pickle.dumps(content))
    # The hashes that torchvision knows are those of the original files.
    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": None})
    return tmp_path / "data"


def made(root, out, capsys):
    assert main([str(root), str(out)]) == 0
    return capsys.readouterr().out.splitlines()


def test_each_image_is_a_file_of_its_class(root, tmp_path, capsys):
    said = made(root, tmp_path, capsys)
    folder = tmp_path / "cifar10"
    assert said[0] == f"50 images in {folder / 'train'}"
    assert said[1] == f"10 images in {folder / 'test'}"
    assert said[2] == f"hash {digest(folder)}"
    assert sorted(path.name for path in (folder / "train").iterdir()) == CLASSES
    files = sorted(file.name for file in (folder / "train" / "cat").iterdir())
    assert files == [f"000{number}.jpg" for number in range(5)]
    with Image.open(folder / "train" / "cat" / "0000.jpg") as image:
        # Two by two samples of brightness for one of each colour; the first number of quality 75.
        assert [layer[1:3] for layer in image.layer] == [(2, 2), (1, 1), (1, 1)]
        assert image.quantization[0][0] == 8
        top, bottom = np.asarray(image)[[0, -1]].mean((1, 2))
    assert abs(top - (3 + 13 / 3)) < 4
    assert abs(bottom - (203 + 13 / 3)) < 4
    data = ImageFolder(str(folder), num_clients=2, partition=IID(), max_samples=None)
    data.setup()
    assert (data.num_classes, data.input_shape) == (10, (3, 32, 32))


def test_the_hash_is_of_pixels_and_classes_in_any_order(root, tmp_path, capsys):
    made(root, tmp_path, capsys)
    folder = tmp_path / "cifar10"
    before = digest(folder)
    cat = folder / "train" / "cat"
    (cat / "0000.jpg").rename(cat / "last.jpg")
    assert main(["--hash", str(folder)]) == 0
    assert capsys.readouterr().out == f"hash {before}\n"
    shutil.move(cat / "last.jpg", folder / "train" / "dog" / "last.jpg")
    assert digest(folder) != before


def test_nothing_is_overwritten_and_missing_data_are_named(root, tmp_path, capsys, monkeypatch):
    made(root, tmp_path, capsys)
    assert main([str(root), str(tmp_path)]) == 2
    assert "exists" in capsys.readouterr().err.lower()
    monkeypatch.undo()
    assert main([str(tmp_path / "no"), str(tmp_path / "out")]) == 2
    assert "not found" in capsys.readouterr().err
    assert main(["--hash", str(tmp_path / "no")]) == 2
