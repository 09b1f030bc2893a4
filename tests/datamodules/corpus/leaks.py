"""What tells the answer or the client, what fits another way, and pointers in place of files."""

from __future__ import annotations

import json

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from torch.utils.data import Dataset, TensorDataset

from datamodules import ByDomain, DomainFolder, FLBenchFolder, LoaderData
from tests.datamodules.corpus.groups import BY_LOADER, READERS, crossed, unlike
from tests.datamodules.corpus.kinds import Case, collectors
from tests.datamodules.corpus.made import (
    SH,
    arrays,
    changed,
    col,
    folder,
    hfcols,
    images,
    npz,
    pairfolder,
    pairs,
    pfl,
    pfllib,
    pic,
    rows,
    saved,
    series,
    tab,
    ten,
    text,
    ts,
)
from tests.datamodules.corpus.unasked import blurred, photos

DAMAGED, SOUND, damaged, sound = collectors()
BY_CLASS = {name: make for name, make in BY_LOADER.items() if name != "series"}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


# Columns of all readers.


@crossed("a score that tells three classes", r"(m|x\[:, )2.*(tells the classes|stands with one)",
         BY_CLASS, DAMAGED)  # fmt: skip
def told(client, x, y):
    x[:, 2] = np.round(y + 0.8 * (x[:, 2] % 1), 3)
    return client, x, y


@crossed("whole numbers at one client alone", r"'Bonn' has whole numbers alone", READERS, DAMAGED)
def rounded(client, x, y):
    x[client == 1, 2] = np.round(x[client == 1, 2])
    return client, x, y


@crossed("another sign in some rows", r"the sign of .*2.* changes from", READERS, DAMAGED)
def turned(client, x, y):
    x[:, 2] = np.abs(x[:, 2]) + 40
    x[90:150, 2] *= -1
    return client, x, y


@crossed("kelvin in some rows", r"some in kelvin", BY_LOADER, DAMAGED)
def kelvin(client, x, y):
    x[:, 2] = x[:, 2] / 20 + 12
    x[::7, 2] += 273.15
    return client, x, y


# Tables.


def column(damage, name, words, draw, **options):
    """Keep a table with a column that follows from each row."""

    def make(home, rng):
        found = rows(rng)
        found, head = col(found, [draw(rng, n, row) for n, row in enumerate(found)], name)
        return tab(home, text(found, head), **options)

    DAMAGED.append(Case("table", damage, make, words))


def three(rng, *names):
    return names[int(rng.integers(len(names)))]


column("what is missing tells the class", "follow", r"'follow' is missing.*tells the answer",
       lambda rng, n, row: "" if row[-1] == "no" else round(float(rng.normal(30, 5)), 2),
       missing="mean")  # fmt: skip
column("a code that tells the class", "code", r"each value of 'code' stands with one",
       lambda rng, n, row: ("A" if row[-1] == "no" else "B") + three(rng, "1", "2"))  # fmt: skip
column("a column that a hospital lacks", "crp", r"'crp' is missing in all 40 rows of 'Bonn'",
       lambda rng, n, row: "" if row[0] == "Bonn" else round(float(rng.normal(9, 2)), 1),
       missing="mean")  # fmt: skip
column("years of birth among ages", "years", r"'years'.*some years, others ages",
       lambda rng, n, row: 2026 - row[1] if n % 9 == 0 else row[1])  # fmt: skip
column("fractions", "share", r"'share' holds two numbers",
       lambda rng, n, row: f"{rng.integers(1, 40)}/8")  # fmt: skip
column("degrees and minutes", "place", r"'place' holds two numbers",
       lambda rng, n, row: f"{rng.integers(47, 55)}°{15 * rng.integers(4)}'N")  # fmt: skip
column("a refusal of a survey", "answer", r"'prefer not to say' in \d+ rows",
       lambda rng, n, row: three(rng, "often", "seldom", "prefer not to say"))  # fmt: skip
column("the weights of a survey", "sample_weight", r"'sample_weight' may say how much",
       lambda rng, n, row: round(float(rng.uniform(0.5, 2)), 3))  # fmt: skip


@damaged("table", "names written for an address", r"'K%C3%B6ln'.*web address: 'Köln'")
def encoded(home, rng):
    return tab(home, text([[row[0].replace("ö", "%C3%B6"), *row[1:]] for row in rows(rng)]))


# Series.


