"""The published data sets, from small files in their publishers' layout."""

import gzip
import json
import os
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

from datamodules import (
    CIFAR10,
    CIFAR100,
    FEMNIST,
    HAM10000,
    IID,
    MNIST,
    STL10,
    SUN397,
    ByDomain,
    CIFAR100Folder,
    ConceptDrift,
    FashionMNIST,
)
from datamodules.superclasses import CIFAR100 as SUPERCLASSES
from datamodules.superclasses import CIFAR100_CLASSES, CIFAR100_PARENTS
from tests.helpers.messages import parts

MNIST_FILES = Path(__file__).parents[3] / "shared" / "data" / "mnist"


def make(kind, **arguments):
    return kind(**{"num_clients": 2, "partition": IID()} | arguments)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (HAM10000, "HAM10000_metadata.csv ~ Harvard Dataverse ~ root/HAM10000_metadata"),
        (SUN397, "ClassName.txt ~ SUN397 ~ download: true ~ root/SUN397/ClassName.txt"),
        (FEMNIST, "LEAF ~ preprocess.sh ~ root/train/*.json"),
        (MNIST, "MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte, packed"),
        (CIFAR10, "CIFAR10 ~ cifar-10-batches-py/{data_batch_1, ~ folders/cifar10 ~ download"),
    ],
)
def test_a_missing_set_says_which_files_are_expected_and_where_they_are(tmp_path, kind, message):
    (tmp_path / "MNIST").mkdir()
    with pytest.raises(FileNotFoundError, match=parts(message)):
        make(kind, root=str(tmp_path)).setup()


# CIFAR.


class FakeSet:
    """A stand-in for torchvision's CIFAR classes, with two samples a class."""

    classes = 10

    def __init__(self, root, train, download):
        count = 2 * self.classes
        self.data = np.zeros((count, 32, 32, 3), np.uint8)
        self.data[..., 1] = np.arange(count)[:, None, None] + 100 * (not train)
        self.targets = list(range(self.classes)) * 2


@pytest.fixture
def cifar(monkeypatch):
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", FakeSet)
    hundred = type("FakeHundred", (FakeSet,), {"classes": 100})
    monkeypatch.setattr(torchvision.datasets, "CIFAR100", hundred)


def test_cifar10_has_channels_first_and_training_samples_first(cifar):
    """A black image is normalised by the set's own numbers: channel 0 is -0.4914 / 0.2023."""
    data = make(CIFAR10)
    assert (data.num_classes, data.input_shape) == (10, (3, 32, 32))
    pixels = data.arrays.pixels
    assert pixels.shape == (40, 3, 32, 32)
    assert pixels[:, 1, 0, 0].tolist() == [*range(20), *range(100, 120)]
    assert pixels[:, 0].max() == 0
    assert data.contents.num_train == 20
    view = data.split(0, "train")
    assert view.batch(view.targets[:1]).x[0, 0, 0, 0].item() == pytest.approx(-0.4914 / 0.2023)


def test_cifar100_has_classes_or_superclasses_and_divides_by_concept(cifar):
    fine, coarse = make(CIFAR100), make(CIFAR100, superclasses=True)
    assert (fine.num_classes, coarse.num_classes) == (100, 20)
    assert fine.contents.targets.fine is None
    assert coarse.contents.targets.fine.tolist() == fine.contents.targets.labels.tolist()
    apple = CIFAR100_CLASSES.index("apple")
    assert coarse.class_names[coarse.contents.targets.labels[apple]] == "fruit_and_vegetables"
    options = {"partition": ConceptDrift(quantity="equal"), "test_protocol": "official_classes"}
    data = make(CIFAR100, superclasses=True, num_clients=5, **options)
    targets = data.contents.targets
    for holding in data.division.holdings:
        assert np.bincount(targets.labels[holding.train]).tolist() == [2] * 20
        assert set(targets.fine[holding.train]) == set(targets.fine[holding.test])


def test_superclasses_are_twenty_of_five():
    """The published numbers of the first ten classes: apple 4, aquarium fish 1, baby 14, bear 8,
    beaver 0, bed 6, bee 7, beetle 7, bicycle 18, bottle 3; and of the last: worm 13."""
    assert CIFAR100_PARENTS[:10] == (4, 1, 14, 8, 0, 6, 7, 7, 18, 3)
    assert (CIFAR100_CLASSES[-1], CIFAR100_PARENTS[-1]) == ("worm", 13)
    assert len(SUPERCLASSES) == 20
    assert np.bincount(CIFAR100_PARENTS).tolist() == [5] * 20


