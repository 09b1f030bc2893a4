"""Folders of images: layouts, decoding, what images are, the cache, and what goes wrong."""

import os
import struct
import time
import unicodedata
import zlib
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

import datamodules.files
from datamodules import IID, PACS, ByDomain, DomainFolder, ImageFolder
from datamodules.files import Shape, decode
from tests.helpers.data import batch
from tests.helpers.messages import parts


def make(root, kind=ImageFolder, **arguments):
    return kind(root=str(root), **{"num_clients": 2, "partition": IID()} | arguments)


@pytest.fixture
def folder(pictures, tmp_path):
    pictures({"train/ant": 6, "train/bee": 6})
    pictures({"test/ant": 2, "test/bee": 2}, start=40)
    return tmp_path / "pictures"


def colours(data):
    """Return (n, 3) colour of each sample of the data set, by number, as bytes."""
    values = {}
    for client, holding in enumerate(data.division.holdings):
        for name in ("train", "val", "test"):
            x = batch(data, client, name).x[:, :, 0, 0]
            found = ((x / 2 + 0.5) * 255).round().int().tolist()
            values.update(zip(holding.of(name).tolist(), found, strict=True))
    return [values[i] for i in sorted(values)]


EXPECTED = [[value, 2 * value, 3 * value] for value in [*range(6), *range(10, 16), 40, 41, 50, 51]]


def test_samples_are_numbered_training_first_by_class_and_name(folder):
    data = make(folder)
    assert (data.class_names, data.input_shape) == (("ant", "bee"), (3, 4, 4))
    assert data.contents.num_train == 12
    assert data.contents.targets.labels.tolist() == [0] * 6 + [1] * 6 + [0, 0, 1, 1]
    assert colours(data) == EXPECTED


TRAIN = {"train/cat": 6, "train/dog": 6}


@pytest.mark.parametrize(
    ("layout", "trained"),
    [
        ({"cat": 8, "dog": 8}, 16),
        (TRAIN | {"test/cat": 2, "test/dog": 2}, 12),
        (TRAIN | {"val/cat": 2, "val/dog": 2}, 12),
        (TRAIN | {"validation/cat": 4}, 12),
        ({"Train/cat": 6, "Train/dog": 6, "TEST/cat": 2, "TEST/dog": 2}, 12),
        ({"training/cat": 6, "training/dog": 6, "testing/cat": 4}, 12),
        ({"entraînement/cat": 6, "entraînement/dog": 6, "test/dog": 4}, 12),
        ({"train/cat": 12, "train/dog": 0, "test/dog": 4}, 12),
        # In a single folder, images may lie deeper.
        ({"cat/images": 8, "dog/images": 8}, 16),
    ],
)
def test_a_layout_is_read_whole(pictures, recwarn, layout, trained):
    data = make(pictures(layout))
    assert (data.class_names, data.contents.num_train) == (("cat", "dog"), trained)
    assert (len(data.listing.files), data.reading.left_out) == (16, ())
    assert not [one for one in recwarn if "several" in str(one.message)]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"train/cat": 2, "val/cat": 2, "test/cat": 2}, "train, val and test ~ val_fraction"),
        ({"train/cat": 2, "valid/cat": 2, "val/cat": 2}, "are both folders of val images"),
        ({"Train/cat": 2, "train/cat": 2}, "are both folders of train images"),
        ({"test/cat": 2, "valid/cat": 2}, "test, valid ~ no train"),
        ({"cat": 2, "dog": 2, "Test": 2}, "Test, the name of a split ~ no train"),
        ({"train/cat": 2, "train/dog": 2, "test/cow": 2}, "'cow', which the training images"),
        ({"cat": 0}, "contains no image ~ .jpg"),
    ],
)
def test_a_layout_that_would_lose_images_is_refused(pictures, layout, message):
    with pytest.raises(ValueError, match=parts(message)):
        make(pictures(layout)).setup()


def test_a_folder_that_is_none_is_refused(tmp_path):
    for kind, root, message in (
        (ImageFolder, tmp_path / "nowhere", "nowhere ~ root/train/<class>"),
        (ImageFolder, tmp_path, "no folders ~ root/train/<class>"),
        (PACS, tmp_path / "pacs", "PACS ~ page ~ root/{art_painting"),
    ):
        with pytest.raises(FileNotFoundError, match=parts(message)):
            _ = make(root, kind).num_classes
    with pytest.raises(ValueError, match=r"image_size.* 1.* 0"):
        make(tmp_path, image_size=0)


def test_folders_within_a_class_are_warned_of(pictures):
    """As of a root whose folders are no classes."""
    root = pictures({f"{part}/{name}": 2 for part in ("first", "second") for name in ("a", "b")})
    data = make(root)
    with pytest.warns(UserWarning, match=parts("first has ~ several ~ 'first'")):
        data.setup()
    assert data.class_names == ("first", "second")