@damaged("series", "a short standstill", r"'north' is .* in 9 rows running")
def stood(home, rng):
    found = series(rng)
    values = [row[2] for row in found if row[0] == "north"]
    # One that stands at its least or greatest value is told of as cut off there.
    others = {at: values[:at] + values[at + 9 :] for at in range(40, 100)}
    start = next(at for at, left in others.items() if min(left) < values[at] < max(left))
    for row in found[start : start + 9]:
        row[2] = values[start]
    return ts(home, found)


@damaged("series", "a feature that is the next value in another unit", r"'next' is the target of 1")
def ahead(home, rng):
    found = series(rng)
    later = [*found[1:], found[-1]]
    found = [[*row, round(1.8 * next_[2] + 32, 3)] for row, next_ in zip(found, later, strict=True)]
    return ts(home, found, [*SH, "next"], features=["next"])


# Pointers in the place of files.


@damaged("saved", "a pointer of Git LFS", r"\.arrow is not of Arrow.*git lfs pull")
def saved_pointer(home, rng):
    data = saved(home, hfcols(rng))
    next((home / "hf").glob("*.arrow")).write_bytes(POINTER)
    return data


@damaged("tensors", "a pointer of Git LFS", r"git lfs pull")
def tensors_pointer(home, rng):
    data = npz(home, arrays(rng))
    (home / "a.npz").write_bytes(POINTER)
    return data


@damaged("pfllib", "a pointer of Git LFS", r"1\.npz.*git lfs pull")
def pfllib_pointer(home, rng):
    (pfllib(rng, home) / "train/1.npz").write_bytes(POINTER)
    return pfl(home / "MNIST")


@damaged("flbench", "a pointer of Git LFS", r"data\.npy.*git lfs pull")
def flbench_pointer(home, rng):
    (home / "data.npy").write_bytes(POINTER)
    np.save(home / "targets.npy", np.zeros(9))
    return FLBenchFolder(str(home))


@damaged("pairs", "a pointer of Git LFS", r"ma/a/3\.png.*git lfs pull")
def pairs_pointer(home, rng):
    im, ma = pairs(rng, home)
    (ma / "a/3.png").write_bytes(POINTER)
    return pairfolder(im, ma)


@damaged("pfllib", "settings of another run", r"config\.json has num_clients: 20.* 3 clients")
def config(home, rng):
    (pfllib(rng, home) / "config.json").write_text(json.dumps({"num_clients": 20}))
    return pfl(home / "MNIST")


# Images.


def added(name):
    """Keep a folder that a system adds beside those of classes, and in one of them."""

    def make(home, rng):
        root = folder(rng, home)
        for place in (root / name, root / "cat" / name):
            place.mkdir()
            for n in range(5):
                pic(rng).save(place / f"z{n}.png")
        return images(root)

    DAMAGED.append(Case("folder", f"a folder {name}", make, "no class", right))


def right(data):
    return len(data.class_names) == 3 and len(data.contents.targets) == 36


for name in ("@eaDir", "$RECYCLE.BIN", "lost+found", "__MACOSX", "__pycache__"):
    added(name)


@damaged("folder", "a class written for an address", r"'hot%20dog'.*web address")
def address(home, rng):
    return images(folder(rng, home, ("hot dog", "hot%20dog", "owl")))


def marked(damage, draw):
    def make(home, rng):
        root = photos(rng, home)
        for file in (root / "dog").glob("*.png"):
            draw(Image.open(file)).save(file)
        return images(root)

    DAMAGED.append(Case("folder", damage, make, r"alike in all images of the class 'dog'"))


def stamped(image):
    ImageDraw.Draw(image).rectangle((24, 26, 30, 30), fill=(255, 0, 255))
    return image


marked("a class with a border", lambda one: ImageOps.expand(one.crop((3, 3, 29, 29)), 3, "navy"))
marked("a class with a stamp", stamped)


def warm(rng):
    """Return an image that is red above all, and blue the least."""
    pixels = np.asarray(blurred(rng)) * [0.4, 1, 0.4] + [130, 0, 0]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def domains(rng, home, change):
    for domain in ("art", "photo", "sketch"):
        for name in ("cat", "dog"):
            (home / "g" / domain / name).mkdir(parents=True)
            for n in range(12):
                pixels = change(domain, np.asarray(warm(rng)))
                kept = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                kept.save(home / "g" / domain / name / f"{n}.png")
    return DomainFolder(str(home / "g"), num_clients=None, partition=ByDomain())


@damaged("folder", "blue for red in a domain", r"channels 0 and 2 .*client 'photo'")
def of_domain(home, rng):
    return domains(rng, home, lambda name, one: one[..., ::-1] if name == "photo" else one)


