"""Data sets of torch: decoded once, in memory or in a file, and only such are called."""

from itertools import count

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from datamodules import IID, CropFlip, TorchDataset
from pfl.core.task import Regression
from pfl.disk import room
from tests.helpers.data import batch, held
from tests.helpers.messages import parts
from tests.test_configs import parse

X = torch.arange(400.0).view(100, 4)
Y = torch.arange(100) % 3


class Items(Dataset):
    """A data set of given items."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    """A data set without places."""

    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("memory", [8.0, 1e-6], ids=["in memory", "in a file"])
def test_samples_are_those_of_the_data_set(memory, monkeypatch):
    """The 100 samples take 100 * (16 + 8) bytes, more than the 1,000 of a millionth gigabyte."""
    made, in_file = [], room._in_file
    monkeypatch.setattr(room, "_in_file", lambda *a: made.append(a) or in_file(*a))
    data = TorchDataset(TensorDataset(X, Y), 1, IID(), memory=memory)
    ids = held(data)
    assert batch(data).x.equal(X[ids])
    assert batch(data).y.equal(Y[ids])
    assert len(made) == (0 if memory > 1 else 2)


def test_each_sample_is_drawn_once_and_from_no_global_stream():
    looks = count()

    class Noise(Items):
        def __getitem__(self, index):
            next(looks)
            return torch.randn(2), index % 2

    before = torch.get_rng_state()
    one, two = (TorchDataset(Noise([0] * 8), 1, IID()) for _ in range(2))
    assert batch(one).x.equal(batch(one).x)
    assert batch(one).x.equal(batch(two).x)
    assert torch.get_rng_state().equal(before)
    assert next(looks) == 16


def test_another_data_set_holds_the_official_test_samples():
    train, test = TensorDataset(X[:80], Y[:80]), TensorDataset(X[80:], Y[80:])
    data = TorchDataset(train, 2, IID(), test=test, test_protocol="global")
    pooled = data.pooled_test()
    assert pooled.batch(torch.arange(20)).x.equal(X[80:])


def test_images_are_bytes_and_classes_have_their_names():
    """Pillow's images are height, width, channels; a batch has channels first, in [-1, 1]."""
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[1, 2, 0] = 255
    images = Items([(Image.fromarray(pixels), label) for label in (0, 1, 1, 0)])
    images.classes = ["cat", "dog"]
    data = TorchDataset(images, 1, IID())
    assert (data.class_names, data.input_shape) == (["cat", "dog"], (3, 2, 3))
    red = torch.full((3, 2, 3), -1.0)
    red[0, 1, 2] = 1.0
    assert torch.allclose(batch(data).x[0], red)
    palette = [(Image.new("RGB", (2, 2), (255, 0, 0)).convert("P"), 0)] * 4
    assert batch(TorchDataset(Items(palette), 1, IID())).x[0, :, 0, 0].tolist() == [1, -1, -1]


def test_inputs_may_have_names_and_targets_may_be_numbers():
    items = [({"a": np.ones(2, np.float32) * i, "b": i}, i / 2) for i in range(8)]
    data = TorchDataset(Items(items), 1, IID())
    ids = torch.from_numpy(held(data))
    assert data.task == Regression()
    assert batch(data).x["a"].equal(ids[:, None].float().expand(-1, 2))
    assert batch(data).x["b"].equal(ids)
    assert batch(data).y[:, 0].equal(ids / 2)


def test_floats_are_not_augmented():
    images = Items([(torch.zeros(3, 4, 4), 0)] * 4)
    with pytest.raises(ValueError, match=parts("augment ~ bytes ~ ToTensor")):
        TorchDataset(images, 1, IID(), augment=CropFlip(1)).setup()


PAIR = (torch.zeros(2), 0)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Items([PAIR, torch.zeros(3)]), "sample 1 ~ Tensor ~ (inputs, target)"),
        (Items([PAIR, (torch.zeros(3), 0)]), "x of sample 1 ~ (3,) ~ sample 0 ~ (2,) ~ max_length"),
        (Items([PAIR, (torch.zeros(2), 0.5)]), "y of sample 1 ~ float32 ~ sample 0 ~ int64"),
        (Items([PAIR, ({"a": 1}, 0)]), "sample 1 ~ x.a, y ~ sample 0 ~ x, y"),
        (Items([("words", 0)]), "x of sample 0 ~ tensor of numbers"),
        (Items([]), "Items ~ no samples"),
        (Stream(), "Stream ~ __len__ and __getitem__"),
    ],
)  # fmt: skip
def test_data_sets_that_do_not_fit_are_refused(dataset, message):
    with pytest.raises(ValueError, match=parts(message)):
        TorchDataset(dataset, 1, IID()).setup()


def configured(tmp_path, dataset):
    init_args = {"dataset": dataset, "num_clients": 2, "partition": "IID"}
    file = tmp_path / "data.yaml"
    file.write_text(
        yaml.safe_dump({"data": {"class_path": "TorchDataset", "init_args": init_args}})
    )
    return parse(["--config", "configs/quickstart.yaml", "--config", str(file)])


def test_a_configuration_names_the_data_set_by_its_class(tmp_path):
    arguments = {"size": 12, "image_size": [3, 8, 8], "num_classes": 2}
    images = {"class_path": "torchvision.datasets.FakeData", "init_args": arguments}
    data = configured(tmp_path, images).data
    assert (data.input_shape, len(data.contents.targets)) == ((3, 8, 8), 12)
