"""Images and their masks: pairs by name, numbers of classes, and what is refused by file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules import CropFlip, PairFolder, Segmentation, TensorData
from datamodules.augment import Augmentation
from datamodules.partition.partitioner import IID

SITES = ("north", "south")


def image(number, size=(8, 6)):
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(256, size=(size[1], size[0], 3), dtype=np.uint8))


def numbers(number, classes=3, size=(8, 6)):
    rng = np.random.default_rng(number)
    return rng.integers(classes, size=(size[1], size[0]), dtype=np.uint8)


def palette(classes):
    mask = Image.fromarray(classes, "P")
    mask.putpalette([0, 0, 0, 200, 10, 10, 90, 90, 90] + [0] * 759)
    return mask


def save(folder, name, what):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    what.save(path)


@pytest.fixture
def root(tmp_path):
    for number in range(12):
        name = f"{SITES[number % 2]}/{number:02}"
        save(tmp_path / "images", f"{name}.png", image(number))
        save(tmp_path / "masks", f"{name}_mask.png", palette(numbers(number)))
    return tmp_path


def read(root, **options):
    return PairFolder(str(root / "images"), str(root / "masks"), **{"batch_size": 4, **options})


def test_a_mask_has_the_numbers_of_its_image_and_folders_are_clients(root):
    data = read(root)
    data.setup()
    assert data.task == Segmentation(3)
    assert (data.outputs, data.num_classes, data.num_clients) == (3, None, 2)
    assert list(data.client_names) == ["north", "south"]
    places = torch.arange(12)
    everything = data._tensors
    files = sorted(range(12), key=lambda number: (number % 2, number))
    for row, number in zip(places, files, strict=True):
        assert (everything.y[row].numpy() == numbers(number)).all()
        assert (everything.x[row].numpy() == np.asarray(image(number)).transpose(2, 0, 1)).all()


@pytest.mark.parametrize("kind", ["L", "1", "I;16"])
def test_grey_masks_have_their_classes_as_values(root, kind):
    for file in (root / "masks").rglob("*.png"):
        classes = numbers(int(file.stem[:2]), 2)
        if kind == "1":
            Image.fromarray(classes.astype(bool)).save(file)
        else:
            Image.fromarray(classes.astype(np.uint16 if kind == "I;16" else np.uint8)).save(file)
    data = read(root)
    assert data.task == Segmentation(2)
    assert (data._tensors.y[0].numpy() == numbers(0, 2)).all()


def test_values_number_the_classes(root):
    for file in (root / "masks").rglob("*.png"):
        Image.fromarray(255 * numbers(int(file.stem[:2]), 2)).save(file)
    with pytest.raises(ValueError, match="has the number 255"):
        _ = read(root, task=Segmentation(2)).task
    assert (read(root, values=[0, 255])._tensors.y[0].numpy() == numbers(0, 2)).all()


def test_official_splits_and_unused_masks(root):
    for part in ("images", "masks"):
        (root / part / "train").mkdir()
        (root / part / "test").mkdir()
        for site in SITES:
            (root / part / site).rename(root / part / "train" / site)
        ending = "_mask.png" if part == "masks" else ".png"
        for site, number in (("north", 0), ("south", 1)):
            file = root / part / "train" / site / f"{number:02}{ending}"
            target = root / part / "test" / site / file.name
            target.parent.mkdir()
            file.rename(target)
    save(root / "masks", "train/north/spare.png", palette(numbers(0)))
    data = read(root, test_protocol="matched")
    data.setup()
    assert [len(data.split(client, "test")) for client in range(2)] == [1, 1]
    assert (data.split(0, "test").targets[0].numpy() == numbers(0)).all()
    assert [why for _, why in data.reading.left_out] == ["a mask without an image"]


def test_image_and_mask_are_resized_alike(root):
    for number in range(12):
        pixels = np.zeros((20, 24, 3), np.uint8)
        pixels[:, 12:] = 255
        name = f"{SITES[number % 2]}/{number:02}"
        save(root / "images", f"{name}.png", Image.fromarray(pixels))
        save(root / "masks", f"{name}_mask.png", palette((pixels[..., 0] > 0).astype(np.uint8)))
    data = read(root, image_size=4)
    bright = data._tensors.x[:, 0] > 127
    assert torch.equal(bright, data._tensors.y == 1)


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_augmentation_moves_image_and_mask_alike(flip):
    """A mask that is the image itself stays so; a flip of both is a flip of the batch."""
    masks = torch.randint(2, (20, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    images = (255 * masks).to(torch.uint8)
    for y in (masks[:, 0].byte(), masks.float()):
        augment = CropFlip(0 if flip else 2, flip)
        task = Segmentation(2) if y.dim() == 3 else f"{__name__}.Same"
        options = {"augment": augment, "mean": 0.0, "std": 1.0, "task": task}
        data = TensorData({"x": images, "y": y}, 2, IID(), **options)
        split = data.split(0, "train")
        plain = split.batch(torch.arange(4))
        batch = split.batch(torch.arange(4), torch.Generator().manual_seed(1))
        assert torch.equal(batch.x, batch.y.view(batch.x.shape).float())
        assert not torch.equal(batch.x, plain.x)
        if flip:
            assert torch.equal(batch.x, plain.x.flip(-1))
            assert torch.equal(batch.y, plain.y.flip(-1))


class Same(Segmentation):
    def of_targets(self, y):
        return self, y


class Darker(Augmentation):
    def __call__(self, images, rng):
        return images // 2


def test_a_transform_of_images_alone_is_refused_for_masks():
    data = TensorData(
        {"x": torch.zeros(9, 1, 4, 4, dtype=torch.uint8), "y": torch.zeros(9, 4, 4)},
        2,
        IID(),
        task="segmentation",
        augment=Darker(),
    )
    with pytest.raises(ValueError, match=r"Darker transforms images, but not their masks"):
        data.split(0, "train").batch(torch.arange(2), torch.Generator())


def spoil_size(root):
    save(root / "masks", "north/02_mask.png", palette(numbers(2, size=(6, 8))))


def spoil_colours(root):
    save(root / "masks", "north/02_mask.png", image(2))


def spoil_format(root):
    (root / "masks/north/02_mask.png").unlink()
    save(root / "masks", "north/02.jpg", Image.fromarray(numbers(2)))


def spoil_content(root):
    (root / "masks/north/02_mask.png").write_bytes(b"no image")


def spoil_range(root):
    Image.fromarray(numbers(2).astype(np.uint16) + 700).save(root / "masks/north/02_mask.png")


def spoil_turn(root):
    exif = Image.Exif()
    exif[0x0112] = 3
    image(2).save(root / "images/north/02.png", exif=exif)


def spoil_name(root):
    save(root / "masks", "north/02.png", palette(numbers(2)))


def spoil_pair(root):
    (root / "masks/north/02_mask.png").unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_size, r"02_mask.png: it has 6x8 pixels, and its image .*02.png has 8x6"),
        (spoil_colours, "02_mask.png: its pixels are RGB colours"),
        (spoil_format, "02.jpg: .jpg changes the numbers of pixels"),
        (spoil_content, "02_mask.png: cannot identify image file"),
        (spoil_range, "02_mask.png: it has the number .*classes are at most 255"),
        (spoil_turn, "02_mask.png: its EXIF orientation is not that of its image"),
        (spoil_name, "02.png and .*02_mask.png have the same name"),
        (spoil_pair, r"1 of 12 images have no mask, first .*02.png: expected .*masks/north/02.png"),
    ],
)
def test_a_pair_that_does_not_fit_is_refused_by_its_file(root, spoil, words):
    spoil(root)
    with pytest.raises(ValueError, match=words):
        read(root).setup()


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*images"):
        read(tmp_path).setup()