@pytest.mark.parametrize("superclasses", [False, True])
def test_a_folder_of_cifar100_has_torchvisions_classes(cifar, tmp_path, superclasses):
    """Both number classes and superclasses alike, so that a partition deals the same classes.

    Each image has the number of its class as its first channel.
    """
    for number, name in enumerate(CIFAR100_CLASSES):
        for part, count in (("train", 2), ("test", 1)):
            for i in range(count):
                save(tmp_path / part / name / f"{i}.png", number, (32, 32))
    folder = make(CIFAR100Folder, root=str(tmp_path), superclasses=superclasses)
    published = make(CIFAR100, superclasses=superclasses)
    assert folder.class_names == published.class_names
    for name in ("default_mean", "default_std"):
        assert getattr(folder, name) == getattr(published, name)
    assert (folder.contents.num_train, len(folder.contents.targets)) == (200, 300)
    targets = folder.contents.targets
    pixels, places = folder.inputs(np.arange(300))
    shown = pixels[places][:, 0, 0, 0].tolist()
    expected = [CIFAR100_PARENTS[number] for number in shown] if superclasses else shown
    assert targets.labels.tolist() == expected
    assert targets.fine is None or targets.fine.tolist() == shown
    if superclasses:
        for part in ("train", "test"):
            (tmp_path / part / "beaver").rename(tmp_path / part / "otter2")
        with pytest.raises(ValueError, match=parts("CIFAR100Folder ~ 'beaver' ~ apple")):
            make(CIFAR100Folder, root=str(tmp_path), superclasses=True).setup()


# MNIST and STL10, in their own formats.


