"""Tensors of any shape and type: what they are taken for, and what is refused."""

import unicodedata
from io import BytesIO
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from datamodules import (
    IID,
    ByColumn,
    ByDomain,
    ClientDirichlet,
    Dirichlet,
    FixedClasses,
    Shards,
    TensorData,
    Unseen,
)
from pfl.core.task import Classification, MultiLabel, Regression
from tests.helpers.data import batch, held
from tests.helpers.messages import parts

FLOATS = torch.arange(24.0).view(12, 2)
CLASSES = torch.arange(12) % 3


def tensors(num_clients=2, partition=None, options=None, **given):
    return TensorData(given, num_clients, partition or IID(), **(options or {}))


@pytest.mark.parametrize(
    ("y", "task", "kind", "outputs", "classes"),
    [
        (CLASSES, None, Classification(), 3, 3),
        (FLOATS[:, 0], None, Regression(), 1, None),
        (FLOATS, None, Regression(), 2, None),
        (FLOATS.long() % 2, None, MultiLabel(), 2, None),
        (FLOATS > 3, None, MultiLabel(), 2, None),
        (CLASSES, "regression", Regression(), 1, None),
    ],
    ids=["classes", "a number", "numbers", "labels", "booleans", "said"],
)
def test_the_type_of_the_targets_decides_the_task(y, task, kind, outputs, classes):
    data = tensors(x=FLOATS, y=y, options={"task": task})
    assert (data.task, data.outputs, data.num_classes) == (kind, outputs, classes)


def test_floats_and_tokens_reach_the_network_as_they_are():
    tokens = torch.arange(36).view(12, 3)
    for x in (FLOATS, tokens):
        data = tensors(x=x, y=CLASSES)
        found = batch(data, 0)
        assert found.x.equal(x[held(data, 0)])
        assert found.y.equal(CLASSES[held(data, 0)])
        assert (data.blank(4).dtype, data.blank(4).shape) == (x.dtype, (4, *x.shape[1:]))


def test_only_bytes_in_the_shape_of_images_are_scaled():
    """The byte 255 with mean and deviation 0.5 is 1, the byte 0 is -1."""
    images = torch.full((12, 1, 2, 2), 255, dtype=torch.uint8)
    assert batch(tensors(x=images, y=CLASSES), 0).x.flatten().tolist() == pytest.approx([1.0] * 16)
    flat = tensors(x=images.view(12, 4), y=CLASSES)
    assert batch(flat, 0).x.dtype == torch.uint8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_floats_follow_the_default_type(dtype):
    data = tensors(x=FLOATS.to(dtype), y=FLOATS[:, 0])
    found = batch(data, 0)
    assert (found.x.dtype, found.y.dtype) == (torch.float32, torch.float32)
    assert found.y.shape == (len(found.x), 1)


def test_several_inputs_are_a_dictionary():
    data = tensors(**{"x.left": FLOATS, "x.right": CLASSES[:, None]}, y=CLASSES)
    found = batch(data, 1)
    assert found.x["left"].equal(FLOATS[held(data, 1)])
    assert found.x["right"].equal(CLASSES[held(data, 1), None])
    assert {name: value.shape for name, value in data.blank(3).items()} == {
        "left": (3, 2),
        "right": (3, 1),
    }


def two_sites(**options):
    """Each of two clients trains on its first two samples, and is tested on its third."""
    given = {"y": CLASSES[:6], "client": [0, 0, 0, 1, 1, 1], "column.time": range(6)}
    options = {"test_protocol": "future", "test_fraction": 0.34} | options
    x = torch.tensor([[1.0, 5], [3, 5], [9, 5], [5, 5], [7, 5], [4, 7]])
    return tensors(num_clients=None, partition=ByDomain(), options=options, x=x, **given)


