"""Image folders: layouts, decoding, the cache, and what goes wrong."""

import os
import time

import numpy as np
import pytest
import torch
from PIL import Image

import datamodules.files
from datamodules import IID, PACS, ByDomain, ConceptDrift, DomainFolder, ImageFolder, Shards
from datamodules.files import Shape, decode
from tests.helpers.messages import parts


def save(path, value, size=(4, 4)):
    """Write an image file of one colour: (value, 2 * value, 3 * value)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 2 * value, 3 * value)).save(path)


def fill(folder, classes, count, start=0):
    for label, name in enumerate(classes):
        for i in range(count):
            save(folder / name / f"{i:02}.png", start + 10 * label + i)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "pictures"
    fill(root / "train", ("ant", "bee"), 6)
    fill(root / "test", ("ant", "bee"), 2, start=40)
    return root


def make(root, kind=ImageFolder, **arguments):
    return kind(root=str(root), **{"num_clients": 2, "partition": IID()} | arguments)


def pixels(data):
    """Return (n, 3) colour of each sample of the data set, by number, as bytes."""
    values = {}
    for client, holding in enumerate(data.division.holdings):
        for name in ("train", "val", "test"):
            view = data.split(client, name)
            x = view.batch(torch.arange(len(view))).x
            colours = ((x[:, :, 0, 0] / 2 + 0.5) * 255).round().int()
            values.update(zip(holding.of(name).tolist(), colours.tolist(), strict=True))
    return [values[i] for i in sorted(values)]


EXPECTED = [[value, 2 * value, 3 * value] for value in [*range(6), *range(10, 16), 40, 41, 50, 51]]


def test_samples_are_numbered_training_first_by_class_and_name(folder):
    data = make(folder)
    assert data.class_names == ("ant", "bee")
    assert data.input_shape == (3, 4, 4)
    assert data.contents.num_train == 12
    assert data.contents.targets.labels.tolist() == [0] * 6 + [1] * 6 + [0, 0, 1, 1]
    assert pixels(data) == EXPECTED


def test_a_val_folder_is_a_test_set_too(folder):
    (folder / "test").rename(folder / "val")
    assert make(folder).contents.num_train == 12


def test_a_single_folder_has_no_official_test_set(folder):
    data = make(folder / "train", test_protocol="global")
    assert data.contents.num_train == 12
    assert len(data.pooled_test()) == 3


def test_folders_within_a_class_are_told(tmp_path, recwarn):
    """As of a root whose folders are no classes; in one folder, images may lie deeper."""
    for part in ("ant/images", "bee/images"):
        save(tmp_path / "deep" / part / "0.png", 1)
    assert make(tmp_path / "deep").class_names == ("ant", "bee")
    assert not recwarn
    for part in ("first", "second"):
        fill(tmp_path / "wrong" / part, ("ant", "bee"), 2)
    with pytest.warns(UserWarning, match=parts("wrong/first ~ several ~ 'first' ~ root/train")):
        assert make(tmp_path / "wrong").class_names == ("first", "second")


def test_images_are_cropped_to_a_square_and_resized(tmp_path):
    """A 6x4 image, black but for its middle 4x4 in white, is white after cropping."""
    for name in ("a", "b"):
        image = Image.new("RGB", (6, 4))
        image.paste((255, 255, 255), (1, 0, 5, 4))
        (tmp_path / name).mkdir()
        image.save(tmp_path / name / "x.png")
    data = make(tmp_path, image_size=2, num_clients=1, partition=IID())
    assert data.input_shape == (3, 2, 2)
    assert data.split(0, "train").batch(torch.tensor([0])).x.min() == 1


def test_pixels_of_more_than_a_byte_are_refused(folder):
    """Pillow would make each value above 255 white."""
    deep = folder / "train" / "ant" / "00.png"
    Image.fromarray(np.full((4, 4), 4000, np.uint16)).save(deep)
    with pytest.raises(ValueError, match=parts("00.png ~ I;16 ~ not bytes")):
        make(folder).setup()


def test_the_hash_of_a_folder_does_not_depend_on_how_it_is_written(folder, monkeypatch):
    written = make(folder).description()["content_hash"]
    monkeypatch.chdir(folder)
    assert make(".").description()["content_hash"] == written


def test_grayscale_has_one_channel(folder):
    data = make(folder, grayscale=True)
    assert data.input_shape == (1, 4, 4)
    assert data.split(0, "train").batch(torch.arange(2)).x.shape == (2, 1, 4, 4)


def test_only_what_is_used_is_decoded_without_a_cache(folder, monkeypatch):
    decoded = []
    original = datamodules.files._pixels
    monkeypatch.setattr(
        datamodules.files,
        "_pixels",
        lambda file, *rest: decoded.append(file) or original(file, *rest),
    )
    data = make(folder, max_samples=8)
    data.setup()
    assert len(decoded) == 8


class TestCache:
    def test_it_is_filled_once_and_gives_the_same(self, folder, tmp_path, monkeypatch):
        cache = tmp_path / "cache"
        first = make(folder, cache_dir=str(cache))
        first.prepare_data()
        (file,) = cache.iterdir()
        assert file.name.startswith("imagefolder-")
        assert np.load(file, mmap_mode="r").shape == (16, 3, 4, 4)
        assert first.description() == make(folder).description()
        monkeypatch.setattr(datamodules.files, "_fill", None)
        assert pixels(make(folder, cache_dir=str(cache))) == EXPECTED

    def test_a_subset_reads_the_right_rows(self, folder, tmp_path):
        arguments = {"max_samples": 8, "test_protocol": "pooled"}
        cached = make(folder, cache_dir=str(tmp_path / "cache"), **arguments)
        assert pixels(cached) == pixels(make(folder, **arguments))

    def test_a_replaced_image_is_decoded_anew(self, folder, tmp_path):
        """The same name and number of bytes, another colour and time of change."""
        cache = tmp_path / "cache"
        file = folder / "train" / "ant" / "000.bmp"
        save(file, 9)
        assert pixels(make(folder, cache_dir=str(cache)))[1] == [9, 18, 27]
        size = file.stat().st_size
        save(file, 7)
        assert file.stat().st_size == size
        os.utime(file, (time.time() + 5,) * 2)
        assert pixels(make(folder, cache_dir=str(cache)))[1] == [7, 14, 21]

    def test_sizes_do_not_mix(self, folder, tmp_path):
        cache = tmp_path / "cache"
        for size in (None, 2):
            make(folder, cache_dir=str(cache), image_size=size).setup()
        assert len(list(cache.iterdir())) == 2

    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: b"",
            lambda content: b"no array",
            lambda content: content[:-1],
            lambda content: content[:40],
            lambda content: content.replace(b"|u1", b"|i1"),
            lambda content: content.replace(b"(16, 3", b"(12, 4"),
            lambda content: content.replace(b"'shape'", b"'shap(\\"),
        ],
    )
    def test_a_damaged_one_is_named_with_the_way_out(self, folder, tmp_path, damage):
        cache = tmp_path / "cache"
        make(folder, cache_dir=str(cache)).prepare_data()
        (file,) = cache.iterdir()
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(ValueError, match=parts(f"{file} ~ damaged ~ remove")):
            make(folder, cache_dir=str(cache)).setup()

    def test_a_failure_leaves_nothing_behind(self, folder, tmp_path):
        (folder / "train" / "bee" / "03.png").write_bytes(b"no image")
        cache = tmp_path / "cache"
        with pytest.raises(ValueError, match=parts("bee/03.png ~ replace or remove")):
            make(folder, cache_dir=str(cache)).setup()
        assert not list(cache.iterdir())


class TestErrors:
    def test_a_missing_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=parts("nowhere ~ root/train/<class>")):
            _ = make(tmp_path / "nowhere").num_classes

    def test_a_folder_without_classes(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=parts("no folders ~ root/train/<class>")):
            make(tmp_path).setup()

    def test_a_folder_without_any_image(self, tmp_path):
        (tmp_path / "cat").mkdir()
        with pytest.raises(ValueError, match=parts(f"{tmp_path} contains no image ~ .jpg")):
            make(tmp_path).setup()

    def test_a_class_that_only_the_test_set_has(self, folder):
        fill(folder / "test", ("cat",), 1)
        with pytest.raises(ValueError, match=parts("test ~ 'cat' ~ train")):
            make(folder).setup()

    @pytest.mark.parametrize("content", [b"", b"no image"])
    def test_a_file_that_is_no_image(self, folder, content):
        (folder / "train" / "bee" / "03.png").write_bytes(content)
        with pytest.raises(ValueError, match=parts("bee/03.png ~ identify ~ replace or remove")):
            make(folder).setup()

    def test_a_truncated_image(self, folder):
        file = folder / "train" / "bee" / "03.png"
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
        image.save(file)
        file.write_bytes(file.read_bytes()[:3000])
        with pytest.raises(ValueError, match=r"bee/03.png .*truncated"):
            make(folder, image_size=4).setup()

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_a_pipe_is_no_image(self, folder):
        """Opening it would wait for a writer for ever."""
        (folder / "train" / "bee" / "03.png").unlink()
        os.mkfifo(folder / "train" / "bee" / "03.png")
        with pytest.raises(ValueError, match=parts("bee/03.png ~ not a regular file ~ replace")):
            make(folder).setup()

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "ppm", "webp", "tif"])
    def test_any_damage_either_decodes_or_names_the_file(self, tmp_path, suffix):
        rng = np.random.default_rng(0)
        file = tmp_path / f"x.{suffix}"
        Image.fromarray(rng.integers(0, 256, (24, 20, 3), np.uint8)).save(file)
        whole = file.read_bytes()
        refused = []
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

    def test_an_image_of_another_size(self, folder):
        save(folder / "train" / "bee" / "03.png", 1, size=(5, 4))
        with pytest.raises(ValueError, match=parts("bee/03.png ~ 5x4 ~ 4x4 ~ image_size")):
            make(folder).setup()

    def test_more_than_memory(self, folder, monkeypatch):
        monkeypatch.setattr(datamodules.files, "MEMORY_LIMIT", 100)
        with pytest.raises(ValueError, match=parts("cache_dir ~ image_size ~ max_samples")):
            make(folder).setup()

    @pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
    def test_an_unreadable_file(self, folder):
        (folder / "train" / "bee" / "03.png").chmod(0)
        with pytest.raises(ValueError, match=r"bee/03.png .*Permission denied"):
            make(folder).setup()

    def test_a_size_that_is_none(self, folder):
        with pytest.raises(ValueError, match=r"image_size.* 1.* 0"):
            make(folder, image_size=0)


class TestSuperclasses:
    @pytest.fixture
    def insects(self, tmp_path):
        fill(tmp_path / "in", ("ant", "bee", "cat", "dog", "eel"), 4)
        (tmp_path / "parents.csv").write_text(
            "class,superclass\nant,insect\nbee,insect\ncat,mammal\ndog,mammal\n"
        )
        return tmp_path

    def test_classes_become_subclasses_and_others_are_left_out(self, insects):
        data = make(
            insects / "in", superclasses=str(insects / "parents.csv"), partition=ConceptDrift()
        )
        assert data.class_names == ("insect", "mammal")
        assert data.contents.fine_names == ["ant", "bee", "cat", "dog"]
        assert data.contents.targets.labels.tolist() == [0] * 8 + [1] * 8
        assert data.contents.targets.fine.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4

    def test_test_files_stay_test_files(self, tmp_path):
        for part, count in (("train", 4), ("test", 2)):
            fill(tmp_path / "in" / part, ("ant", "bee", "cat"), count)
        (tmp_path / "parents.csv").write_text("class,superclass\nant,insect\ncat,mammal\n")
        data = make(tmp_path / "in", superclasses=str(tmp_path / "parents.csv"))
        assert data.contents.num_train == 8
        assert data.contents.targets.labels.tolist() == [0] * 4 + [1] * 4 + [0] * 2 + [1] * 2

    def test_domains_stay_with_their_files(self, tmp_path):
        for domain in ("photo", "sketch"):
            fill(tmp_path / "in" / domain, ("ant", "bee", "cat"), 2)
        (tmp_path / "parents.csv").write_text("class,superclass\nant,insect\ncat,mammal\n")
        data = make(tmp_path / "in", DomainFolder, superclasses=str(tmp_path / "parents.csv"))
        assert data.contents.targets.domains.tolist() == [0] * 4 + [1] * 4

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("class,superclass\nyak,mammal\n", "parents.csv ~ 'yak' ~ ant, bee, cat, dog, eel"),
            ("name,group\nant,insect\n", "parents.csv ~ 'class' ~ name, group"),
            ("", "parents.csv ~ no rows"),
            ("class,superclass\nant,a\nant,b\n", "parents.csv, line 3 ~ 'ant' ~ two rows"),
        ],
    )
    def test_a_wrong_file_is_refused(self, insects, content, message):
        (insects / "parents.csv").write_text(content)
        with pytest.raises(ValueError, match=parts(message)):
            make(insects / "in", superclasses=str(insects / "parents.csv")).setup()

    def test_a_missing_file_is_refused(self, insects):
        with pytest.raises(FileNotFoundError, match=parts("superclasses: ~ no file ~ none.csv")):
            _ = make(insects / "in", superclasses=str(insects / "none.csv")).class_names


class TestDomains:
    def test_folders_of_domains_and_classes(self, tmp_path):
        for start, domain in enumerate(("photo", "sketch")):
            fill(tmp_path / domain, ("ant", "bee"), 4, start=40 * start)
        for kind in (DomainFolder, PACS):
            data = make(tmp_path, kind, partition=ByDomain(within=Shards(1)), num_clients=4)
            assert data.class_names == ("ant", "bee")
            assert data.contents.domain_names == ["photo", "sketch"]
            domains = data.contents.targets.domains
            for client, holding in enumerate(data.division.holdings):
                assert set(domains[holding.train].tolist()) == {client % 2}

    def test_a_published_set_has_every_class_in_every_domain(self, tmp_path):
        fill(tmp_path / "photo", ("ant", "bee"), 1)
        fill(tmp_path / "sketch", ("ant",), 1)
        with pytest.raises(ValueError, match=parts("sketch has no image ~ 'bee'")):
            make(tmp_path, PACS).setup()

    def test_a_missing_set_says_where_it_is(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=parts("PACS ~ page ~ root/{art_painting")):
            make(tmp_path / "pacs", PACS).setup()
