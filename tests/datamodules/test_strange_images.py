"""Folders and images of strangers: layouts, absent classes, transparency, orientation, channels."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules import IID, ByDomain, DomainFolder, ImageFolder, TensorData
from tests.helpers.messages import parts

GREY = np.full((8, 8, 3), 90, np.uint8)


def save(path, pixels=GREY, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def fill(root, counts):
    """Write so many pictures into each folder."""
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            save(root / folder / f"{number}.png", np.full((8, 8, 3), 10 * number, np.uint8))


def folder(root, kind=ImageFolder, **options):
    options = {"num_clients": 2, "partition": IID(), **options}
    return kind(root=str(root), **options)


@pytest.mark.parametrize(
    ("layout", "files", "trained"),
    [
        ({"cat": 8, "dog": 8}, 16, 16),
        ({"train/cat": 6, "train/dog": 6, "test/cat": 2, "test/dog": 2}, 16, 12),
        ({"train/cat": 6, "train/dog": 6, "val/cat": 2, "val/dog": 2}, 16, 12),
        ({"train/cat": 6, "train/dog": 6, "valid/cat": 2, "valid/dog": 2}, 16, 12),
        ({"train/cat": 6, "train/dog": 6, "validation/cat": 4}, 16, 12),
        ({"Train/cat": 6, "Train/dog": 6, "TEST/cat": 2, "TEST/dog": 2}, 16, 12),
        ({"training/cat": 6, "training/dog": 6, "testing/cat": 4}, 16, 12),
        ({"entraînement/cat": 6, "entraînement/dog": 6, "test/dog": 4}, 16, 12),
        ({"entrenamiento/cat": 6, "entrenamiento/dog": 6, "prueba/dog": 4}, 16, 12),
        ({"train/cat": 12, "train/dog": 0, "test/dog": 4}, 16, 12),
    ],
)
def test_a_layout_is_read_whole(tmp_path, layout, files, trained):
    fill(tmp_path, layout)
    data = folder(tmp_path)
    assert (data.class_names, data.contents.num_train) == (("cat", "dog"), trained)
    assert (len(data.listing.files), data.reading.left_out) == (files, ())


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"train/cat": 2, "val/cat": 2, "test/cat": 2}, "train, val and test ~ val_fraction"),
        ({"train/cat": 2, "valid/cat": 2, "val/cat": 2}, "are both the val images"),
        ({"Train/cat": 2, "train/cat": 2}, "are both the train images"),
        ({"test/cat": 2, "valid/cat": 2}, "test, valid ~ no train"),
        ({"cat": 2, "dog": 2, "Test": 2}, "Test, the name of a split ~ no train"),
        ({"train/cat": 2, "train/dog": 2, "test/cow": 2}, "'cow', which the training images"),
    ],
)
def test_a_layout_that_would_lose_images_is_refused(tmp_path, layout, message):
    fill(tmp_path, layout)
    with pytest.raises(ValueError, match=parts(message)):
        folder(tmp_path).setup()


def test_what_is_not_read_is_listed(tmp_path):
    fill(tmp_path, {"train/cat": 4, "train/dog": 4, "raw/cow": 2})
    save(tmp_path / "train" / "cat" / "x.gif")
    save(tmp_path / "train" / "loose.png")
    (tmp_path / "train" / "dog" / "notes.txt").write_text("")
    data = folder(tmp_path)
    with pytest.warns(UserWarning, match=parts("1 images .gif are not read")):
        data.setup()
    found = {file.rpartition("/")[2]: why for file, why in data.reading.left_out}
    assert found == {
        "raw": "beside train",
        "loose.png": "in no class's folder",
        "x.gif": "no image of a format that is read",
        "notes.txt": "no image of a format that is read",
    }


@pytest.mark.parametrize("absent", ["missing", "empty"])
def test_a_client_may_lack_a_class(tmp_path, absent):
    fill(tmp_path, {"Ann/castle": 6, "Ann/lake": 6, "Bob/lake": 8, "Eve/castle": 4})
    if absent == "empty":
        fill(tmp_path, {"Bob/castle": 0, "Eve/lake": 0, "Zoe": 0})
    data = DomainFolder(root=str(tmp_path), num_clients=None, partition=ByDomain())
    data.setup()
    assert data.class_names == ("castle", "lake")
    assert data.reading.clients == {"Ann": [6, 6], "Bob": [0, 8], "Eve": [4, 0]}
    assert len(data.reading.left_out) == (absent == "empty")


def test_a_class_that_nobody_has_is_a_count_of_zero(tmp_path):
    fill(tmp_path, {"ant": 6, "bee": 6, "cow": 0})
    data = folder(tmp_path)
    data.setup()
    assert data.class_names == ("ant", "bee", "cow")
    assert [counts[2] for counts in data.reading.clients.values()] == [0, 0]


@pytest.mark.parametrize("layout", ["{domain}/{split}", "{split}/{domain}"])
def test_domains_may_have_official_splits(tmp_path, layout):
    for domain in ("Ann", "Bob"):
        for split, count in (("train", 6), ("test", 2)):
            path = layout.format(domain=domain, split=split)
            fill(tmp_path, {f"{path}/lake": count, f"{path}/castle": count})
    data = folder(tmp_path, DomainFolder)
    assert data.class_names == ("castle", "lake")
    assert data.contents.domain_names == ["Ann", "Bob"]
    assert (data.contents.num_train, len(data.listing.files)) == (24, 32)


def test_a_class_in_two_forms_of_unicode_is_one(tmp_path):
    for client, form in (("A", "NFC"), ("B", "NFD")):
        name = unicodedata.normalize(form, "Café")
        fill(tmp_path, {f"{client}/{name}": 3, f"{client}/Bar": 3})
    assert folder(tmp_path, DomainFolder).class_names == ("Bar", "Café")


def test_all_unreadable_images_are_named_at_once_or_skipped(tmp_path):
    fill(tmp_path, {"cat": 6, "dog": 6})
    for name in ("cat/1", "dog/0", "dog/4"):
        (tmp_path / f"{name}.png").write_bytes(b"no image")
    with pytest.raises(
        ValueError, match=parts("cat/1.png ~ dog/0.png ~ dog/4.png ~ remove them ~ skip")
    ):
        folder(tmp_path).setup()
    data = folder(tmp_path, on_unreadable="skip")
    data.setup()
    assert len(data.contents.targets) == 9
    assert [file.rpartition("/")[2] for file, _ in data.reading.left_out] == [
        "1.png", "0.png", "4.png"
    ]  # fmt: skip


INK = np.zeros((8, 8), np.uint8)
INK[2:5, 2:5] = 255


def transparent(mode):
    """Return black ink in the middle of a transparent ground."""
    rgba = Image.fromarray(np.dstack([0 * INK, 0 * INK, 0 * INK, INK]))
    if mode == "P":
        image = Image.fromarray(INK // 255)
        image = image.convert("P")
        image.putpalette([0, 0, 0, 0, 0, 0])
        image.info["transparency"] = bytes([0, 255])
        return image
    if mode == "L key":
        image = Image.fromarray(np.where(INK > 0, 0, 7).astype(np.uint8))
        image.info["transparency"] = 7
        return image
    if mode == "RGB key":
        image = Image.fromarray(
            np.repeat(np.where(INK > 0, 0, 7).astype(np.uint8)[..., None], 3, 2)
        )
        image.info["transparency"] = (7, 7, 7)
        return image
    return rgba.convert(mode)


KINDS = [("webp", "RGBA"), *(("png", mode) for mode in ("RGBA", "LA", "P", "L key", "RGB key"))]


@pytest.mark.parametrize(("suffix", "mode"), KINDS)
@pytest.mark.parametrize("grayscale", [False, True])
def test_transparent_images_are_laid_over_white(tmp_path, mode, grayscale, suffix):
    image = transparent(mode)
    options = {"lossless": True} if suffix == "webp" else {}
    if "transparency" in image.info:
        options["transparency"] = image.info["transparency"]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            image.save(tmp_path / name / f"{number}.{suffix}", **options)
    pixels = folder(tmp_path, grayscale=grayscale).inputs(np.arange(4))[0]
    right = torch.from_numpy(255 - INK).expand(4, 1 if grayscale else 3, 8, 8)
    assert torch.equal(pixels, right)
    black = folder(tmp_path, over_white=False, grayscale=grayscale).inputs(np.arange(4))[0]
    assert black.max() <= 7


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_their_exif_orientation_says(tmp_path, orientation):
    """The tag says where the first row and column of the stored pixels are in the picture."""
    right = np.zeros((4, 6, 3), np.uint8)
    right[0, :, 0] = 200
    right[:, 0, 1] = 100
    stored = {
        1: right, 2: right[:, ::-1], 3: right[::-1, ::-1], 4: right[::-1],
        5: right.transpose(1, 0, 2), 6: right.transpose(1, 0, 2)[::-1],
        7: right.transpose(1, 0, 2)[::-1, ::-1], 8: right.transpose(1, 0, 2)[:, ::-1],
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("a", "b"):
        for number in range(2):
            save(tmp_path / name / f"{number}.png", np.ascontiguousarray(stored), exif=exif)
    data = folder(tmp_path)
    assert data.input_shape == (3, 4, 6)
    pixels = data.inputs(np.arange(4))[0]
    assert (pixels[3].permute(1, 2, 0).numpy() == right).all()
    turned = [fact for fact in data.report().facts if "EXIF" in fact]
    assert len(turned) == (orientation > 1)
    left = folder(tmp_path, exif_orientation=False)
    assert left.input_shape == (3, *stored.shape[:2])


def test_a_cache_of_other_options_is_not_taken(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "q" / name).mkdir(parents=True)
        for number in range(2):
            transparent("RGBA").save(tmp_path / "q" / name / f"{number}.png")
    sums = [
        int(
            folder(tmp_path / "q", cache_dir=str(tmp_path / "c"), over_white=white)
            .inputs(np.arange(4))[0]
            .sum()
        )
        for white in (True, False)
    ]
    assert sums[0] > sums[1] == 0


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_last_are_refused_with_the_permutation_that_helps(channels):
    x = torch.randint(0, 255, (60, 32, 32, channels), dtype=torch.uint8)
    y = torch.arange(60) % 3
    with pytest.raises(ValueError, match=parts("x.permute(0, 3, 1, 2)")):
        TensorData({"x": x, "y": y}, num_clients=3, partition=IID()).setup()
    data = TensorData({"x": x.permute(0, 3, 1, 2), "y": y}, num_clients=3, partition=IID())
    data.setup()
    assert data.input_shape == (channels, 32, 32)
    floats = TensorData({"x": x.float(), "y": y}, num_clients=3, partition=IID())
    with pytest.warns(UserWarning, match=parts("x.permute(0, 3, 1, 2)")):
        floats.setup()


def test_labels_of_minus_one_are_told_to_mean_unlabelled():
    data = TensorData({"x": torch.zeros(4, 2), "y": torch.tensor([0, 1, -1, 0])}, 1, IID())
    with pytest.raises(ValueError, match=parts("got -1 ~ without a label ~ leave")):
        data.setup()