@pytest.mark.parametrize(
    ("options", "train", "test"),
    [
        # 1, 3, 5 and 7 train: mean 4, variance 5. The second column is 5 in all of them.
        ({"standardise": "train"}, [[-1.3416, -0.4472], [0.4472, 1.3416]], [2.2361, 0]),
        # 1 and 3: mean 2, deviation 1; 5 and 7: mean 6, deviation 1.
        ({"standardise": "client"}, [[-1, 1], [-1, 1]], [7, -2]),
        # Without the second client.
        ({"standardise": "train", "unseen": Unseen(clients=[1])}, [[-1, 1], [3, 5]], [7, 2]),
    ],
)
def test_only_training_samples_decide_how_tensors_are_standardised(options, train, test):
    data = two_sites(**options)
    for client in (0, 1):
        found = batch(data, client).x
        assert found[:, 0].tolist() == pytest.approx(train[client], abs=1e-4)
        assert found[:, 1].tolist() == [0, 0]
        assert batch(data, client, "test").x[0, 0].item() == pytest.approx(test[client], abs=1e-4)
    # No deviation: only the mean is subtracted.
    assert batch(data, 1, "test").x[0, 1].item() == 2


def test_channels_are_standardised_as_a_whole_and_tokens_not_at_all():
    signals = torch.arange(96.0).view(12, 2, 4) ** 2
    given = {"x.signal": signals, "x.token": CLASSES[:, None], "y": CLASSES}
    data = tensors(1, options={"standardise": "train"}, **given)
    found, ids = batch(data), held(data)
    own = signals[ids]
    expected = (own - own.mean((0, 2), keepdim=True)) / own.std((0, 2), correction=0, keepdim=True)
    assert torch.allclose(found.x["signal"], expected, atol=1e-5)
    assert found.x["token"].equal(CLASSES[ids, None])


def test_official_test_samples_follow_the_training_samples():
    split = {"x": FLOATS[:8], "y": CLASSES[:8], "x_test": FLOATS[8:], "y_test": CLASSES[8:]}
    options = {"test_protocol": "global"}
    data = tensors(**split, options=options)
    pooled = data.pooled_test()
    assert pooled.batch(torch.arange(4)).x.equal(FLOATS[8:])
    joined = tensors(x=FLOATS, y=CLASSES, num_train=8, options=options)
    assert joined.description() == data.description()


def test_clients_can_be_ordered_by_a_column():
    """Ages 11, 10, ..., 0 over three clients: the first has 0 to 3, the last samples."""
    data = tensors(3, ByColumn("age"), x=FLOATS, y=CLASSES, **{"column.age": range(11, -1, -1)})
    own = [{*held(data, c).tolist(), *held(data, c, "test").tolist()} for c in range(3)]
    assert own == [{8, 9, 10, 11}, {4, 5, 6, 7}, {0, 1, 2, 3}]
    with pytest.raises(ValueError, match=parts("'height' ~ age")):
        tensors(
            partition=ByColumn("height"), x=FLOATS, y=CLASSES, **{"column.age": range(12)}
        ).setup()


def test_clients_train_on_the_past_and_are_tested_on_the_future():
    """Six samples a client, a quarter for testing: the last two of six rounded from 1.5.

    Of the four before, a quarter validates: the latest one.
    """
    time = np.random.default_rng(0).permutation(12)
    options = {"test_protocol": "future", "val_fraction": 0.25}
    data = tensors(x=FLOATS, y=CLASSES, options=options, **{"column.time": time})
    for client in range(2):
        past, now, future = (time[held(data, client, name)] for name in ("train", "val", "test"))
        assert (len(past), len(now), len(future)) == (3, 1, 2)
        assert past.max() < now.min() <= now.max() < future.min()
    with pytest.raises(ValueError, match=parts("'time' ~ none")):
        tensors(x=FLOATS, y=CLASSES, options=options).setup()


@pytest.mark.parametrize(
    "partition",
    [Dirichlet(min_samples=1), ClientDirichlet(), Shards(), FixedClasses(classes_per_client=1)],
    ids=lambda partition: type(partition).__name__,
)
def test_partitions_by_label_need_classes(partition):
    data = tensors(partition=partition, x=FLOATS, y=FLOATS)
    with pytest.raises(ValueError, match=parts("no classes ~ IID, QuantitySkew, ByDomain")):
        data.setup()


