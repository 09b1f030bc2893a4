"""What hands, loggers and pipelines do before data are given: fill in, mirror, sum up, scale."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageOps

from datamodules import (
    IID,
    HFDataset,
    ImageFolder,
    LoaderData,
    PairFolder,
    TabularData,
    TensorData,
    TimeSeries,
    TorchDataset,
)
from tests.datamodules.corpus.kinds import collectors
from tests.datamodules.corpus.made import (
    SH,
    arrays,
    col,
    folder,
    hfcols,
    images,
    pairs,
    pfl,
    pfllib,
    pic,
    rows,
    saved,
    series,
    tab,
    text,
    ts,
)

DAMAGED, SOUND, damaged, sound = collectors()


def bmis(found, change):
    """Change the third cell of rows."""
    return [[*row[:2], change(n, row), *row[3:]] for n, row in enumerate(found)]


def every(n, one, other):
    return lambda place, row: one if place % n == 3 else other(row)


def as_it_is(row):
    return row[2]


def fine(rng, found):
    """Give each row a number with many digits."""
    return [[*row[:2], round(float(rng.normal(26, 4)), 3), *row[3:]] for row in found]


# Tables.


@damaged("table", "the mean filled in", r"'bmi' is .*filled in.*missing: mean")
def mean_filled(home, rng):
    rs = fine(rng, rows(rng))
    mean = round(float(np.mean([row[2] for n, row in enumerate(rs) if n % 8 != 3])), 3)
    return tab(home, text(bmis(rs, every(8, mean, as_it_is))))


@damaged("table", "the median filled in", r"'bmi' is .*filled in")
def median_filled(home, rng):
    rs = fine(rng, rows(rng))
    middle = round(float(np.median([row[2] for n, row in enumerate(rs) if n % 8 != 3])), 3)
    return tab(home, text(bmis(rs, every(8, middle, as_it_is))))


@damaged(
    "table", "one number at a whole hospital", r"'bmi' is 25 in all \d+ rows of 'Bonn'.*name it"
)
def one_number(home, rng):
    rs = fine(rng, rows(rng))
    return tab(home, text(bmis(rs, lambda n, row: 25 if row[0] == "Bonn" else row[2])))


@damaged("table", "a minus by mistake", r"'bmi' is -.*in line \d+.*write")
def minus(home, rng):
    rs = fine(rng, rows(rng))
    return tab(home, text(bmis(rs, lambda n, row: -row[2] if n == 40 else row[2])))


@damaged("table", "a decimal sign a place too far", r"'bmi' is \d+.*line \d+.*write 2")
def decimal(home, rng):
    rs = fine(rng, rows(rng))
    return tab(home, text(bmis(rs, lambda n, row: 263.5 if n == 40 else row[2])))


@damaged("table", "a decimal sign a place too early", r"'bmi' is 2\.6.*line \d+.*write 26")
def early(home, rng):
    rs = fine(rng, rows(rng))
    return tab(home, text(bmis(rs, lambda n, row: 2.635 if n == 40 else row[2])))


@damaged("table", "a year of two digits", r"'year' is 19 in line \d+.*write 2019")
def short_year(home, rng):
    rs, head = col(rows(rng), [int(v) for v in rng.integers(2015, 2026, 160)], "year")
    rs[50][4] = 19
    return tab(home, text(rs, head))


@damaged("table", "the target in another unit", r"'pounds' is 'kilos' in another unit")
def pounds(home, rng):
    kilos = [round(float(v), 1) for v in rng.normal(75, 12, 160)]
    rs, head = col(rows(rng), [round(2.20462 * one, 1) for one in kilos], "pounds")
    rs = [[*row[:-1], one] for row, one in zip(rs, kilos, strict=True)]
    return tab(home, text(rs, [*head[:-1], "kilos"]), target="kilos", task="regression")


@damaged(
    "table", "a score computed from the answer", r"'score' alone tells the classes of 'outcome'"
)
def score(home, rng):
    rs = rows(rng)
    told = [round(float(rng.normal(0.2 if r[-1] == "no" else 0.8, 0.03)), 3) for r in rs]
    rs, head = col(rs, told, "score")
    return tab(home, text(rs, head))


@damaged("table", "ticks and blanks", r"'x' is the only other.*if an empty cell means no")
def ticks(home, rng):
    rs, head = col(rows(rng), ["x" if v else "" for v in rng.integers(2, size=160)], "smoker")
    return tab(home, text(rs, head))


@damaged("table", "NULL as MySQL writes it", r"\\\\N.*missing_values")
def mysql(home, rng):
    rs, head = col(rows(rng), ["low", "high", "low", "\\N"] * 40, "risk")
    return tab(home, text(rs, head))


@damaged("table", "nothing in brackets", r"\(blank\).*missing_values")
def pivoted(home, rng):
    rs, head = col(rows(rng), ["low", "high", "low", "(blank)"] * 40, "risk")
    return tab(home, text(rs, head))


@damaged("table", "a note's number above a number", r"line \d+.*write 26\.3$|write 26\.3[^\d]")
def raised(home, rng):
    return tab(home, text(bmis(rows(rng), lambda n, row: "26.3\u00b9" if n in (9, 40) else row[2])))


@damaged("table", "a unit in a few cells", r"line \d+.*write 26\.3|unit")
def some_units(home, rng):
    return tab(home, text(bmis(rows(rng), lambda n, row: "26.3 kg" if n in (9, 40) else row[2])))


@damaged("table", "an address for a path", r"download")
def address(home, rng):
    return TabularData("https://example.org/t.csv", "outcome", client_column="site")


@damaged("table", "a pattern for a path", r"2 files are called so, such as .*a1\.csv")
def pattern(home, rng):
    for name in ("a1.csv", "a2.csv"):
        (home / name).write_text(text(rows(rng)))
    return TabularData(str(home / "a*.csv"), "outcome", client_column="site")


@damaged("table", "an ending that was forgotten", r"there is .*t\.csv$")
def ending(home, rng):
    (home / "t.csv").write_text(text(rows(rng)))
    return TabularData(str(home / "t"), "outcome", client_column="site")


@damaged("table", "a flow that counts the other way at one site", r"of 'Bonn' is below zero.*sign")
def inward(home, rng):
    rs = fine(rng, rows(rng))
    return tab(home, text(bmis(rs, lambda n, row: -row[2] if row[0] == "Bonn" else row[2])))


@damaged("table", "a remark between the rows", r"line 60")
def remark(home, rng):
    lines = text(rows(rng)).splitlines()
    return tab(home, "\n".join([*lines[:59], "# device changed", *lines[59:]]) + "\n")


# Series.


@damaged("series", "a block pasted twice", r"pasted twice")
def pasted(home, rng):
    rs = series(rng)
    for n in range(30):
        rs[60 + n][2] = rs[20 + n][2]
    return ts(home, rs)


@damaged("series", "summed up at one client", r"'south' never falls.*diff")
def summed(home, rng):
    rs = series(rng)
    total = 0.0
    for row in rs:
        if row[0] == "south":
            total += abs(row[2])
            row[2] = round(total, 3)
    return ts(home, rs)


@damaged("series", "the other sign at one client", r"of 'west' is below zero.*sign")
def outward(home, rng):
    return ts(home, [[*row[:2], -abs(row[2]) if row[0] == "west" else abs(row[2])]
                     for row in series(rng)])  # fmt: skip


@damaged("series", "a value with its decimal sign a place too far", r"'load' is \d+.*write")
def spike(home, rng):
    rs = series(rng, clients=("north", "south"))
    rs = [[*row[:2], round(float(rng.normal(50, 3)), 2)] for row in rs]
    rs[70][2] = 512.5
    return ts(home, rs)


@damaged("series", "the mean filled in", r"'load' is .*filled in")
def series_mean(home, rng):
    rs = [[*row[:2], round(float(rng.normal(50, 3)), 4)] for row in series(rng)]
    mean = round(float(np.mean([row[2] for n, row in enumerate(rs) if n % 9 != 4])), 4)
    return ts(home, [[*row[:2], mean if n % 9 == 4 else row[2]] for n, row in enumerate(rs)])


@damaged(
    "series", "a feature of one number at a client", r"'warm' is 15 in all \d+ rows of 'north'"
)
def lone_feature(home, rng):
    rs = [[*row, 15 if row[0] == "north" else round(float(rng.normal(15, 3)), 2)]
          for row in series(rng)]  # fmt: skip
    return ts(home, rs, [*SH, "warm"], features=["warm"])


@damaged("series", "an address for a path", r"download")
def series_address(home, rng):
    return TimeSeries("https://example.org/s.csv", "load", "station", 3)


# Folders, and images with masks.


def again(root, source, target, how):
    how(Image.open(root / source)).save(root / target)


@damaged("folder", "mirrored copies beside their originals", r"3 images are others, mirrored")
def mirrored(home, rng):
    root = folder(rng, home)
    for n in range(3):
        again(root, f"cat/c{n:02}.png", f"cat/m{n:02}.png", ImageOps.mirror)
    return images(root)


@damaged("folder", "turned copies in the test images", r"turned, 2 of them on both sides")
def turned(home, rng):
    root = folder(rng, home)
    (home / "g").mkdir()
    root.rename(home / "g/train")
    for n in range(4):
        (home / "g/test/cat").mkdir(parents=True, exist_ok=True)
        pic(rng).save(home / f"g/test/cat/t{n}.png")
    for n in range(2):
        again(home / "g", f"train/cat/c{n:02}.png", f"test/cat/r{n}.png", lambda i: i.rotate(90))
    return images(home / "g", test_protocol="matched")


@damaged("folder", "a class in a format of its own", r"'dog' are \.jpg.*one format")
def formats(home, rng):
    root = folder(rng, home)
    for file in sorted((root / "dog").glob("*.png")):
        Image.open(file).save(file.with_suffix(".jpg"))
        file.unlink()
    return images(root)


@damaged("folder", "a class in a size of its own", r"'dog' have from 40 to 40 pixels")
def sizes(home, rng):
    root = folder(rng, home)
    for file in sorted((root / "dog").glob("*.png")):
        pic(rng, (40, 40)).save(file)
    return images(root, image_size=12)


def with_splits(home, rng):
    root = folder(rng, home)
    (home / "g").mkdir()
    root.rename(home / "g/train")
    for name in ("cat", "dog", "owl"):
        (home / f"g/test/{name}").mkdir(parents=True)
        for n in range(4):
            pic(rng).save(home / f"g/test/{name}/t{n}.png")
    return home / "g"


@damaged("folder", "images beside train and test", r"1 files .*beside the folders of splits.*move")
def loose(home, rng):
    root = with_splits(home, rng)
    pic(rng).save(root / "more.png")
    return images(root)


@damaged("folder", "a folder of images beside train and test", r"5 files .*extra.*beside")
def extra(home, rng):
    root = with_splits(home, rng)
    (root / "extra/cat").mkdir(parents=True)
    for n in range(5):
        pic(rng).save(root / f"extra/cat/{n}.png")
    return images(root)


@damaged("folder", "an archive beside train and test", r"\.zip are not read.*unpack")
def archive(home, rng):
    root = with_splits(home, rng)
    (root / "val.zip").write_bytes(b"PK\x03\x04")
    return images(root)


@damaged("pairs", "classes the other way round at one client", r"client 'b' are of class 1")
def inverted(home, rng):
    im, ma = pairs(rng, home, values=(0, 0, 0, 0, 0, 0, 1), clients=("a", "b", "c"))
    for file in (ma / "b").glob("*.png"):
        Image.fromarray(1 - np.asarray(Image.open(file)), "L").save(file)
    return PairFolder(str(im), str(ma))


@damaged("pairs", "mirrored copies", r"images are others, mirrored")
def mirrored_pairs(home, rng):
    im, ma = pairs(rng, home)
    for root in (im, ma):
        again(root, "a/0.png", "a/m0.png", ImageOps.mirror)
    return PairFolder(str(im), str(ma))


@damaged("pairs", "an archive for the masks", r"is a file and no folder.*unzip")
def packed_masks(home, rng):
    im, _ = pairs(rng, home)
    (home / "ma.zip").write_bytes(b"PK\x03\x04")
    return PairFolder(str(im), str(home / "ma.zip"))


# Saved sets and tensors.


@damaged("saved", "mirrored pictures", r"images are others, mirrored")
def saved_mirrored(home, rng):
    from datasets import Dataset
    from datasets import Image as Kind

    made = [pic(rng) for _ in range(40)]
    made[7], made[9] = ImageOps.mirror(made[2]), ImageOps.flip(made[3])
    given = Dataset.from_dict({"x": made, "y": [n % 3 for n in range(40)]})
    given.cast_column("x", Kind()).save_to_disk(str(home / "hf"))
    return HFDataset(str(home / "hf"), "x", "y", num_clients=3, partition=IID())


@damaged("saved", "the mean filled in", r"'x' is .*filled in")
def saved_mean(home, rng):
    cols = hfcols(rng)
    values = rng.normal(40, 5, 90)
    values[::8] = values[np.arange(90) % 8 > 0].mean()
    return saved(home, {**cols, "x": values.tolist()})


@damaged("saved", "a score computed from the answer", r"'x' alone tells the classes of 'y'")
def saved_score(home, rng):
    labels = rng.integers(0, 2, 90)
    score = labels + rng.normal(0, 0.05, 90)
    return saved(home, {"x": score.tolist(), "y": labels.tolist()})


@damaged("saved", "one number at a whole site", r"in all \d+ rows of 'Bonn'")
def saved_one(home, rng):
    cols = hfcols(rng)
    values = [25.0 if one == "Bonn" else float(rng.normal(40, 5)) for one in cols["site"]]
    return saved(home, {**cols, "x": values}, client_column="site")


@damaged("saved", "a place in lists that never moves", r"x\[:, 2\].*all rows")
def still_place(home, rng):
    cols = hfcols(rng)
    return saved(home, {**cols, "x": [[*one[:2], 5.0, *one[3:]] for one in cols["x"]]})


@damaged("tensors", "half of the images scaled already", r"samples up to 1 and 60 up to 25\d")
def half_scaled(home, rng):
    x = rng.integers(0, 256, (120, 1, 8, 8)).astype(np.float32)
    x[:60] /= 255
    x[:, 0, 0, 0] = x.reshape(120, -1).max(1)
    return TensorData({"x": x - 0.0, "y": rng.integers(0, 3, 120), "client": np.arange(120) % 3})


@damaged("tensors", "mirrored images", r"images are others, mirrored")
def mirrored_tensors(home, rng):
    x = rng.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8)
    x[40] = x[3, :, :, ::-1]
    return TensorData({"x": x, "y": rng.integers(0, 3, 60), "client": np.arange(60) % 3})


class Shaking(torch.utils.data.Dataset):
    """Images that a random transform changes at each reading."""

    def __init__(self, rng, moves=True):
        self.x = torch.from_numpy(rng.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8))
        self.y = rng.integers(0, 3, 60).tolist()
        self.moves = moves

    def __len__(self):
        return 60

    def __getitem__(self, row):
        x = self.x[row]
        by = int(torch.randint(-2, 3, ())) if self.moves else 0
        return x.roll(by, -1), self.y[row]


@damaged("tensors", "a data set with random transforms", r"draw random numbers.*give augment")
def shaking(home, rng):
    return TorchDataset(Shaking(rng), 3, IID())


def of_loaders(rng, count=30):
    x, y = (
        torch.from_numpy(rng.normal(size=(count, 4))),
        torch.from_numpy(rng.integers(0, 3, count)),
    )
    return torch.utils.data.TensorDataset(x.float(), y)


@damaged(
    "tensors",
    "loaders: two clients with some of the same samples",
    r"of client 1 are train samples of client 0, too",
)
def overlapping(home, rng):
    every = of_loaders(rng)
    parts = [
        torch.utils.data.Subset(every, range(18)),
        torch.utils.data.Subset(every, range(12, 30)),
    ]
    return LoaderData(parts)


@damaged("tensors", "the mean filled in", r"is .*filled in")
def tensor_mean(home, rng):
    a = arrays(rng)
    x = a["x"].astype(np.float64)
    x[5::9, 1] = x[np.arange(120) % 9 != 5, 1].mean()
    return TensorData({**a, "x": x})


@damaged("pfllib", "one client scaled, and others not", r"samples up to .*are some of them scaled")
def pfllib_scaled(home, rng):
    return pfl(pfllib(rng, home, change=lambda part, c, d: {
        **d, "x": (np.abs(d["x"]) % 1 + 0.001) * (255 if c == 1 else 1)}))  # fmt: skip


# Sound.


@sound("table")
def sound_a_usual_dose(home, rng):
    """A frequent number that is not the middle."""
    rs = fine(rng, rows(rng))
    return tab(home, text(bmis(rs, every(3, 20, as_it_is))))


@sound("table")
def sound_rounded_to_halves(home, rng):
    return tab(home, text(bmis(rows(rng), lambda n, row: round(2 * float(rng.normal(26, 4))) / 2)))


@sound("table")
def sound_frost_on_one_day(home, rng):
    rs, head = col(rows(rng), [round(float(v), 1) for v in np.abs(rng.normal(6, 4, 160))], "warm")
    rs[30][4] = -0.7
    return tab(home, text(rs, head))


@sound("table")
def sound_incomes(home, rng):
    rs, head = col(rows(rng), [round(float(v)) for v in rng.lognormal(10, 0.8, 160)], "income")
    return tab(home, text(rs, head))


@sound("table")
def sound_a_good_predictor(home, rng):
    rs = rows(rng)
    told = [round(float(rng.normal(0.2 if r[-1] == "no" else 0.8, 0.25)), 3) for r in rs]
    rs, head = col(rs, told, "score")
    return tab(home, text(rs, head))


@sound("table")
def sound_years_of_two_centuries(home, rng):
    rs, head = col(rows(rng), [int(v) for v in rng.integers(1985, 2026, 160)], "year")
    return tab(home, text(rs, head))


@sound("table")
def sound_a_hospital_of_women(home, rng):
    return tab(home, text([[*r[:3], "f" if r[0] == "Bonn" else r[3], r[4]] for r in rows(rng)]))


@sound("table")
def sound_the_beds_of_each_hospital(home, rng):
    beds = {"Aachen": 310, "Bonn": 1200, "Köln": 880, "Trier": 640}
    rs = rows(rng)
    rs, head = col(rs, [beds[r[0]] for r in rs], "beds")
    return tab(home, text(rs, head))


@sound("table")
def sound_words_in_brackets(home, rng):
    rs, head = col(rows(rng), ["(mild)", "(severe)"] * 80, "course")
    return tab(home, text(rs, head))


@sound("table")
def sound_a_measure_and_its_rough_double(home, rng):
    kilos = [round(float(v), 1) for v in rng.normal(75, 12, 160)]
    rs, head = col(
        rows(rng), [round(one / 3 + float(rng.normal(0, 2)), 1) for one in kilos], "waist"
    )
    rs = [[*row[:-1], one] for row, one in zip(rs, kilos, strict=True)]
    return tab(home, text(rs, [*head[:-1], "kilos"]), target="kilos", task="regression")


@sound("series")
def sound_a_daily_course(home, rng):
    stamps = pd.date_range("2026-01-05", periods=24 * 8, freq="h")
    rs = [[c, str(t), round(float(50 + 9 * np.sin(t.hour / 24 * 2 * np.pi) + rng.normal()), 3)]
          for c in ("north", "south", "west") for t in stamps]  # fmt: skip
    return ts(home, rs)


@sound("series")
def sound_sums_at_all_clients(home, rng):
    rs = series(rng)
    total = dict.fromkeys(("north", "south", "west"), 0.0)
    for row in rs:
        total[row[0]] += abs(row[2])
        row[2] = round(total[row[0]], 2)
    return ts(home, rs)


@sound("series")
def sound_flows_both_ways(home, rng):
    return ts(home, [[*row[:2], round(float(rng.normal(0, 9)), 3)] for row in series(rng)])


@sound("series")
def sound_whole_numbers_of_a_week(home, rng):
    return ts(home, [[*row[:2], int(rng.poisson(3 + n % 7))] for n, row in enumerate(series(rng))])


@sound("folder")
def sound_formats_in_all_classes(home, rng):
    root = folder(rng, home)
    for file in sorted(root.rglob("*.png"))[::3]:
        Image.open(file).save(file.with_suffix(".jpg"))
        file.unlink()
    return ImageFolder(str(root), num_clients=3, partition=IID())


@sound("folder")
def sound_annotations_beside_train(home, rng):
    root = with_splits(home, rng)
    (root / "annotations").mkdir()
    (root / "annotations/boxes.json").write_text("{}")
    (root / "classes.txt").write_text("cat dog owl")
    return images(root)


@sound("folder")
def sound_each_picture_is_its_mirror(home, rng):
    root = folder(rng, home)
    for file in sorted(root.rglob("*.png")):
        half = np.asarray(Image.open(file))[:, :8]
        Image.fromarray(np.concatenate([half, half[:, ::-1]], 1)).save(file)
    return images(root)


@sound("folder")
def sound_sizes_that_overlap(home, rng):
    root = folder(rng, home)
    for n, file in enumerate(sorted(root.rglob("*.png"))):
        pic(rng, (16 + n % 9, 16 + n % 9)).save(file)
    return images(root, image_size=12)


@sound("pairs")
def sound_a_client_with_larger_organs(home, rng):
    im, ma = pairs(rng, home, values=(0, 0, 0, 1), clients=("a", "b", "c"))
    for file in (ma / "b").glob("*.png"):
        Image.fromarray((rng.random((16, 16)) < 0.6).astype(np.uint8), "L").save(file)
    return PairFolder(str(im), str(ma))


@sound("tensors")
def sound_dark_images_at_one_client(home, rng):
    x = rng.random((120, 1, 8, 8)).astype(np.float32)
    x[:40] *= 0.3
    return TensorData({"x": x, "y": rng.integers(0, 3, 120), "client": np.arange(120) // 40})


@sound("tensors")
def sound_a_data_set_that_keeps_still(home, rng):
    return TorchDataset(Shaking(rng, moves=False), 3, IID())


@sound("tensors")
def sound_loaders_of_subsets(home, rng):
    every = of_loaders(rng)
    parts = [
        torch.utils.data.Subset(every, range(15)),
        torch.utils.data.Subset(every, range(15, 30)),
    ]
    return LoaderData(parts)


@sound("saved")
def sound_lists_with_two_inputs(home, rng):
    cols = hfcols(rng)
    return saved(home, {**cols, "age": rng.normal(60, 9, 90).tolist()}, inputs=["x", "age"])


# A bit that fell over on its way.


def flipped(file, place=0.5):
    content = bytearray(file.read_bytes())
    for n in range(8):
        content[int(place * len(content)) + n] ^= 0xFF
    file.write_bytes(content)


@damaged("table", "gzip with a bit that fell over", r"t\.csv\.gz.*damaged.*copy it again")
def flipped_table(home, rng):
    file = home / "t.csv.gz"
    file.write_bytes(gzip.compress(text(rows(rng, 2000)).encode()))
    flipped(file)
    return TabularData(str(file), "outcome", client_column="site")


@damaged("tensors", "a packed file with a bit that fell over", r"t\.npz is not an \.npz file")
def flipped_tensors(home, rng):
    np.savez_compressed(home / "t.npz", **arrays(rng))
    flipped(home / "t.npz", 0.3)
    return TensorData(str(home / "t.npz"))


@damaged("pfllib", "a bit that fell over", r"1\.npz")
def flipped_pfllib(home, rng):
    root = pfllib(rng, home)
    flipped(root / "train/1.npz")
    return pfl(root)