def idx(values):
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_mnist(folder, packed=False):
    """Write 20 training images and 10 test images; an image has its number in each pixel."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 20), ("t10k", 10)):
        numbers = np.arange(count, dtype=np.uint8)
        images = np.tile(numbers[:, None, None], (1, 28, 28))
        for name, values in (("images-idx3", images), ("labels-idx1", numbers % 10)):
            put(folder, f"{part}-{name}-ubyte", idx(values), packed)


def put(folder, name, content, packed):
    (folder / f"{name}{'.gz' * packed}").write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("nested", [False, True], ids=["root", "torchvision"])
def test_mnist_in_its_own_format(tmp_path, kind, packed, nested):
    write_mnist(tmp_path / kind.__name__ / "raw" if nested else tmp_path, packed)
    data = make(kind, root=str(tmp_path))
    assert data.arrays.pixels.shape == (30, 1, 28, 28)
    assert data.arrays.pixels[:, 0, 5, 5].tolist() == [*range(20), *range(10)]
    assert data.contents.targets.labels.tolist() == [*range(10)] * 3
    assert data.contents.num_train == 20
    if nested and not packed and kind is MNIST:
        theirs = torchvision.datasets.MNIST(str(tmp_path), train=False)
        assert (data.arrays.pixels[20:, 0] == theirs.data.numpy()).all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t10k-images-idx3-ubyte", b"", "idx ~ unpack requires"),
        ("t10k-images-idx3-ubyte", b"\x89PNG" + bytes(20), "idx ~ header"),
        ("t10k-images-idx3-ubyte", idx(np.zeros((10, 28, 27), np.uint8)), "28x28"),
        ("t10k-labels-idx1-ubyte", idx(np.zeros(10, np.uint8))[:-1], "idx ~ 10 bytes"),
        ("t10k-labels-idx1-ubyte", idx(np.zeros(10, np.uint8)) + b"0", "idx ~ 10 bytes"),
        ("t10k-labels-idx1-ubyte", idx(np.zeros(9, np.uint8)), "0 to 9 ~ 10 images"),
        ("t10k-labels-idx1-ubyte", idx(np.full(10, 10, np.uint8)), "0 to 9 ~ 10 images"),
        ("train-labels-idx1-ubyte", struct.pack(">HBB3I", 0, 8, 3, *[2**31] * 3), "idx ~ shape"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_file_of_mnist_is_named(tmp_path, name, content, message, packed):
    write_mnist(tmp_path, packed)
    put(tmp_path, name, content, packed)
    with pytest.raises(ValueError, match=parts(message)) as error:
        make(MNIST, root=str(tmp_path)).setup()
    assert name in str(error.value)


def test_a_cut_archive_of_mnist_is_named(tmp_path):
    write_mnist(tmp_path, packed=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match=parts("train-images-idx3-ubyte.gz ~ idx")):
        make(MNIST, root=str(tmp_path)).setup()


@pytest.mark.skipif(not MNIST_FILES.is_dir(), reason="no data folder beside the project")
def test_the_real_mnist():
    """The published counts of the ten digits, in training and in test."""
    data = make(MNIST, root=str(MNIST_FILES))
    labels = data.contents.targets.labels
    published = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(labels[:60_000]).tolist() == published
    published = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(labels[60_000:]).tolist() == published
    pixels = data.arrays.pixels[:60_000] / np.float32(255)
    assert pixels.mean() == pytest.approx(data.default_mean[0], abs=1e-4)
    assert pixels.std() == pytest.approx(data.default_std[0], abs=1e-4)


def test_stl10_in_its_own_format(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.datasets.STL10, "_check_integrity", lambda self: True)
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    (folder / "class_names.txt").write_text("\n".join(STL10.class_names))
    for name, count in (("train", 10), ("test", 20)):
        pixels = np.zeros((count, 3, 96, 96), np.uint8)
        # The files hold columns, so that this is the first row of channel 0.
        pixels[:, 0, :, 0] = 9
        pixels.tofile(folder / f"{name}_X.bin")
        (np.arange(count, dtype=np.uint8) % 10 + 1).tofile(folder / f"{name}_y.bin")
    data = make(STL10, root=str(tmp_path), test_protocol="global")
    assert data.arrays.pixels.shape == (30, 3, 96, 96)
    assert (data.arrays.pixels[:, 0, 0] == 9).all()
    assert data.contents.targets.labels.tolist() == [*range(10)] * 3
    assert len(data.pooled_test()) == 20


# Folders of images with files of their own.


def save(path, value, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 0)).save(path)


@pytest.fixture
def ham(tmp_path):
    rows = ["lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"]
    # The published metadata are not in the order of the images.
    for i in reversed(range(12)):
        dx, source = ("mel", "nv")[i % 2], ("rosendahl", "vidir_modern")[i // 6]
        rows.append(f"HAM_{i},ISIC_{i:07},{dx},histo,50,male,back,{source}")
        save(tmp_path / f"HAM10000_images_part_{1 + i // 6}" / f"ISIC_{i:07}.jpg", i)
    (tmp_path / "HAM10000_metadata.csv").write_text("\n".join(rows))
    return tmp_path


def test_ham10000_has_sources_as_domains(ham):
    data = make(HAM10000, root=str(ham), image_size=2, partition=ByDomain())
    assert data.class_names == ("mel", "nv")
    assert data.contents.domain_names == ["rosendahl", "vidir_modern"]
    assert data.contents.targets.labels.tolist() == [0, 1] * 6
    assert data.input_shape == (3, 2, 2)
    for client, holding in enumerate(data.division.holdings):
        assert set(data.contents.targets.domains[holding.train].tolist()) == {client}


def test_ham10000_in_tabs_and_without_sources(ham):
    lines = (ham / "HAM10000_metadata.csv").read_text().splitlines()
    (ham / "HAM10000_metadata.csv").unlink()
    text = "\n".join(line.rpartition(",")[0].replace(",", "\t") for line in lines)
    (ham / "HAM10000_metadata").write_text(text)
    data = make(HAM10000, root=str(ham), partition=ByDomain())
    assert data.input_shape == (3, 4, 6)
    with pytest.raises(ValueError, match=parts("ByDomain ~ domains")):
        data.setup()


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "HAM10000_metadata.csv ~ no rows"), ("a,b\n1,2\n", "HAM10000_metadata.csv ~ 'image_id'")],
)
def test_ham10000_with_wrong_metadata(ham, content, message):
    (ham / "HAM10000_images_part_1" / "ISIC_0000003.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=parts("1 images ~ ISIC_0000003.jpg ~ Dataverse")):
        make(HAM10000, root=str(ham)).setup()
    (ham / "HAM10000_metadata.csv").write_text(content)
    with pytest.raises(ValueError, match=parts(message)):
        make(HAM10000, root=str(ham)).setup()


@pytest.fixture
def sun(tmp_path):
    names = ["/a/abbey", "/a/apartment_building/outdoor", "/b/beach", "/c/cafe"]
    for label, name in enumerate(names):
        for i in range(4):
            save(tmp_path / "SUN397" / name[1:] / f"sun_{i}.jpg", 10 * label + i)
    (tmp_path / "SUN397" / "ClassName.txt").write_text("\n".join(names) + "\n")
    return lambda **options: make(SUN397, root=str(tmp_path), **options)


def test_sun397_names_sizes_and_superclasses(sun, write):
    data = sun(images_per_class=3)
    assert data.class_names == ("abbey", "apartment_building/outdoor", "beach", "cafe")
    assert data.input_shape == (3, 64, 64)
    assert data.contents.targets.labels.tolist() == np.repeat(range(4), 3).tolist()
    assert [file[-9:] for file in data.listing.files[:3]] == ["sun_0.jpg", "sun_1.jpg", "sun_2.jpg"]
    data = sun(superclasses=write("class,superclass\nabbey,man-made\nbeach,natural\n"))
    assert data.class_names == ("man-made", "natural")
    assert data.contents.fine_names == ["abbey", "beach"]


# The published table has a title above the columns' names, and categories with paths.
LEVELS = """SUN hierarchy,,,,
category,indoor,"outdoor, natural","outdoor, man-made",shopping
/a/abbey,0,0,1,0
/a/apartment_building/outdoor,0,0,1,0
/b/beach,0,1,0,0
/c/cafe,1,0,0,0
/b/both,1,1,0,0
/n/none,0,0,0,1
"""


def test_sun397_classes_are_drawn_of_each_superclass(sun, write):
    """Classes of two superclasses, or of none, are never drawn; two abbeys to choose from."""
    drawn = set()
    options = {"hierarchy": write(LEVELS), "classes_per_superclass": 1}
    for seed in range(8):
        data = sun(images_per_class=2, split_seed=seed, **options)
        assert data.class_names == ("indoor", "outdoor_man-made", "outdoor_natural")
        assert sorted(data.contents.targets.labels.tolist()) == [0, 0, 1, 1, 2, 2]
        drawn.add((*data.contents.fine_names, *(Path(f).name for f in data.listing.files)))
    found = {names[:3] for names in drawn}
    assert found == {("abbey", "beach", "cafe"), ("apartment_building/outdoor", "beach", "cafe")}
    assert len(drawn) > 2
    assert sun(**options).listing == sun(**options).listing


def test_sun397_with_too_few_classes_or_another_table(sun, write):
    with pytest.raises(ValueError, match=parts("classes_per_superclass=2 ~ indoor ~ 1")):
        sun(hierarchy=write(LEVELS), classes_per_superclass=2).setup()
    with pytest.raises(ValueError, match=parts("t.csv ~ category, ~ three_levels.xlsx")):
        sun(hierarchy=write("class,superclass\nabbey,man-made\n")).setup()
    with pytest.raises(FileNotFoundError, match=parts("hierarchy: ~ nowhere.csv")):
        sun(hierarchy="nowhere.csv").setup()
    with pytest.raises(ValueError, match=parts("superclasses and hierarchy")):
        sun(hierarchy="a.csv", superclasses="b.csv")
    with pytest.raises(ValueError, match=r"images_per_class.* 1\b"):
        sun(images_per_class=0)


# FEMNIST.


def write_leaf(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        # Six digits, so that 255 times a value lies above or below a whole number.
        writer: {"x": [[round(v / 255, 6)] * 784 for v in values], "y": [v % 62 for v in values]}
        for writer, values in users.items()
    }
    path.write_text(json.dumps({"users": list(users), "num_samples": [], "user_data": data}))


@pytest.fixture
def leaf(tmp_path):
    write_leaf(tmp_path / "train" / "all_data_0.json", {"w2": [1, 2, 3], "w1": [4, 5, 6]})
    write_leaf(tmp_path / "train" / "all_data_1.json", {"w3": [7, 8]})
    write_leaf(tmp_path / "test" / "all_data_0.json", {"w1": [9], "w2": [10], "w3": [255]})
    return tmp_path


@pytest.fixture
def femnist(leaf):
    return lambda **options: make(FEMNIST, root=str(leaf), **options)


def test_femnist_has_writers_as_domains(leaf, femnist):
    data = femnist(num_clients=3, partition=ByDomain())
    assert (data.num_classes, data.input_shape) == (62, (1, 28, 28))
    assert data.contents.domain_names == ["w1", "w2", "w3"]
    assert data.contents.targets.domains.tolist() == [1, 1, 1, 0, 0, 0, 2, 2, 0, 1, 2]
    assert data.arrays.pixels[:, 0, 3, 3].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255]
    assert data.contents.num_train == 8
    # All grey values are those that LEAF divided by 255.
    write_leaf(leaf / "train" / "all_data_0.json", {"w1": list(range(256))})
    assert femnist().arrays.pixels[:256, 0, 9, 9].tolist() == list(range(256))
    (leaf / "train").rename(leaf / "all_data")
    data = femnist()
    assert data.contents.num_train == len(data.contents.targets)


def test_femnist_from_its_cache_unless_a_file_was_replaced(leaf, femnist, tmp_path, monkeypatch):
    """By one of equal size, with another time of change."""
    cache = str(tmp_path / "cache")
    femnist(cache_dir=cache).prepare_data()
    monkeypatch.setattr("datamodules.femnist._parse", None)
    cached = femnist(cache_dir=cache).description()
    monkeypatch.undo()
    assert cached == femnist().description()
    file = leaf / "train" / "all_data_1.json"
    file.write_text(file.read_text().replace('"y": [7, 8]', '"y": [8, 7]'))
    os.utime(file, (time.time() + 5,) * 2)
    assert femnist(cache_dir=cache).description()["content_hash"] != cached["content_hash"]


def writer(grey=0.5, images=1, label=0):
    samples = {"x": [[grey] * 784] * images, "y": [label]}
    return json.dumps({"user_data": {"w": samples}})


@pytest.mark.parametrize(
    "content",
    [
        *("{", "{}", "[" * 100_000, '{"user_data": {"w": {"x": [[1]], "y": [0]}}}'),
        *(writer(images=2), writer(grey=2), writer(grey=float("nan")), writer(label=62)),
        writer(label=0.5),
    ],
)
def test_femnist_with_a_foreign_file(leaf, femnist, content):
    (leaf / "train" / "all_data_0.json").write_text(content)
    with pytest.raises(ValueError, match=parts("all_data_0.json ~ FEMNIST")):
        femnist().setup()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_femnist_with_a_pipe_or_without_a_writer(leaf, femnist):
    os.mkfifo(leaf / "test" / "all_data_1.json")
    with pytest.raises(ValueError, match=parts("all_data_1.json ~ FEMNIST ~ not a regular file")):
        femnist().setup()
    for file in (leaf / "train").iterdir():
        write_leaf(file, {})
    with pytest.raises(ValueError, match=parts("train ~ training sample")):
        femnist().setup()


@pytest.mark.parametrize("damage", [lambda content: content[:-30], lambda content: b"no archive"])
def test_femnist_with_a_damaged_cache(femnist, tmp_path, damage):
    cache = tmp_path / "cache"
    femnist(cache_dir=str(cache)).prepare_data()
    (file,) = cache.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=parts(f"{file} ~ damaged ~ remove")):
        femnist(cache_dir=str(cache)).setup()


def test_a_download_that_fails_leaves_no_empty_folder(tmp_path, monkeypatch):
    """Files that it brought stay, and so do folders that were there."""

    def fail(root, **arguments):
        Path(root, "MNIST", "raw").mkdir(parents=True, exist_ok=True)
        raise RuntimeError("no network")

    monkeypatch.setattr("torchvision.datasets.MNIST", fail)
    data = MNIST(str(tmp_path / "new" / "data"), num_clients=2, partition="IID", download=True)
    with pytest.raises(FileNotFoundError, match="no network"):
        data.setup()
    assert not [*tmp_path.iterdir()]
    (tmp_path / "new" / "data" / "mine").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="no network"):
        data.setup()
    assert [one.name for one in (tmp_path / "new" / "data").iterdir()] == ["mine"]