def test_a_file_holds_the_same_as_a_mapping(tmp_path):
    given = {"x": FLOATS.numpy(), "y": CLASSES.numpy(), "class_names": ["p", "q", "r"]}
    np.savez(tmp_path / "data.npz", **given)
    read = TensorData(str(tmp_path / "data.npz"), 2, IID())
    assert read.class_names == ["p", "q", "r"]
    assert read.description() == TensorData(given, 2, IID()).description()
    (tmp_path / "text.npz").write_text("x,y\n")
    np.save(tmp_path / "one.npy", FLOATS.numpy())
    for name in ("text.npz", "one.npy"):
        with pytest.raises(OSError, match=parts(f"{name} ~ .npz ~ arrays: numpy.savez")):
            TensorData(str(tmp_path / name), 2, IID()).setup()
    with pytest.raises(FileNotFoundError, match=parts("no file ~ none.npz")):
        TensorData(str(tmp_path / "none.npz"), 2, IID()).setup()


def test_a_header_that_asks_for_more_than_the_memory_is_refused(tmp_path):
    """4 EiB of numbers, of which the file has none."""
    head = BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (2**60,)}
    np.lib.format.write_array_header_1_0(head, shape)
    with ZipFile(tmp_path / "large.npz", "w") as file:
        file.writestr("x.npy", head.getvalue())
    with pytest.raises(OSError, match=parts("large.npz ~ .npz ~ arrays")):
        TensorData(str(tmp_path / "large.npz"), 2, IID()).setup()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_classes_may_be_unsigned_integers(dtype):
    same, data = (tensors(x=FLOATS, y=y) for y in (CLASSES, CLASSES.numpy().astype(dtype)))
    assert data.num_classes == same.num_classes
    assert batch(data, 0).y.tolist() == batch(same, 0).y.tolist()


def test_classes_that_are_numbered_from_one_on_are_told(recwarn):
    """They work, with an output that stays unused; names say that the numbers are meant."""
    for y, more in ((CLASSES, {}), (CLASSES + 1, {"class_names": "pqrs"}), (FLOATS + 9, {})):
        tensors(x=FLOATS, y=y, **more).setup()
    assert not [one for one in recwarn if "classes" in str(one.message)]
    data = tensors(x=FLOATS, y=CLASSES + 1)
    with pytest.warns(UserWarning, match=parts("smallest class in y is 1 ~ numbered from 0")):
        data.setup()
    assert data.num_classes == 4


def test_a_label_that_would_need_a_billion_outputs_is_refused():
    with pytest.raises(ValueError, match=parts("classes ~ 999,999 ~ 1,000,000,000")):
        tensors(x=FLOATS, y=CLASSES * 500_000_000).setup()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_last_are_refused_with_the_permutation_that_helps(channels):
    x = torch.randint(0, 255, (12, 32, 32, channels), dtype=torch.uint8)
    with pytest.raises(ValueError, match=parts("x.permute(0, 3, 1, 2)")):
        tensors(x=x, y=CLASSES).setup()
    assert tensors(x=x.permute(0, 3, 1, 2), y=CLASSES).input_shape == (channels, 32, 32)
    with pytest.warns(UserWarning, match=parts("x.permute(0, 3, 1, 2)")):
        tensors(x=x.float(), y=CLASSES).setup()


