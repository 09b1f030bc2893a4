"""Folders of PFLlib and partitions of FL-bench: the samples as written, and nothing is called."""

from __future__ import annotations

import contextlib
import pickle

import numpy as np
import pytest
import torch

from datamodules import Digits, FLBenchFolder, PFLlibFolder
from datamodules.numpy_pickle import read_arrays
from tests.helpers.messages import parts


class Forged:
    def __reduce__(self):
        return (open, ("ran", "w"))


@pytest.fixture
def written(tmp_path):
    """Return the arrays of each client and part, written as PFLlib's generators do."""
    rng, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 7), ("test", 3)):
        (tmp_path / part).mkdir()
        for client in (0, 1, 10):
            held = {"x": rng.normal(size=(count, 1, 4, 4)).astype(np.float32)}
            held["y"] = rng.integers(0, 3, count)
            arrays[part, client] = held
            np.savez_compressed(tmp_path / part / f"{client}.npz", data=held)
    return arrays


def rows(x):
    return sorted(map(tuple, np.asarray(x).reshape(len(x), -1).tolist()))


def test_each_client_has_its_own_samples_in_the_order_of_numbers(tmp_path, written):
    data = PFLlibFolder(str(tmp_path), batch_size=2)
    data.setup()
    assert data.client_names == ("0", "1", "10")
    for client, number in enumerate((0, 1, 10)):
        for part in ("train", "test"):
            split = data.split(client, part)
            found = split.batch(torch.arange(len(split)))
            assert rows(found.x) == rows(written[part, number]["x"])
            assert sorted(found.y.tolist()) == sorted(written[part, number]["y"].tolist())


def test_a_forged_file_is_read_and_nothing_is_called(tmp_path, written, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held = np.array({"x": Forged(), "y": 1}, object)
    np.savez(tmp_path / "train" / "0.npz", data=held)
    with pytest.raises(OSError, match=parts("0.npz ~ names io.open, which is no array")):
        PFLlibFolder(str(tmp_path)).setup()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_are_read_as_numpy_wrote_them(tmp_path, protocol):
    value = {
        "a": np.arange(6, dtype=">i4").reshape(2, 3),
        "b": np.asfortranarray(np.ones((2, 2))),
        "c": [np.float32(1.5), 2, "x", None, np.array([1, "y"], object)],
        "d": np.zeros((0, 2), np.int16),
    }
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value, protocol))
    found = read_arrays(tmp_path / "a.pkl")
    for name in "abd":
        assert found[name].dtype.kind == value[name].dtype.kind
        assert found[name].tolist() == value[name].tolist()
        assert found[name].shape == value[name].shape
    assert found["c"] == [1.5, 2, "x", None, [1, "y"]]


@pytest.mark.parametrize(
    "value", [Forged(), {"a": Forged()}, np.array([Forged()], object), pickle.PickleBuffer]
)
def test_nothing_else_is_read(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value))
    with pytest.raises(OSError, match="does not hold plain arrays"):
        read_arrays(tmp_path / "a.pkl")
    assert not (tmp_path / "ran").exists()


def test_every_damage_is_refused_or_another_value(tmp_path):
    whole = pickle.dumps({"a": np.arange(9.0), "b": [1, "two"]})
    for place in range(len(whole)):
        for byte in (0, 255, whole[place] ^ 1):
            (tmp_path / "a.pkl").write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            with contextlib.suppress(OSError):
                read_arrays(tmp_path / "a.pkl")
    (tmp_path / "a.pkl").write_bytes(whole[:-9])
    with pytest.raises(OSError, match="plain arrays"):
        read_arrays(tmp_path / "a.pkl")


def test_a_partition_of_fl_bench_has_its_samples(tmp_path):
    clients = [
        {"train": np.arange(100, 140), "val": np.array([], int), "test": np.arange(140, 150)},
        {"train": [*range(30)], "val": [30, 31], "test": np.int64([40, 41])},
    ]
    file = tmp_path / "partition.pkl"

    def write(**changed):
        separation = {"train": [0, 1], "val": [0, 1], "test": [0, 1], "total": 2}
        file.write_bytes(
            pickle.dumps({"separation": separation, "data_indices": clients, **changed})
        )

    write()
    data = Digits(num_clients=2, partition=str(file))
    data.setup()
    for client, held in enumerate(clients):
        for part, positions in held.items():
            assert list(data.rows(client, part)) == list(positions)
    write(separation={"train": [0], "test": [1], "total": 2})
    with pytest.raises(ValueError, match=parts("keeps 1 clients for tests alone")):
        Digits(num_clients=2, partition=str(file)).setup()
    write(data_indices=[{"train": [1], "test": [1]}], separation={"train": [0]})
    with pytest.raises(ValueError, match="tests on training samples"):
        Digits(num_clients=1, partition=str(file)).setup()
    write(data_indices="abc")
    with pytest.raises(ValueError, match="lacks data_indices"):
        Digits(num_clients=1, partition=str(file)).setup()


def test_a_folder_of_fl_bench_has_its_images_and_its_division(tmp_path):
    """As FL-bench gives them: channels first, and bytes divided by 255."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (12, 6, 5, 3)).astype(np.uint8)
    pixels[0, 0, 0, 0] = 255
    np.save(tmp_path / "data.npy", pixels)
    np.save(tmp_path / "targets.npy", np.arange(12) % 2)
    clients = [
        {"train": [0, 3, 4], "val": [], "test": [5, 6]},
        {"train": [1, 7, 8], "val": [2], "test": [9, 10, 11]},
    ]
    file = tmp_path / "partition.pkl"
    file.write_bytes(pickle.dumps({"separation": {"train": [0, 1]}, "data_indices": clients}))
    data = FLBenchFolder(str(tmp_path), batch_size=2)
    data.setup()
    assert [[*data.rows(1, part)] for part in ("train", "val", "test")] == [
        [1, 7, 8],
        [2],
        [9, 10, 11],
    ]
    (x, y), images = data.read().values(), pixels.transpose(0, 3, 1, 2)
    assert x.shape == (12, 3, 6, 5)
    assert np.array_equal(x, images.astype(np.float32) / 255)
    assert y.tolist() == [0, 1] * 6
    np.save(tmp_path / "data.npy", np.zeros((12, 784)))
    assert FLBenchFolder(str(tmp_path)).read()["x"].shape == (12, 1, 28, 28)
    np.save(tmp_path / "targets.npy", np.arange(11))
    with pytest.raises(ValueError, match=parts("targets.npy ~ 12 samples")):
        FLBenchFolder(str(tmp_path)).read()
    np.save(tmp_path / "data.npy", np.array([{}], object))
    with pytest.raises(OSError, match=parts("data.npy is not ~ plain numbers")):
        FLBenchFolder(str(tmp_path)).read()
    (tmp_path / "data.npy").unlink()
    with pytest.raises(FileNotFoundError, match=parts("no data.npy ~ data: MNIST ~ partition")):
        FLBenchFolder(str(tmp_path)).read()