def test_what_is_not_read_is_listed(pictures, write):
    root = pictures({"train/cat": 4, "train/dog": 4, "raw/cow": 2})
    for name in ("cat/x.gif", "loose.png", "dog/notes.txt"):
        write("", f"pictures/train/{name}")
    data = make(root)
    with pytest.warns(UserWarning, match=parts("1 images .gif cannot be read")):
        data.setup()
    found = {file.rpartition("/")[2]: why for file, why in data.reading.left_out}
    assert found == {
        "raw": "beside train",
        "loose.png": "not in a class's folder",
        "x.gif": "not an image in a known format",
        "notes.txt": "not an image in a known format",
    }


# Domains.


@pytest.mark.parametrize("empty", [{}, {"Bob/castle": 0, "Eve/lake": 0, "Zoe": 0}])
def test_a_client_may_lack_a_class(pictures, empty):
    root = pictures({"Ann/castle": 6, "Ann/lake": 6, "Bob/lake": 8, "Eve/castle": 4} | empty)
    data = make(root, DomainFolder, num_clients=None, partition=ByDomain())
    assert data.class_names == ("castle", "lake")
    assert data.reading.clients == {"Ann": [6, 6], "Bob": [0, 8], "Eve": [4, 0]}
    assert len(data.reading.left_out) == len(empty) // 3


def test_a_class_that_nobody_has_is_a_count_of_zero(pictures):
    data = make(pictures({"ant": 6, "bee": 6, "cow": 0}))
    assert data.class_names == ("ant", "bee", "cow")
    assert [counts[2] for counts in data.reading.clients.values()] == [0, 0]


@pytest.mark.parametrize("layout", ["{domain}/{split}", "{split}/{domain}"])
def test_domains_may_have_official_splits(pictures, layout):
    counts = {
        f"{layout.format(domain=domain, split=split)}/{name}": count
        for domain in ("Ann", "Bob")
        for split, count in (("train", 6), ("test", 2))
        for name in ("lake", "castle")
    }
    data = make(pictures(counts, step=1), DomainFolder)
    assert data.class_names == ("castle", "lake")
    assert data.contents.domain_names == ["Ann", "Bob"]
    assert (data.contents.num_train, len(data.listing.files)) == (24, 32)


def test_a_class_in_two_forms_of_unicode_is_one(pictures):
    names = {"A": unicodedata.normalize("NFC", "Café"), "B": unicodedata.normalize("NFD", "Café")}
    root = pictures({f"{c}/{one}": 3 for c, name in names.items() for one in (name, "Bar")})
    assert make(root, DomainFolder).class_names == ("Bar", "Café")


# What images are.


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, **options)


DEEP = {2: 3, 4: 2, 6: 4}  # channels by PNG's number of a kind of colours


def deep(file, colour):
    """Write a PNG of 4x4 pixels with 16 bits a channel, which Pillow cannot write."""

    def chunk(kind, content):
        sum32 = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + sum32

    head = struct.pack(">IIBBBBB", 4, 4, 16, colour, 0, 0, 0)
    rows = b"".join(b"\0" + b"\0\x7f" * 4 * DEEP[colour] for _ in range(4))
    chunks = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def stored(root, image, suffix="png", **options):
    """Write a picture twice in each of two classes."""
    for name in ("a/0", "a/1", "b/0", "b/1"):
        save(root / f"{name}.{suffix}", image, **options)


def test_images_are_cropped_to_a_square_and_resized(tmp_path):
    """A 6x4 image, black but for its middle 4x4 in white, is white after cropping."""
    image = np.zeros((4, 6, 3), np.uint8)
    image[:, 1:5] = 255
    stored(tmp_path, image)
    data = make(tmp_path, image_size=2)
    assert data.input_shape == (3, 2, 2)
    assert batch(data).x.min() == 1


INK = np.zeros((8, 8), np.uint8)
INK[2:5, 2:5] = 255