@damaged("tensors", "blue for red at a client", r"channels 0 and 2 of x.*client '1'")
def of_client(home, rng):
    found = arrays(rng)
    x = (rng.random((120, 3, 8, 8)) * 0.3 + [[[0.5]], [[0.3]], [[0.05]]]).astype(np.float32)
    x[found["client"] == 1] = x[found["client"] == 1][:, ::-1]
    return ten({**found, "x": x})


COPIES = {
    "grey": lambda one: one.convert("L").convert("RGB"),
    "cropped": lambda one: one.crop((2, 2, 30, 30)).resize((32, 32)),
    "mirrored and brighter": lambda one: ImageOps.mirror(one).point(lambda v: min(255, 1.1 * v)),
    "turned and smaller": lambda one: one.rotate(90).resize((24, 24)),
}


def copied(how, change):
    def of_folder(home, rng):
        root = photos(rng, home)
        for n in range(4):
            change(Image.open(root / "cat" / f"c{n:02}.png")).save(root / "cat" / f"z{n}.png")
        return images(root, image_size=32)

    def of_bytes(home, rng):
        found = [blurred(rng) for _ in range(60)]
        found[40:46] = [change(one).resize((32, 32)) for one in found[:6]]
        x = np.stack([np.asarray(one) for one in found]).transpose(0, 3, 1, 2)
        return ten({"x": x, "y": np.arange(60) % 3, "client": np.arange(60) % 2})

    for reader, make in {"folder": of_folder, "tensors": of_bytes}.items():
        DAMAGED.append(Case(reader, f"copies, {how}", make, r"nearly others.*remove"))


for how, change in COPIES.items():
    copied(how, change)


# Masks.


def organs(rng, home, change=lambda client, n, image, mask: (image, mask)):
    """Write bright discs in the upper left of images, and their masks."""
    for client in "abc":
        for part in ("im", "ma"):
            (home / part / client).mkdir(parents=True)
        for n in range(10):
            y, x = np.mgrid[:32, :32]
            place, size = rng.uniform([5, 5], [12, 9]), rng.uniform(15, 25)
            mask = ((y - place[0]) ** 2 + 2 * (x - place[1]) ** 2 < size).astype(np.uint8)
            image = 0.25 * np.asarray(blurred(rng)) + 60 + 110 * mask[..., None]
            image, mask = change(client, n, image + rng.normal(0, 6, image.shape), mask)
            kept = Image.fromarray(image.clip(0, 255).astype(np.uint8))
            kept.save(home / "im" / client / f"{n}.png")
            Image.fromarray(mask).save(home / "ma" / client / f"{n}.png")
    return pairfolder(home / "im", home / "ma")


def misfit(damage, words, change):
    DAMAGED.append(Case("pairs", damage, lambda home, rng: organs(rng, home, change), words))


misfit("a mirrored mask", r"1 of 30 masks .* once mirrored .*b/4\.png",
       lambda client, n, x, y: (x, y[:, ::-1] if (client, n) == ("b", 4) else y))  # fmt: skip
misfit("masks of a client upside down", r"masks do not fit.*turned upside down.*b/0\.png",
       lambda client, n, x, y: (x, y[::-1] if client == "b" else y))  # fmt: skip
misfit("masks of a client with sides exchanged", r"masks do not fit.*sides exchanged",
       lambda client, n, x, y: (np.roll(x, 14, 1), np.roll(y, 14, 1).T if client == "b" else
                                np.roll(y, 14, 1)))  # fmt: skip


# Arrays, loaders and saved sets.


def array(damage, words, change):
    def make(home, rng):
        found = arrays(rng)
        change(found, rng)
        return ten(found)

    DAMAGED.append(Case("tensors", damage, make, words))


def signed(found, rng):
    x = rng.random((120, 3, 8, 8)).astype(np.float32)
    found["x"] = np.where((found["client"] == 1)[:, None, None, None], 2 * x - 1, x)


def vocabulary(found, rng):
    found["x"] = rng.integers(1, 500, (120, 20)) + 1000 * (found["client"] == 1)[:, None]


def put(make):
    return lambda found, rng: found.update(x=make(found, rng))


array("another range at a client", r"below zero at the client '1'", signed)
array("another vocabulary at a client", r"client '1' has tokens that hardly", vocabulary)
array("images of signed bytes", r"int8 from.*torch\.uint8",
      put(lambda found, rng: rng.integers(-128, 128, (120, 3, 8, 8)).astype(np.int8)))  # fmt: skip