BROKEN = FLOATS.clone()
BROKEN[7, 1] = np.nan
MANY = torch.zeros(5000)
MANY[4500] = np.inf
BYTES = torch.zeros(12, 2, dtype=torch.uint8)
BOTH = {"x": FLOATS, "y": CLASSES, "x_test": FLOATS, "y_test": CLASSES}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((FLOATS, CLASSES), "source ~ .npz file ~ by name ~ tuple"),
        ({"inputs": FLOATS, "y": CLASSES}, "x (or x.<name>) and y, got inputs, y"),
        ({}, "x (or x.<name>) and y, got nothing"),
        ({"x": FLOATS, "y": CLASSES[:5]}, "x ~ 12 samples ~ 5 targets"),
        ({"x": BROKEN, "y": CLASSES}, "x ~ finite ~ sample 7"),
        ({"x.a": BROKEN, "y": CLASSES}, "x.a ~ finite ~ sample 7"),
        ({"x": MANY, "y": MANY > 0}, "x ~ finite ~ sample 4500"),
        ({"x": FLOATS, "y": BROKEN}, "y ~ finite ~ sample 7"),
        ({"x": FLOATS, "y": CLASSES, "column.x": BROKEN[:, 1]}, "column.x ~ finite ~ sample 7"),
        ({"x": FLOATS, "y": CLASSES, "column.x": [1, 2]}, "column.x ~ 2 samples ~ 12 targets"),
        ({"x": FLOATS, "y": CLASSES, "client": [1, 2]}, "client ~ 2 samples ~ 12 targets"),
        ({"x": FLOATS, "x.a": FLOATS, "y": CLASSES}, "x or x.<name>"),
        ({"x": FLOATS, "y": CLASSES, "x_test": FLOATS}, "x_test ~ y_test"),
        ({**BOTH, "num_train": 6}, "num_train or x_test"),
        ({**BOTH, "x_test": BYTES}, "x_test ~ float32 ~ uint8"),
        ({"x": FLOATS, "y": CLASSES, "client": [None, *"abcdefghijk"]}, "client ~ missing"),
        ({"x": FLOATS, "y": CLASSES, "num_train": 13}, "num_train ~ 13 ~ 12 samples"),
        ({"x": FLOATS, "y": CLASSES, "z": 1}, "names ~ z"),
        ({"x": ["a"] * 12, "y": CLASSES}, "x ~ tensor of numbers"),
        ({"x": FLOATS, "y": CLASSES - 1}, "from 0, got -1 ~ without a label ~ leave"),
        ({"x": FLOATS, "y": np.full(12, 2**63, np.uint64)}, "y ~ above 9,223,372,036,854,775,807"),
        ({"x": FLOATS, "y": CLASSES, "client": BROKEN[:, 1].numpy()}, "client ~ finite ~ sample 7"),
        ({"x": FLOATS, "y": FLOATS.long()}, "labels ~ zeros and ones"),
        ({"x": FLOATS, "y": FLOATS[:, None]}, "numbers ~ (n, D) ~ (12, 1, 2)"),
    ],
)  # fmt: skip
def test_data_that_do_not_fit_together_are_refused(given, message):
    with pytest.raises(ValueError, match=parts(message)):
        TensorData(given, 2, IID()).setup()


LABELS = torch.arange(60) % 3


@pytest.mark.parametrize(
    ("y", "task", "warning"),
    [
        (LABELS.float(), "regression", "give y.long() if they are classes"),
        (torch.eye(3)[LABELS], "regression", "give y.argmax(1) if the columns are classes"),
        (torch.eye(3)[LABELS].long(), "multilabel", "give y.argmax(1)"),
        (torch.where(LABELS == 2, 255, LABELS), "classification", "largest 255, 253 between"),
        (LABELS / 2, "regression", None),
        (LABELS[:, None] >= torch.tensor([1, 2]), "multilabel", None),
    ],
)
def test_targets_of_a_type_that_may_mean_another_task(y, task, warning):
    """A task that is given says what the type means; unlabelled samples stay doubtful."""
    arrays = {"x": torch.arange(60.0)[:, None], "y": y, "client": torch.arange(60) // 20}
    doubts = TensorData(arrays).reading.doubts
    assert [warning in one for one in doubts] == [True] * (warning is not None)
    meant = TensorData(arrays, task=task).reading.doubts
    assert len(meant) == (task == "classification")


def test_names_of_clients_beside_tensors_are_of_one_form_too():
    names = [unicodedata.normalize(("NFC", "NFD")[n % 2], "Kraków") for n in range(8)]
    data = TensorData({"x": torch.zeros(8, 1), "y": [0, 1] * 4, "client": names})
    assert data.num_clients == 1