def transparent(mode):
    """Return black ink in the middle of a transparent ground."""
    rgba = Image.fromarray(np.dstack([0 * INK, 0 * INK, 0 * INK, INK]))
    ground = np.where(INK > 0, 0, 7).astype(np.uint8)
    if mode == "P":
        image = Image.fromarray(INK // 255).convert("P")
        image.putpalette([0, 0, 0, 0, 0, 0])
        image.info["transparency"] = bytes([0, 255])
    elif mode == "L key":
        image = Image.fromarray(ground)
        image.info["transparency"] = 7
    elif mode == "RGB key":
        image = Image.fromarray(np.repeat(ground[..., None], 3, 2))
        image.info["transparency"] = (7, 7, 7)
    else:
        image = rgba.convert(mode)
    return image


KINDS = [("webp", "RGBA"), *(("png", mode) for mode in ("RGBA", "LA", "P", "L key", "RGB key"))]


@pytest.mark.parametrize(("suffix", "mode"), KINDS)
@pytest.mark.parametrize("grayscale", [False, True])
def test_transparent_images_are_laid_over_white(tmp_path, mode, grayscale, suffix):
    image = transparent(mode)
    options = {"lossless": True} if suffix == "webp" else {}
    if "transparency" in image.info:
        options["transparency"] = image.info["transparency"]
    stored(tmp_path / "p", image, suffix, **options)
    right = torch.from_numpy(255 - INK).expand(4, 1 if grayscale else 3, 8, 8)
    # With a cache too, which those of other options do not share.
    for cache in ({}, {"cache_dir": str(tmp_path / "c")}):
        data = make(tmp_path / "p", grayscale=grayscale, **cache)
        assert torch.equal(data.inputs(np.arange(4))[0], right)
        black = make(tmp_path / "p", over_white=False, grayscale=grayscale, **cache)
        assert black.inputs(np.arange(4))[0].max() <= 7


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_their_exif_orientation_says(tmp_path, orientation):
    """The tag says where the first row and column of the stored pixels are in the picture."""
    right = np.zeros((4, 6, 3), np.uint8)
    right[0, :, 0] = 200
    right[:, 0, 1] = 100
    turned = right.transpose(1, 0, 2)
    pixels = {
        1: right, 2: right[:, ::-1], 3: right[::-1, ::-1], 4: right[::-1],
        5: turned, 6: turned[::-1], 7: turned[::-1, ::-1], 8: turned[:, ::-1],
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored(tmp_path, np.ascontiguousarray(pixels), exif=exif)
    data = make(tmp_path)
    assert data.input_shape == (3, 4, 6)
    assert (data.inputs(np.arange(4))[0][3].permute(1, 2, 0).numpy() == right).all()
    assert len([fact for fact in data.reading.facts if "EXIF" in fact]) == (orientation > 1)
    assert make(tmp_path, exif_orientation=False).input_shape == (3, *pixels.shape[:2])


def test_the_hash_of_a_folder_does_not_depend_on_how_it_is_written(folder, monkeypatch):
    written = make(folder).description()["content_hash"]
    monkeypatch.chdir(folder)
    assert make(".").description()["content_hash"] == written


def test_only_what_is_used_is_decoded_without_a_cache(folder, monkeypatch):
    decoded, original = [], datamodules.files.Seen.add
    monkeypatch.setattr(
        datamodules.files.Seen, "add", lambda *a: decoded.append(a[2]) or original(*a)
    )
    make(folder, max_samples=8).setup()
    assert len(decoded) == 8


class TestCache:
    @pytest.fixture
    def cached(self, folder, tmp_path):
        return lambda **more: make(folder, cache_dir=str(tmp_path / "cache"), **more)

    def test_it_is_filled_once_and_gives_the_same(self, cached, folder, tmp_path, monkeypatch):
        first = cached()
        first.prepare_data()
        (file,) = (tmp_path / "cache").glob("*.npy")
        assert np.load(file, mmap_mode="r").shape == (16, 3, 4, 4)
        assert first.description() == make(folder).description()
        monkeypatch.setattr(datamodules.files, "_fill", None)
        assert colours(cached()) == EXPECTED

    def test_a_subset_reads_the_right_rows(self, cached, folder):
        assert colours(cached(max_samples=8)) == colours(make(folder, max_samples=8))

    def test_a_replaced_image_is_decoded_anew_and_sizes_do_not_mix(self, cached, folder, tmp_path):
        """The same name and number of bytes, another colour and time of change."""
        file = folder / "train" / "ant" / "000.bmp"
        for value in (9, 7):
            save(file, np.full((4, 4, 3), value, np.uint8))
            os.utime(file, (time.time() + value,) * 2)
            assert colours(cached())[1] == [value] * 3
        cached(image_size=2).setup()
        assert len(list((tmp_path / "cache").glob("*.npy"))) == 3

    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: b"",
            lambda content: content[:-1],
            lambda content: content.replace(b"|u1", b"|i1"),
            lambda content: content.replace(b"(16, 3", b"(12, 4"),
            lambda content: content.replace(b"'shape'", b"'shap(\\"),
        ],
    )
    def test_a_damaged_one_is_named_with_the_way_out(self, cached, tmp_path, damage):
        cached().prepare_data()
        (file,) = (tmp_path / "cache").glob("*.npy")
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(ValueError, match=parts(f"{file} ~ damaged ~ remove")):
            cached().setup()

    def test_a_failure_leaves_nothing_behind(self, cached, folder, tmp_path):
        (folder / "train" / "bee" / "03.png").write_bytes(b"no image")
        with pytest.raises(ValueError, match=parts("bee/03.png ~ replace or remove")):
            cached().setup()
        assert not list((tmp_path / "cache").iterdir())