array("samples along the last axis", r"8 samples.*moveaxis\(x, -1, 0\)",
      put(lambda found, rng: rng.integers(0, 256, (8, 8, 3, 120)).astype(np.uint8)))  # fmt: skip
array("sparse", r"x is sparse.*to_dense", put(lambda f, rng: torch.tensor(f["x"]).to_sparse()))


@damaged("pfllib", "another range at a client", r"below zero at the client '1'")
def pfllib_signed(home, rng):
    def change(part, client, found):
        x = np.abs(found["x"]) % 1
        return {**found, "x": 2 * x - 1 if client == 1 else x}

    return pfl(pfllib(rng, home, change=change))


@damaged("saved", "another vocabulary at a site", r"'Bonn' has tokens that hardly")
def saved_vocabulary(home, rng):
    found = hfcols(rng)
    found["x"] = [(rng.integers(1, 500, 12) + 1000 * (site == "Bonn")).tolist()
                  for site in found["site"]]  # fmt: skip
    return saved(home, found, client_column="site")


def part(rng, n=60):
    y = torch.tensor(rng.integers(0, 3, n))
    return TensorDataset(torch.tensor(rng.normal(size=(n, 5))).float() + y[:, None], y)


class Drawn(Dataset):
    """Samples to which noise is added at each reading."""

    def __init__(self, of):
        self.of = of

    def __len__(self):
        return len(self.of)

    def __getitem__(self, row):
        x, y = self.of[row]
        return x + torch.randn(5), y


def loaders(damage, words, change):
    def make(home, rng):
        found = [part(rng) for _ in range(3)]
        found[1] = TensorDataset(*change(*found[1].tensors))
        return LoaderData(found)

    DAMAGED.append(Case("tensors", f"loaders: {damage}", make, words))


loaders("labels in columns at a client", r"client 1 are float32 \(5,\), int64 \(3,\)",
        lambda x, y: (x, torch.nn.functional.one_hot(y, 3)))  # fmt: skip
loaders("bytes at a client", r"client 1 are uint8", lambda x, y: ((9 * x + 99).byte(), y))
loaders("a feature less at a client", r"client 1 are float32 \(4,\)", lambda x, y: (x[:, :4], y))
loaders("labels of floats at a client", r"client 1 are .*float32 \(\)", lambda x, y: (x, y.float()))


@damaged("tensors", "loaders: tests draw random numbers", r"test samples of client 0 draw random")
def drawn(home, rng):
    return LoaderData([part(rng) for _ in range(3)], test=[Drawn(part(rng, 20)) for _ in range(3)])


# Sound.


def usual(name, draw, **options):
    """Keep a sound table with a column that follows from each row."""

    def make(home, rng):
        found = rows(rng)
        found, head = col(found, [draw(rng, n, row) for n, row in enumerate(found)], name)
        return tab(home, text(found, head), **options)

    SOUND.append(Case("table", "", make, name=name))


usual("price", lambda rng, n, row: round(float(
    -rng.gamma(9, 0.6) - 0.1 if row[0] == "Bonn" else rng.gamma(30, 2) + 1), 2))  # fmt: skip
usual("balance", lambda rng, n, row: round(float(rng.normal(-200, 30)), 2))
usual("gene", lambda rng, n, row: three(rng, "0/0", "0/1", "1/1"))
usual("weight", lambda rng, n, row: round(float(rng.normal(75, 12)), 1))
usual("ward", lambda rng, n, row: f"W{rng.integers(40):02}")
usual("lately", lambda rng, n, row: "" if rng.random() < (0.4 if row[-1] == "no" else 0.1)
      else round(float(rng.normal(30, 5)), 1), missing="mean")  # fmt: skip
usual("often", lambda rng, n, row: "" if rng.random() < (0.8 if row[0] == "Bonn" else 0.1)
      else round(float(rng.normal(30, 5)), 1), missing="mean")  # fmt: skip
usual("year", lambda rng, n, row: int(rng.integers(1900, 2026)))
usual("drift", lambda rng, n, row: round(0.5 * (n - 80) + float(rng.normal(0, 0.1)), 2))


def halves(client, x, y):
    """Let one client round to two decimals instead of three."""
    x[client == 1] = np.round(x[client == 1], 2)
    return client, x, y


def near_to_it(client, x, y):
    """Let a column tell the classes nearly."""
    x[:, 2] = np.round(y + 0.3 * (x[:, 2] - 5) / 5, 3)
    return client, x, y


unlike("two decimals at one client", halves, READERS, SOUND)
unlike("a good predictor of three", near_to_it, BY_CLASS, SOUND)


