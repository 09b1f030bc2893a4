"""What was thought out after the corpus: damages that fell, and sound data that look odd."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from torch.utils.data import Subset, TensorDataset

from datamodules import IID, ByDomain, DomainFolder, HFDataset, LoaderData, TabularData, TensorData
from tests.datamodules.corpus.kinds import Case, collectors
from tests.datamodules.corpus.made import (
    HEAD,
    SH,
    arrays,
    changed,
    col,
    folder,
    hd,
    heart,
    hfcols,
    images,
    pairfolder,
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


def case(reader, damage, words, make):
    DAMAGED.append(Case(reader, damage, make, words))


def cells(damage, place, values, words):
    """Keep a table with some odd cells in a column."""

    def make(home, rng):
        found = rows(rng)
        for row, value in zip((30, 50, 70), values, strict=False):
            found[row][place] = value
        return tab(home, text(found))

    case("table", damage, words, make)


cells("a letter O for a zero", 1, ["4O"], r"line 32.*looks? like digits: write 40")
cells("two points in a number", 2, ["26..3"], r"line 32.*write a number, or name it")
cells("a range of ages", 1, ["40-45", "50-55"], r"line 32.*range is no number")
cells("ninety and over", 1, ["90+", "90+"], r"line 32.*range is no number")
cells("an infinite number in words", 2, ["Infinity"], r"line 32.*write a number, or name it")
cells("a number in words", 1, ["forty"], r"line 32.*write a number, or name it")
cells("an age with a digit too many", 1, [450], r"'age' is 450 in line 32.*(at most|write 45)")
cells("a client for trials", 0, ["TEST", "TEST"], r"'TEST' in 2 samples.*trial")


def two_units(name, middle, width, change, words):
    """Keep a column of which every seventh number is in another unit."""

    def make(home, rng):
        found = [round(float(rng.normal(middle, width)), 1) for _ in range(160)]
        found = [round(change(one), 1) if n % 7 == 0 else one for n, one in enumerate(found)]
        rs, head = col(rows(rng), found, name)
        return tab(home, text(rs, head))

    case("table", f"two units in one column: {name}", words, make)


two_units("weight", 75, 6, lambda kilos: 2.2046 * kilos, r"'weight'.*two units \(1:2\.2")
two_units("height", 172, 8, lambda one: one / 2.54, r"'height'.*two units \(1:2\.54")
two_units("temp", 37.5, 0.6, lambda warm: 1.8 * warm + 32, r"'temp'.*two units")
two_units("glucose", 100, 15, lambda one: one / 18.02, r"'glucose'.*two units \(1:18")


def separated(sign, words):
    case("table", f"separated by {sign!a}", words, lambda h, rng: tab(h, text(rows(rng), sep=sign)))


separated("^", r"give separator: '\^'")
separated("~", r"give separator: '~'")
separated("::", r"write a single sign in its place")
separated("\x01", r"give separator: '\\x01'")


def content(damage, words, change, **options):
    """Keep a table whose bytes are changed."""
    case("table", damage, words, lambda h, rng: tab(h, change(text(rows(rng))), **options))


content("an empty file", r"it is empty.*copy it again", lambda whole: b"")
content("a header alone", r"no line below the header", lambda whole: whole.split("\n")[0] + "\n")
content("no header", r"write a line with names above", lambda whole: whole.split("\n", 1)[1])
content("NULs at the end", r"line 162.*copy it again", lambda whole: whole.encode() + b"\0" * 99)
content("rows with another sign", r"line \d+.*write ',' alone",
        lambda whole: whole[:1500] + whole[1500:].split("\n", 1)[0] + "\n"
        + whole[1500:].split("\n", 1)[1].replace(",", ";"))  # fmt: skip
content("a table of LaTeX", r"LaTeX.*export", lambda whole: "\\begin{tabular}{lrr}\n" + whole)
content(
    "YAML", r"YAML.*convert it", lambda whole: "- site: Bonn\n  age: 3\n- site: Calw\n  age: 4\n"
)
content("turned round", r"turn the table round",
        lambda whole: "\n".join(map(",".join, zip(*(line.split(",") for line in whole.split()),
                                                  strict=True))))  # fmt: skip


def quoted(sign, end, words):
    def make(home, rng):
        rs, head = col(rows(rng), [f"{sign}low, mild{end}", f"{sign}high{end}"] * 80, "risk")
        lines = [",".join(map(str, row)) for row in [head, *rs]]
        return tab(home, "\n".join(lines) + "\n")

    case("table", f"cells in {sign}{end}", words, make)


quoted("'", "'", r"line 2.*quotes of cells are \"")
quoted("\u201c", "\u201d", r"line 2.*quotes of cells are \"")


@damaged("table", "a quote within quotes behind a backslash", r"line 22.*written twice")
def backslash(home, rng):
    notes = ['"He said \\"hi\\", so"' if n == 20 else '"fine"' for n in range(160)]
    rs, head = col(rows(rng), notes, "note")
    lines = [",".join(map(str, row)) for row in [head, *rs]]
    return tab(home, "\n".join(lines) + "\n", features=["age", "bmi"])


def place(damage, path, words):
    def make(home, rng):
        tab(home, text(rows(rng)))
        return TabularData(path.format(home), target="outcome", client_column="site")

    case("table", damage, words, make)


place("a path with a variable", "$HOME/data/t.csv", r"variables are not filled in")
place("a path in quotes", "'{}/t.csv'", r"quotes count as part")


@damaged("table", "patients in two cases", r"'patient' has 'p\d+' and 'P\d+'|'P\d+' and 'p\d+'")
def patients(home, rng):
    ids = [f"P{n % 40:03}" if n % 3 else f"p{n % 40:03}" for n in range(160)]
    rs, head = col(rows(rng), ids, "patient")
    return tab(home, text(rs, head), features=["age", "bmi"])


def book(home, rng, change=None):
    openpyxl = pytest.importorskip("openpyxl")
    found = openpyxl.Workbook()
    sheet = found.active if change is None else change(found)
    for row in [HEAD, *rows(rng)]:
        sheet.append(row)
    return found, str(home / "t.xlsx")


@damaged("table", "excel: a page before the table", r"only the first sheet is read, and not 'Data'")
def cover(home, rng):
    def first(found):
        found.active["A1"], found.active["A2"] = "Study", "Contact"
        return found.create_sheet("Data")

    found, path = book(home, rng, first)
    found.save(path)
    return TabularData(path, target="outcome", client_column="site")


@damaged("table", "excel: rows hidden by a filter", r"40 rows are hidden")
def hidden(home, rng):
    found, path = book(home, rng)
    for row in range(20, 60):
        found.active.row_dimensions[row].hidden = True
    found.save(path)
    return TabularData(path, target="outcome", client_column="site")


@damaged("table", "excel: cut off", r"cut off; copy it again")
def half(home, rng):
    found, path = book(home, rng)
    found.save(path)
    whole = (home / "t.xlsx").read_bytes()
    (home / "t.xlsx").write_bytes(whole[: len(whole) // 2])
    return TabularData(path, target="outcome", client_column="site")


# Series.


@damaged("series", "a column for each client", r"melt")
def wide(home, rng):
    days = pd.date_range("2025-01-01", periods=100)
    found = [[str(day.date()), *np.round(rng.normal(50, 5, 3), 2)] for day in days]
    return ts(home, None, content=text(found, ["time", "north", "south", "west"]))


@damaged("series", "midnight as 24:00", r"line \d+.*00:00 of the next day")
def midnight(home, rng):
    found = [[r[0], r[1].replace(" 00:00", " 24:00"), r[2]] for r in series(rng, step="h")]
    return ts(home, found)


@damaged("series", "a clock of twelve hours", r"line \d+.*24 hours")
def noon(home, rng):
    found = [
        [r[0], f"{r[1][:11]}{int(r[1][11:13]) % 12:02}:00:00", r[2]] for r in series(rng, step="h")
    ]
    return ts(home, found)


@damaged("series", "a client in another century", r"'south' is around 1925.*check the century")
def century(home, rng):
    found = series(rng)
    return ts(home, [[r[0], r[1].replace("2025", "1925") if r[0] == "south" else r[1], r[2]]
                     for r in found])  # fmt: skip


@damaged("series", "Fahrenheit at one client", r"'temp' of 'south'.*another unit")
def warm(home, rng):
    found = [[*r, round(float(rng.normal(20, 5)), 2)] for r in series(rng)]
    found = [[*r[:3], round(1.8 * r[3] + 32, 1) if r[0] == "south" else r[3]] for r in found]
    return ts(home, found, [*SH, "temp"], features=["temp"])


@damaged("series", "every second value interpolated", r"'north' lie midway.*interpolated")
def midway(home, rng):
    found = series(rng)
    for n in range(1, len(found) - 1, 2):
        if found[n - 1][0] == found[n + 1][0]:
            found[n][2] = (found[n - 1][2] + found[n + 1][2]) / 2
    return ts(home, found)


@damaged("series", "days repeated in each hour", r"'north' stands in 24 rows running")
def coarse(home, rng):
    found = series(rng, n=240, step="h")
    return ts(home, [[*r[:2], found[n - n % 24][2]] for n, r in enumerate(found)])


@damaged("series", "a feature that looks ahead as a mean", r"'smooth' is the mean of the target")
def smooth(home, rng):
    found = series(rng)
    means = pd.Series([r[2] for r in found]).rolling(3, center=True, min_periods=1).mean()
    found = [[*r, round(float(m), 4)] for r, m in zip(found, means, strict=True)]
    return ts(home, found, [*SH, "smooth"], features=["smooth"])


@damaged("series", "a client that is the sum of others", r"'region' is the sum of.*leave")
def region(home, rng):
    found = series(rng)
    n = len(found) // 3
    total = [["region", found[i][1], round(sum(found[i + k * n][2] for k in range(3)), 3)]
             for i in range(n)]  # fmt: skip
    return ts(home, [*found, *total])


# Images.


def blurred(rng):
    """Return an image that changes slowly, as a photo does."""
    fields = np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((4, 4, 1))).astype(np.uint8)
    return Image.fromarray(fields).filter(ImageFilter.GaussianBlur(2))


def photos(rng, home):
    root = home / "f"
    for name in ("cat", "dog", "owl"):
        (root / name).mkdir(parents=True)
        for n in range(12):
            blurred(rng).save(root / name / f"{name[0]}{n:02}.png")
    return root


def packed(image):
    kept = io.BytesIO()
    image.save(kept, "JPEG", quality=80)
    return Image.open(io.BytesIO(kept.getvalue())).convert("RGB")


def written(image):
    found = image.copy()
    ImageDraw.Draw(found).text((2, image.height - 12), "COPY", fill=(255, 255, 255))
    return found


AGAIN = {
    "packed": packed,
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "resized": lambda image: image.resize((24, 24)),
    "negative": ImageOps.invert,
    "rotated by some degrees": lambda image: image.rotate(5, Image.Resampling.BILINEAR),
    "with a word on them": written,
}


def again(how, change):
    def of_folder(home, rng):
        root = photos(rng, home)
        for n in range(4):
            change(Image.open(root / "cat" / f"c{n:02}.png")).save(root / "cat" / f"z{n}.png")
        return images(root, image_size=32)

    def of_set(home, rng):
        datasets = pytest.importorskip("datasets")
        found = [blurred(rng) for _ in range(60)]
        found[40:46] = [change(one).resize((32, 32)) for one in found[:6]]
        kinds = {"x": datasets.Image(), "y": datasets.Value("int64")}
        columns = {"x": found, "y": [n % 3 for n in range(60)]}
        return saved(home, columns, datasets.Features(kinds))

    def of_pairs(home, rng):
        im, ma = pairs(rng, home, n=12)
        for file in sorted(im.rglob("*.png")):
            blurred(rng).resize((16, 16)).save(file)
        change(Image.open(im / "a" / "0.png")).resize((16, 16)).save(im / "b" / "3.png")
        return pairfolder(im, ma)

    def of_bytes(home, rng):
        found = np.stack([np.asarray(blurred(rng)) for _ in range(60)])
        for n in range(6):
            found[40 + n] = np.asarray(change(Image.fromarray(found[n])).resize((32, 32)))
        return TensorData(
            {"x": found.transpose(0, 3, 1, 2), "y": np.arange(60) % 3, "client": np.arange(60) % 2}
        )

    makes = {"folder": of_folder, "saved": of_set, "tensors": of_bytes, "pairs": of_pairs}
    # Of so few pixels as those of the pairs, packing leaves too little, and a word nothing.
    if how in ("packed", "with a word on them"):
        del makes["pairs"]
    for reader, make in makes.items():
        case(reader, f"copies saved again, {how}", r"nearly others.*remove", make)


for how, change in AGAIN.items():
    again(how, change)


@damaged("folder", "a class without colours", r"class 'dog' are grey.*grayscale")
def grey_class(home, rng):
    root = photos(rng, home)
    for file in (root / "dog").glob("*.png"):
        Image.open(file).convert("L").save(file)
    return images(root)


@damaged("folder", "a class of another form", r"class 'dog' lose.*form may tell")
def form(home, rng):
    root = folder(rng, home)
    for file in (root / "dog").glob("*.png"):
        pic(rng, (24, 16)).save(file)
    return images(root, image_size=16)


@damaged("folder", "a covered camera", r"3 of 39 images are of a single colour")
def covered(home, rng):
    root = photos(rng, home)
    for n in range(3):
        Image.fromarray(rng.integers(0, 4, (32, 32, 3), np.uint8)).save(root / "cat" / f"k{n}.png")
    return images(root)


def splits(rng, home, sizes, classes=("cat", "dog", "owl"), tested=("cat", "dog", "owl")):
    for part, names, n in (("train", classes, sizes[0]), ("test", tested, sizes[1])):
        for name in names:
            (home / "g" / part / name).mkdir(parents=True)
            for k in range(n):
                pic(rng).save(home / "g" / part / name / f"{part}{k}.png")
    return images(home / "g", test_protocol="official_classes")


case("folder", "tests and training exchanged", r"official test samples.*exchanged",
     lambda home, rng: splits(rng, home, (6, 40)))  # fmt: skip
case("folder", "a class that is not tested", r"no official test sample \(owl\)",
     lambda home, rng: splits(rng, home, (12, 12), tested=("cat", "dog")))  # fmt: skip
for twin in ("cat (2)", "cat - Kopie", "cat_new"):
    case("folder", f"a class called {twin}", r"'cat' and 'cat.*copied or a later state",
         lambda h, rng, twin=twin: images(folder(rng, h, ("cat", "dog", twin))))  # fmt: skip


@damaged("folder", "images without folders", r"20 images without a class: move")
def loose(home, rng):
    (home / "f").mkdir()
    for n in range(20):
        pic(rng).save(home / "f" / f"{n}.png")
    return images(home / "f")


@damaged("folder", "classes of a client in another language", r"'sketch' has the classes hund")
def language(home, rng):
    for domain, names in (("art", "cat dog"), ("photo", "cat dog"), ("sketch", "katze hund")):
        for name in names.split():
            (home / "g" / domain / name).mkdir(parents=True)
            for n in range(8):
                pic(rng).save(home / "g" / domain / name / f"{n}.png")
    return DomainFolder(str(home / "g"), num_clients=None, partition=ByDomain())


def masks(damage, change):
    def make(home, rng):
        im, ma = pairs(rng, home, clients=("a", "b", "c"))
        for file in (ma / "b").glob("*.png"):
            Image.fromarray(change(np.array(Image.open(file)))).save(file)
        return pairfolder(im, ma)

    case("pairs", damage, r"client 'b' has the classes.*otherwise", make)


masks("masks of a client from one on", lambda mask: mask + 1)
masks("masks of a client in steps of two", lambda mask: 2 * mask)


# Arrays.


def given(damage, words, change, right=None):
    def make(home, rng):
        found = arrays(rng)
        change(found, rng)
        return TensorData(found)

    DAMAGED.append(Case("tensors", damage, make, words, right))


def x_is(make):
    def change(found, rng):
        found["x"] = make(rng, found)

    return change


def dead(rng, found):
    x = rng.normal(size=(120, 4, 50)).astype(np.float32)
    x[:, 1] = 0
    return x


def dead_at_one(rng, found):
    x = rng.normal(size=(120, 4, 50)).astype(np.float32)
    x[found["client"] == 1, 1] = 0
    return x


def some_flat(rng, found):
    x = rng.normal(size=(120, 2, 50)).astype(np.float32)
    x[5:11] = 0
    return x


def twice(found, rng):
    found["y"] = (rng.random((120, 3)) < 0.4)[:, [0, 1, 1]].astype(int)


given("masked values", r"masked array.*filled",
      x_is(lambda rng, f: np.ma.masked_array(f["x"], rng.random(f["x"].shape) < 0.1)))  # fmt: skip
given("another order of bytes", "-", x_is(lambda rng, f: f["x"].astype(">f4")),
      lambda data: abs(float(data._tensors.inputs["x"].mean())) < 3)  # fmt: skip
given("negative integers", r"int64 from -\d+.*\.float\(\)",
      x_is(lambda rng, f: rng.integers(-50, 50, (120, 6))))  # fmt: skip
given("huge integers", r"int64 from.*\.float\(\)",
      x_is(lambda rng, f: rng.integers(0, 10**9, (120, 6))))  # fmt: skip
given("booleans", r"booleans.*\.float\(\)", x_is(lambda rng, f: rng.random((120, 6)) < 0.5))
given("a dead channel", r"x\[:, 1\] has a single number in each of.*lost", x_is(dead))
given("a dead channel at one client", r"x\[:, 1\].*client '1'.*not measured", x_is(dead_at_one))
given("flat signals", r"6 of the 120 samples.*first sample 5", x_is(some_flat))
given("two equal labels", r"'y\[:, 2\]' is 'y\[:, 1\]'", twice)


@damaged("tensors", "a table with an empty cell", r"not finite, first in sample 3")
def of_pandas(home, rng):
    found = arrays(rng)
    x = pd.DataFrame(found["x"])
    x.iloc[3, 2] = None
    return TensorData({**found, "x": x})


@damaged("tensors", "tests that lie elsewhere", r"official test samples.*scale both alike")
def elsewhere(home, rng):
    x, y = rng.normal(size=(120, 6)).astype(np.float32), rng.integers(0, 3, 120)
    parts = {"x": x, "y": y, "x_test": x[:30] + 50, "y_test": y[:30]}
    return TensorData(parts, num_clients=3, partition=IID())


@damaged("tensors", "a file of torch", r"torch\.save wrote it.*numpy\.savez")
def of_torch(home, rng):
    torch.save({"x": torch.zeros(9, 2)}, home / "a.pt")
    return TensorData(str(home / "a.pt"))


def parts_of(rng, n=60):
    y = torch.tensor(rng.integers(0, 3, n))
    return TensorDataset(torch.tensor(rng.normal(size=(n, 5))).float() + y[:, None], y)


def loaders(damage, words, change):
    def make(home, rng):
        found = [parts_of(rng) for _ in range(3)]
        return LoaderData(found, **(change(found) or {}))

    case("tensors", f"loaders: {damage}", words, make)


def same_tests(found):
    return {"test": [TensorDataset(*(one[:20].clone() for one in of.tensors)) for of in found]}


def nan(found):
    found[1].tensors[0][3, 2] = float("nan")


def unlabelled(found):
    found[1].tensors[1][:9] = -100


def few(found):
    found[1] = Subset(found[1], [])


def one(found):
    found[1] = Subset(found[1], [0])


loaders("tests of equal content", r"60 of them on both sides of a split.*client \d", same_tests)
loaders("no number", r"not finite, first in .* of client 1", nan)
loaders("labels of -100", r"class -100 of 9 samples", unlabelled)
loaders("an empty client", r"1 of 3 clients have no sample", few)
loaders("a client of one sample", r"a single sample", one)


# Saved sets.


@damaged("saved", "pictures of a class without colours", r"class '0' are grey")
def grey_pictures(home, rng):
    datasets = pytest.importorskip("datasets")
    found = [blurred(rng) for _ in range(60)]
    found = [one if n % 3 else one.convert("L").convert("RGB") for n, one in enumerate(found)]
    kinds = datasets.Features({"x": datasets.Image(), "y": datasets.Value("int64")})
    return saved(home, {"x": found, "y": [n % 3 for n in range(60)]}, kinds)


@damaged("saved", "a dead channel", r"x\[:, 1\] has a single number")
def dead_lists(home, rng):
    x = rng.normal(size=(90, 3, 20)).astype("float32")
    x[:, 1] = 0
    return saved(home, {**hfcols(rng), "x": x.tolist()})


@damaged("saved", "tests and training exchanged", r"exchanged")
def exchanged(home, rng):
    return saved(home, None, splits={"train": hfcols(rng, 12), "test": hfcols(rng, 300)},
                 test_protocol="official_classes")  # fmt: skip


def broken(damage, words, change):
    def make(home, rng):
        saved(home, hfcols(rng))
        change(home / "hf")
        return HFDataset(str(home / "hf"), "x", "y", num_clients=3, partition=IID())

    case("saved", damage, words, make)


def cut(root):
    file = next(root.glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:900])


def only_parquet(root):
    for file in root.iterdir():
        file.unlink()
    (root / "train-0.parquet").write_bytes(b"PAR1")


broken("an arrow file cut off", r"is damaged.*save it again", cut)
broken("its state lost", r"state\.json is lost", lambda root: (root / "state.json").unlink())
broken("a folder of Parquet", r"load_dataset\('parquet'.*save_to_disk", only_parquet)


@damaged("saved", "a name on the hub", r"load_dataset\('some/set'\)\.save_to_disk")
def on_the_hub(home, rng):
    return HFDataset("some/set", "image", "label", num_clients=3, partition=IID())


@damaged("saved", "a split without samples", r"without samples")
def no_samples(home, rng):
    found = hfcols(rng)
    return saved(home, None, splits={"train": {k: v[:0] for k, v in found.items()}, "test": found})


# Others.


@damaged("pfllib", "classes from one on at a client", r"client '1' has the classes 1, 2, 3, 4")
def from_one(home, rng):
    def change(part, client, found):
        return {**found, "y": found["y"] + (client == 1)}

    return pfl(pfllib(rng, home, change=change))


@damaged("heart", "columns changed places at a hospital", r"changed places at the client 'va'")
def places(home, rng):
    def change(hospital, lines):
        return [[*r[:3], r[4], r[3], *r[5:]] if hospital == "va" else r for r in lines]

    return hd(heart(rng, home, change))


# Sound.


def usual(name, make, reader="table", **options):
    def of_table(home, rng):
        if reader == "series":
            return ts(home, make(rng), **options)
        return tab(home, text(*make(rng)), **options)

    SOUND.append(Case(reader, "", of_table, name=name))


def column(name, draw):
    """Keep a table with a column of numbers that are right as they are."""
    usual(name, lambda rng: col(rows(rng), [draw(rng, n) for n in range(160)], name))


def rounded(value, digits=2):
    return round(float(value), digits)


column("grade", lambda rng, n: int(rng.integers(1, 7)))
column("saturation", lambda rng, n: rounded(min(100, rng.normal(95, 4)), 1))
column("humidity", lambda rng, n: rounded(np.clip(rng.normal(50, 40), 0, 100), 1))
column("spend", lambda rng, n: 0 if rng.random() < 0.4 else rounded(rng.lognormal(2, 1)))
column("weight", lambda rng, n: rounded(rng.normal(20, 3) if n % 5 else rng.normal(72, 9), 1))
column("eruption", lambda rng, n: rounded(rng.normal(2, 0.3) if n % 3 else rng.normal(4.4, 0.4)))
column("temp", lambda rng, n: rounded(rng.normal(0, 8), 1))
column("longitude", lambda rng, n: rounded(rng.uniform(-180, 180), 4))
column("income", lambda rng, n: rounded(1000 * rng.pareto(1.5) + 1000))
column("titer", lambda rng, n: rounded(rng.lognormal(0, 2), 3))
column("pain", lambda rng, n: int(rng.integers(0, 11)))
column("clock", lambda rng, n: int(rng.integers(0, 2400)))
column("price", lambda rng, n: int(rng.integers(3, 60)) + 0.99)
column("dose", lambda rng, n: 5 * int(rng.integers(8, 30)))
column("ph", lambda rng, n: rounded(rng.normal(7.4, 0.05)))
column("level", lambda rng, n: rounded(rng.normal(10 + 10 * (n % 4), 2)))
column("arm", lambda rng, n: ("control", "test")[int(rng.integers(2))])
column("state", lambda rng, n: ("NY", "NJ", "NH", "NM", "NC")[int(rng.integers(5))])
column("codes", lambda rng, n: ("I10", "E11.9", "J45", "C50")[int(rng.integers(4))])
usual("in order of age", lambda rng: (sorted(rows(rng), key=lambda row: row[1]), HEAD))
usual("clients with numbers", lambda rng: (
    [[f"S{1 + n % 12:02}", *row[1:]] for n, row in enumerate(rows(rng))], HEAD))  # fmt: skip
usual("prices to predict", lambda rng: (
    [[*row[:4], rounded(rng.lognormal(12, 0.6), -2)] for row in rows(rng)], HEAD),
    task="regression")  # fmt: skip
usual("weeks", lambda rng: series(rng, step="7D"), "series")
usual("quarters of hours", lambda rng: series(rng, step="15min"), "series")
usual("counts", lambda rng: [[*r[:2], int(rng.poisson(3))] for r in series(rng)], "series")
usual("sizes of any kind", lambda rng: [
    [*r[:2], rounded(r[2] * {"north": 1, "south": 40, "west": 900}[r[0]])] for r in series(rng)
], "series")  # fmt: skip
usual("beds", lambda rng: [
    [*r[:2], int(np.clip(rng.normal(35, 8), 0, 40))] for r in series(rng)], "series")  # fmt: skip


@sound("folder")
def sound_signs_of_little_noise(home, rng):
    for name in ("a1", "b2", "c3"):
        sign = 200 * np.kron(rng.integers(0, 2, (8, 8)), np.ones((4, 4)))
        (home / "f" / name).mkdir(parents=True)
        for n in range(20):
            pixels = np.clip(sign + rng.normal(0, 12, (32, 32)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(home / "f" / name / f"{n}.png")
    return images(home / "f")


@sound("folder")
def sound_tinted(home, rng):
    for place, name in enumerate(("cat", "dog", "owl")):
        (home / "f" / name).mkdir(parents=True)
        for n in range(20):
            pixels = rng.normal([60 + 60 * place, 100, 160 - 40 * place], 20, (32, 32, 3))
            kept = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            kept.save(home / "f" / name / f"{n}.png")
    return images(home / "f")


@sound("folder")
def sound_photos(home, rng):
    return images(photos(rng, home))


@sound("folder")
def sound_some_grey(home, rng):
    root = photos(rng, home)
    for file in sorted(root.rglob("*.png"))[::2]:
        Image.open(file).convert("L").save(file)
    return images(root)


@sound("pairs")
def sound_a_client_without_a_class(home, rng):
    im, ma = pairs(rng, home, clients=("a", "b", "c"))
    for file in (ma / "b").glob("*.png"):
        Image.fromarray(np.minimum(np.array(Image.open(file)), 1)).save(file)
    return pairfolder(im, ma)


def right(name, change):
    SOUND.append(Case("tensors", "", changed(change), name=name))


def padded(rng, found):
    x = rng.integers(1, 500, (120, 20))
    x[np.arange(20) >= rng.integers(5, 20, 120)[:, None]] = 0
    return x


right("tokens that are padded", x_is(padded))
right("what a layer cuts at zero", x_is(lambda rng, f: np.maximum(f["x"], 0)))
right("what a layer bends", x_is(lambda rng, f: np.tanh(3 * f["x"]).astype(np.float32)))
right("images of floats", x_is(lambda rng, f: rng.random((120, 3, 8, 8)).astype(np.float32)))
right("waves", x_is(lambda rng, f: (np.sin(np.linspace(0, 30, 200)) * rng.uniform(
    0.5, 2, (120, 2, 1)) + rng.normal(0, 0.1, (120, 2, 200))).astype(np.float32)))  # fmt: skip
right("classes by client", lambda f, rng: f.update(client=f["y"] // 2 + rng.integers(0, 2, 120)))