def truncated(file):
    save(file, np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    file.write_bytes(file.read_bytes()[:3000])


def pipe(file):
    """Opening it would wait for a writer for ever."""
    file.unlink()
    os.mkfifo(file)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(b""), "the file is empty ~ replace or remove it"),
        (lambda file: file.write_bytes(b"no image"), "identify ~ replace or remove it"),
        (truncated, "truncated"),
        (pipe, "not a regular file ~ replace"),
        # Pillow would make each value above 255 white.
        (
            lambda file: save(file, np.full((4, 4), 4000, np.uint16)),
            "pixels are I ~ instead of bytes",
        ),
        # And of 16 bits a channel it would drop the lower 8.
        *((partial(deep, colour=colour), "16 bits per channel ~ with 8") for colour in DEEP),
        (lambda file: save(file, np.zeros((4, 5, 3), np.uint8)), "5x4 ~ 4x4 ~ image_size"),
    ],
)
def test_an_image_that_cannot_be_used_is_named(folder, damage, message):
    damage(folder / "train" / "bee" / "03.png")
    with pytest.raises(ValueError, match=parts(f"bee/03.png ~ {message}")):
        make(folder).setup()


def test_what_macos_adds_to_an_archive_is_no_class(pictures, write):
    root = pictures({"cat": 8, "dog": 8})
    write(b"no image", "pictures/__MACOSX/cat/._00.png")
    assert list(make(root).class_names) == ["cat", "dog"]


def test_all_unreadable_images_are_named_at_once_or_skipped(pictures, write):
    root = pictures({"cat": 6, "dog": 6})
    for name in ("cat/01", "dog/00", "dog/04"):
        write(b"no image", f"pictures/{name}.png")
    everything = parts("cat/01.png ~ dog/00.png ~ dog/04.png ~ remove them ~ skip")
    with pytest.raises(ValueError, match=everything):
        make(root).setup()
    data = make(root, on_unreadable="skip")
    assert len(data.contents.targets) == 9
    left = [file.rpartition("/")[2] for file, _ in data.reading.left_out]
    assert left == ["01.png", "00.png", "04.png"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "ppm", "webp", "tif"])
def test_any_damage_either_decodes_or_names_the_file(tmp_path, suffix):
    rng = np.random.default_rng(0)
    file = tmp_path / f"x.{suffix}"
    save(file, rng.integers(0, 256, (24, 20, 3), np.uint8))
    whole, refused = file.read_bytes(), []
    for _ in range(50):
        content = bytearray(whole[: rng.integers(len(whole))])
        for place in rng.integers(max(1, len(content)), size=3):
            content[place : place + 1] = rng.bytes(1)
        file.write_bytes(content)
        try:
            assert decode([str(file)], Shape(4))[0].shape == (1, 3, 4, 4)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 30
    assert all(str(file) in message for message in refused)


def test_more_than_memory(folder, monkeypatch):
    monkeypatch.setattr(datamodules.files, "MEMORY_LIMIT", 100)
    with pytest.raises(ValueError, match=parts("cache_dir ~ image_size ~ max_samples")):
        make(folder).setup()


class TestSuperclasses:
    @pytest.fixture
    def insects(self, pictures, write):
        counts = {"train": 4, "test": 2}
        names = ("ant", "bee", "cat", "dog", "eel")
        root = pictures({f"{part}/{name}": n for part, n in counts.items() for name in names})
        parents = write("class,superclass\nant,insect\nbee,insect\ncat,mammal\ndog,mammal\n")
        return lambda **options: make(root, superclasses=parents, **options)

    def test_domains_stay_with_their_files(self, pictures, write):
        names = ("ant", "bee", "cat")
        root = pictures({f"{d}/{name}": 2 for d in ("photo", "sketch") for name in names})
        parents = write("class,superclass\nant,insect\ncat,mammal\n")
        data = make(root, DomainFolder, superclasses=parents)
        assert data.contents.targets.domains.tolist() == [0] * 4 + [1] * 4

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("class,superclass\nyak,mammal\n", "t.csv ~ 'yak' ~ ant, bee, cat, dog, eel"),
            ("name,group\nant,insect\n", "t.csv ~ 'class' ~ name, group"),
            ("", "t.csv ~ no rows"),
            ("class,superclass\nant,a\nant,b\n", "t.csv, line 3 ~ 'ant' ~ two rows"),
        ],
    )
    def test_a_wrong_file_is_refused(self, insects, write, content, message):
        data = insects()
        write(content)
        with pytest.raises(ValueError, match=parts(message)):
            data.setup()
        with pytest.raises(FileNotFoundError, match=parts("superclasses: ~ no file ~ none.csv")):
            _ = make("x", superclasses="none.csv").parents