def course(name, draw, step="D", n=120):
    def make(home, rng):
        found = series(rng, step=step, n=n)
        return ts(home, [[*row[:2], round(float(draw(rng, place % n, row)), 3)]
                         for place, row in enumerate(found)])  # fmt: skip

    SOUND.append(Case("series", "", make, name=name))


course("rain", lambda rng, n, row: 0 if rng.random() < 0.7 else rng.exponential(4))
course("sun", lambda rng, n, row: max(0, np.sin((n % 24 - 6) / 12 * np.pi))
       * rng.uniform(100, 500), "h", 240)  # fmt: skip
course("set by hand", lambda rng, n, row: (20, 21, 18)[n // 8 % 3] + round(rng.normal(0, 0.2), 1))
course("another level from a day on", lambda rng, n, row:
       row[2] + 25 * (n > 60 and row[0] == "north"))  # fmt: skip
course("passes zero", lambda rng, n, row: (n - 60) / 4 + rng.normal(0, 0.02))


@sound("folder")
def sound_domains_of_their_own_light(home, rng):
    light = {"art": 0.7, "photo": 1.0, "sketch": 1.2}
    return domains(rng, home, lambda name, one: one * [1, 1, 1.6 - light[name]] * light[name])


@sound("folder")
def sound_borders_in_all_classes(home, rng):
    root = photos(rng, home)
    for n, file in enumerate(sorted(root.rglob("*.png"))):
        if n % 3:
            ImageOps.expand(Image.open(file).crop((3, 3, 29, 29)), 3, "white").save(file)
    return images(root)


@sound("folder")
def sound_alike_within_classes(home, rng):
    for name in ("a1", "b2", "c3"):
        (home / "f" / name).mkdir(parents=True)
        ground = np.asarray(blurred(rng))
        for n in range(14):
            pixels = 0.55 * ground + 0.45 * np.asarray(blurred(rng))
            Image.fromarray(pixels.astype(np.uint8)).save(home / "f" / name / f"{n}.png")
    return images(home / "f")


@sound("folder")
def sound_scans_on_a_dark_ground(home, rng):
    y, x = np.mgrid[:32, :32]
    for name in ("a1", "b2"):
        (home / "f" / name).mkdir(parents=True)
        for n in range(20):
            round_ = (y - 16) ** 2 + (x - 16) ** 2 < 130 + 3 * n
            pixels = np.asarray(blurred(rng)) * round_[..., None]
            Image.fromarray(pixels.astype(np.uint8)).save(home / "f" / name / f"{n}.png")
    return images(home / "f")


def fitting(name, change):
    SOUND.append(Case("pairs", "", lambda home, rng: organs(rng, home, change), name=name))


def both_sides(client, n, image, mask):
    """Show an organ on both sides, of which one is meant."""
    image[:, 16:] = image[:, :16][:, ::-1]
    return image, mask


fitting("organs", lambda client, n, image, mask: (image, mask))
fitting("organs of little contrast", lambda client, n, image, mask: (
    image - 100 * mask[..., None], mask))  # fmt: skip
fitting("one organ of two", both_sides)


def as_they_are(name, change):
    SOUND.append(Case("tensors", "", changed(change), name=name))


def other_words(found, rng):
    found["x"] = rng.integers(1, 300, (120, 20)) + 150 * (found["client"] == 1)[:, None]


as_they_are("other words at a client", other_words)
as_they_are("words by rank", put(lambda f, rng: np.minimum(rng.zipf(1.5, (120, 30)), 5000)))
as_they_are("normalised images", put(
    lambda f, rng: rng.normal(size=(120, 3, 8, 8)).astype(np.float32)))  # fmt: skip
as_they_are("a darker client", put(lambda f, rng: (
    rng.random((120, 3, 8, 8)) * (1 - 0.2 * f["client"][:, None, None, None])
).astype(np.float32)))  # fmt: skip


@sound("pfllib")
def sound_its_settings(home, rng):
    (pfllib(rng, home) / "config.json").write_text(json.dumps({"num_clients": 3}))
    return pfl(home / "MNIST")


@sound("tensors")
def sound_loaders_with_all_splits(home, rng):
    more = {kind: [part(rng, 12) for _ in range(3)] for kind in ("val", "test")}
    return LoaderData([part(rng) for _ in range(3)], **more)


@sound("tensors")
def sound_loaders_whose_training_draws(home, rng):
    return LoaderData([Drawn(part(rng)) for _ in range(3)])
