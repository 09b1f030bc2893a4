"""What a hostile reader thought of last: kinds crossed with readers, and odd sound data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from datamodules import ByDomain, DomainFolder
from tests.datamodules.corpus.kinds import collectors
from tests.datamodules.corpus.leaks import organs
from tests.datamodules.corpus.made import (
    SH,
    SITES,
    arrays,
    col,
    images,
    pairfolder,
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


# Tables.


@damaged("table", "a line for Excel above the header", r"stand in line 2.*tail -n")
def sep_line(home, rng):
    return tab(home, "sep=,\n" + text(rows(rng)))


@damaged("table", "the whole file twice", r"content of another.*both sides")
def twice(home, rng):
    whole = text(rows(rng))
    return tab(home, whole + whole.split("\n", 1)[1])


@damaged("table", "hours and minutes as a number of a feature", r"'wait'")
def waits(home, rng):
    found = [f"{int(rng.integers(0, 5))}:{int(rng.integers(0, 60)):02}" for _ in range(160)]
    return tab(home, text(*col(rows(rng), found, "wait")))


@damaged("table", "ages with the letter of years", r"'age'|'old'")
def with_years(home, rng):
    found = rows(rng)
    for row in found[::3]:
        row[1] = f"{row[1]}y"
    return tab(home, text(found))


@damaged("table", "roman numbers among others", r"'stage'")
def roman(home, rng):
    found = [["1", "2", "3", "I", "II", "III"][int(rng.integers(6))] for _ in range(160)]
    return tab(home, text(*col(rows(rng), found, "stage")))


@damaged("table", "clients with and without leading zeros", r"'07' and '7'|count as different")
def zeros(home, rng):
    found = rows(rng)
    for n, row in enumerate(found):
        row[0] = f"0{n % 4}" if n % 3 else str(n % 4)
    return tab(home, text(found))


@damaged("table", "milliseconds at one site", r"'wait'.*(unit|1:1,?000)")
def milliseconds(home, rng):
    found = [round(float(rng.gamma(9, 0.3)) * (1000 if n % 4 == 2 else 1), 4) for n in range(160)]
    return tab(home, text(*col(rows(rng), found, "wait")))


@damaged("table", "a class that is blank but for spaces", r"missing|'  '")
def blank_class(home, rng):
    found = rows(rng)
    for row in found[::9]:
        row[-1] = "   "
    return tab(home, text(found))


@damaged("table", "two columns exchanged at a site", r"changed places")
def exchanged(home, rng):
    found = rows(rng, 240)
    for row in found[2::4]:
        row[1], row[2] = row[2], row[1]
    return tab(home, text(found))


@damaged("table", "an index of two files joined", r"'index' numbers the rows")
def joined_index(home, rng):
    found = [str(n % 80) for n in range(160)]
    return tab(home, text(*col(rows(rng), found, "index")))


@damaged("table", "a patient's number that tells the site", r"values of 'patient_id'.*make")
def patient(home, rng):
    found = [f"{SITES[n % 4][:2]}{n % 60:03}" for n in range(160)]
    return tab(home, text(*col(rows(rng), found, "patient_id")), categories=["patient_id"],
               test_fraction=0.3)  # fmt: skip


@damaged("table", "shares above one in some rows", r"'share'")
def shares(home, rng):
    found = [round(float(rng.uniform(0.2, 0.9)), 3) for _ in range(160)]
    found[17] = 61.0
    return tab(home, text(*col(rows(rng), found, "share")))


@damaged("table", "a checksum at the end", r"last line|line 162")
def checksum(home, rng):
    return tab(home, text(rows(rng)) + "# md5 9e107d9d372bb6826bd81d3542a419d6\n")


# Series.


def flowing(rng, n=120, **more):
    """Return series that go on from row to row."""
    return series(rng, n=n, **more)


@damaged("series", "noise in the place of a sensor", r"'south' changes from row to row as noise")
def noise(home, rng):
    return ts(home, [[*r[:2], round(float(rng.normal(60, 5)), 3)] if r[0] == "south" else r
                     for r in flowing(rng)])  # fmt: skip


@damaged("series", "rows of a client shuffled", r"'west' changes from row to row as noise.*order")
def shuffled(home, rng):
    found = flowing(rng)
    own = [r[2] for r in found if r[0] == "west"]
    order = iter(rng.permutation(len(own)))
    return ts(home, [[*r[:2], own[next(order)]] if r[0] == "west" else r for r in found])


@damaged("series", "a client in thousands", r"'north'.*unit")
def thousands(home, rng):
    return ts(home, [[*r[:2], round(r[2] / 1000, 6)] if r[0] == "north" else r
                     for r in flowing(rng)])  # fmt: skip


@damaged("series", "times in local and in zoned form", r"time")
def zoned(home, rng):
    found = flowing(rng, step="h")
    return ts(home, [[r[0], r[1] + ("+02:00" if n % 2 else ""), r[2]] for n, r in enumerate(found)])


@damaged("series", "each value twice, a second apart", r".")
def seconds(home, rng):
    found = flowing(rng, n=60, step="h")
    again = [[r[0], r[1][:-2] + "01", r[2]] for r in found]
    return ts(home, sorted(found + again))


@damaged("series", "a feature without a value at one client", r"'warm'")
def lost_feature(home, rng):
    found = [[*r, "" if r[0] == "south" else round(float(rng.normal(20, 5)), 2)]
             for r in flowing(rng)]  # fmt: skip
    return ts(home, found, [*SH, "warm"], features=["warm"])


@damaged("series", "the unit of a feature in one client", r"'pressure' of 'west'.*unit")
def pressure(home, rng):
    found = [[*r, round(float(rng.normal(1013, 8)) * (100 if r[0] == "west" else 1), 1)]
             for r in flowing(rng)]  # fmt: skip
    return ts(home, found, [*SH, "pressure"], features=["pressure"])


@damaged("series", "a total of all days at the end of each client", r"total|sum|last")
def totals(home, rng):
    found = []
    for name in ("north", "south", "west"):
        own = [r for r in flowing(rng) if r[0] == name]
        found += [*own, [name, "total", round(sum(r[2] for r in own), 3)]]
    return ts(home, found)


# Arrays.


@damaged("tensors", "bytes divided by 255 twice", r"x ")
def divided_twice(home, rng):
    found = arrays(rng)
    x = rng.integers(0, 256, (120, 3, 8, 8)).astype(np.float32)
    x /= 255
    x[found["client"] == 2] /= 255
    return ten({**found, "x": x})


@damaged("tensors", "an array filled to a half", r"content of another")
def half_filled(home, rng):
    found = arrays(rng)
    found["x"][60:] = 0
    found["y"][60:] = 0
    return ten(found)


@damaged("tensors", "images of an array filled to a half", r"the last 60 of 120 images.*filled")
def half_filled_images(home, rng):
    found = arrays(rng)
    x = rng.integers(0, 256, (120, 3, 8, 8), np.uint8)
    x[60:] = 0
    return ten({**found, "x": x})


@damaged("tensors", "floats that overflowed", r"not finite")
def overflow(home, rng):
    found = arrays(rng)
    with np.errstate(over="ignore"):
        found["x"] = (found["x"] * 40000).astype(np.float16)
    return ten(found)


@damaged("tensors", "features for samples", r"samples|\(6")
def transposed(home, rng):
    found = arrays(rng)
    return ten({**found, "x": found["x"].T})


@damaged("tensors", "tokens padded with another number at a client", r"client '3'|-1")
def padded(home, rng):
    found = arrays(rng)
    x = rng.integers(1, 90, (120, 20))
    x[:, 12:] = 0
    x[found["client"] == 3, 12:] = -1
    return ten({**found, "x": x})


@damaged("tensors", "tests are the last training samples", r"content of another.*both sides")
def last_again(home, rng):
    found = arrays(rng)
    more = {"x_test": found["x"][-20:], "y_test": found["y"][-20:]}
    return ten({**found, **more, "client": rng.integers(0, 4, 140)})


@damaged("tensors", "one client with all labels of one class", r".")
def one_label(home, rng):
    found = arrays(rng, c=2)
    found["client"] = np.arange(120) % 4
    found["y"] = np.where(found["client"] == 1, 7, found["y"])
    return ten(found)


# Folders, pairs and saved sets.


def domains(rng, home, change):
    for domain in ("art", "photo", "sketch"):
        for name in ("cat", "dog"):
            (home / "g" / domain / name).mkdir(parents=True)
            for n in range(12):
                change(domain, blurred(rng)).save(home / "g" / domain / name / f"{n}.png")
    return DomainFolder(str(home / "g"), num_clients=None, partition=ByDomain())


@damaged("folder", "copies of a domain in another, rotated", r"nearly others.*remove")
def rotated_domain(home, rng):
    found = [blurred(rng) for _ in range(24)]
    kept = {name: iter(found) for name in ("art", "photo")}

    def change(domain, image):
        if domain == "sketch":
            return image
        return next(kept[domain]).rotate(0 if domain == "art" else -7, Image.Resampling.BILINEAR)

    return domains(rng, home, change)


@damaged("folder", "copies with a stamp in a corner", r"nearly others.*remove")
def stamped(home, rng):
    root = photos(rng, home)
    for n in range(4):
        image = np.asarray(Image.open(root / "dog" / f"d{n:02}.png")).copy()
        image[:10, :12] = 255
        Image.fromarray(image).save(root / "dog" / f"z{n}.png")
    return images(root)


@damaged("folder", "two frames of each scene", r"nearly others|'?scene")
def frames(home, rng):
    root = photos(rng, home)
    for file in sorted(root.rglob("*.png")):
        pixels = np.asarray(Image.open(file)).astype(float)
        near = np.roll(pixels, 1, 1) + rng.normal(0, 4, pixels.shape)
        Image.fromarray(near.clip(0, 255).astype(np.uint8)).save(file.with_name(f"n{file.name}"))
    return images(root)


@damaged("pairs", "masks a place behind at one client", r"samples (before|after) do")
def behind(home, rng):
    made = organs(rng, home)
    files = sorted((home / "ma" / "b").glob("*.png"))
    kept = [file.read_bytes() for file in files]
    for file, content in zip(files, kept[-1:] + kept[:-1], strict=True):
        file.write_bytes(content)
    return made


@damaged("pairs", "copies of images with other masks", r"content of another|nearly others")
def other_masks(home, rng):
    made = organs(rng, home)
    for n in range(3):
        (home / "im" / "c" / f"{n}.png").write_bytes((home / "im" / "a" / f"{n}.png").read_bytes())
    return made


@damaged("pairs", "a client's masks in JPEG", r"JPEG|\.jpg|loss")
def lossy(home, rng):
    organs(rng, home)
    for file in sorted((home / "ma" / "b").glob("*.png")):
        Image.open(file).point(lambda v: 255 * v).save(file.with_suffix(".jpg"))
        file.unlink()
    return pairfolder(home / "im", home / "ma")


def of_set(home, found, **more):
    return saved(home, found, **more)


def columns(rng, n=120):
    y = rng.integers(0, 3, n)
    x = (rng.normal(0, 1, (n, 4)) + y[:, None]).astype("float32")
    return {"x": x.tolist(), "y": y.tolist(), "site": [SITES[i % 4] for i in range(n)]}


@damaged("saved", "the set twice, one after the other", r"content of another")
def set_twice(home, rng):
    found = columns(rng, 60)
    return of_set(home, {name: of * 2 for name, of in found.items()})


@damaged("saved", "lists of words of numbers", r"not a tensor|numbers")
def words_of_numbers(home, rng):
    found = columns(rng)
    found["x"] = [[f"{one:.3f}" for one in row] for row in found["x"]]
    return of_set(home, found)


@damaged("saved", "a site scaled by a thousand", r"unit|spread|scaled")
def scaled_site(home, rng):
    found = columns(rng)
    found["x"] = [[1000 * one for one in row] if n % 4 == 1 else row
                  for n, row in enumerate(found["x"])]  # fmt: skip
    return of_set(home, found, client_column="site")


@damaged("saved", "pictures of a site rotated copies of another's", r"nearly others.*remove")
def pictures_again(home, rng):
    datasets = pytest.importorskip("datasets")
    found = [blurred(rng) for _ in range(60)]
    found[40:46] = [one.rotate(-6, Image.Resampling.BILINEAR) for one in found[:6]]
    kinds = {"x": datasets.Image(), "y": datasets.Value("int64"), "site": datasets.Value("string")}
    given = {
        "x": found,
        "y": [n % 3 for n in range(60)],
        "site": [SITES[n // 30] for n in range(60)],
    }
    return saved(home, given, datasets.Features(kinds), client_column="site")


@damaged("saved", "an offset with a bit that fell over", r"damaged.*save it again")
def offset(home, rng):
    made = saved(home, columns(rng))
    (file,) = (home / "hf").glob("*.arrow")
    whole = bytearray(file.read_bytes())
    place = bytes(whole).index(np.arange(0, 40, 4, dtype=np.int32).tobytes())
    whole[place + 4 * int(rng.integers(2, 9)) + 2] ^= 1
    file.write_bytes(whole)
    return made


@damaged("saved", "times of some rows missing", r"missing|'when'")
def no_times(home, rng):
    found = columns(rng)
    found["when"] = [None if n % 9 == 4 else f"2026-01-{1 + n % 28:02}" for n in range(120)]
    return of_set(home, found, time_column="when", test_protocol="future", client_column="site")


# Sound.


@sound("table")
def sound_lines_that_end_as_on_an_old_mac(home, rng):
    whole = text(rows(rng)).replace("\n", "\r")
    return tab(home, whole[:-1] + "\n")


@sound("folder")
def sound_a_domain_without_colours(home, rng):
    return domains(rng, home, lambda name, one: one.convert("L") if name == "sketch" else one)


@sound("table")
def sound_many_small_sites(home, rng):
    found = rows(rng, 240)
    for n, row in enumerate(found):
        row[0] = f"practice {n % 24:02}"
    return tab(home, text(found))


@sound("table")
def sound_warm_and_cold_places(home, rng):
    found = [round(float(rng.normal([28, 27, 30, 4][n % 4], 4)), 1) for n in range(160)]
    return tab(home, text(*col(rows(rng), found, "temp")))


@sound("table")
def sound_fevers_and_none(home, rng):
    found = [round(float(rng.normal(39.2 if n % 5 == 0 else 36.7, 0.3)), 1) for n in range(160)]
    return tab(home, text(*col(rows(rng), found, "temp")))


@sound("table")
def sound_two_kinds_of_cars(home, rng):
    found = [round(float(rng.normal(40_000 if n % 6 == 0 else 1_500, 90))) for n in range(160)]
    return tab(home, text(*col(rows(rng), found, "kerb")))


@sound("table")
def sound_numbers_with_a_sign_before(home, rng):
    found = [f"{rng.normal(0, 3):+.2f}" for _ in range(160)]
    return tab(home, text(*col(rows(rng), found, "change")))


@sound("table")
def sound_names_with_apostrophes_and_commas(home, rng):
    found = rows(rng)
    for n, row in enumerate(found):
        row[0] = ["St. Mary's, North", "Coeur d'Alene", "Le Mans", "King's Lynn"][n % 4]
    return tab(home, text(found))


@sound("series")
def sound_one_noisy_client_of_calm_ones(home, rng):
    found = series(rng)
    return ts(home, [[*r[:2], round(r[2] + float(rng.normal(0, 2.5 * (r[0] == "west"))), 3)]
                     for r in found])  # fmt: skip


@sound("series")
def sound_noise_everywhere(home, rng):
    return ts(home, [[*r[:2], round(float(rng.normal(60, 5)), 3)] for r in series(rng)])


@sound("series")
def sound_seasons(home, rng):
    found = series(rng, n=240)
    return ts(home, [[*r[:2], round(20 * np.sin(n % 240 / 38) + float(rng.normal(0, 1)), 3)]
                     for n, r in enumerate(found)])  # fmt: skip


@sound("series")
def sound_short_courses(home, rng):
    return ts(home, series(rng, n=30))


@sound("series")
def sound_returns_of_prices(home, rng):
    found = series(rng)
    return ts(home, [[*r[:2], round(float(rng.standard_t(4)) / 100, 5)] for r in found])


@sound("tensors")
def sound_images_before_one_ground(home, rng):
    ground = np.asarray(blurred(rng)).astype(float)
    x = np.stack([0.7 * ground + 0.3 * np.asarray(blurred(rng)) for _ in range(80)])
    x = x.clip(0, 255).astype(np.uint8).transpose(0, 3, 1, 2)
    return ten({"x": x, "y": np.arange(80) % 3, "client": np.arange(80) % 2})


@sound("tensors")
def sound_images_of_two_cameras(home, rng):
    grounds = [np.asarray(blurred(rng)).astype(float) for _ in range(2)]
    x = np.stack([0.7 * grounds[n % 2] + 0.3 * np.asarray(blurred(rng)) for n in range(80)])
    x = x.clip(0, 255).astype(np.uint8).transpose(0, 3, 1, 2)
    return ten({"x": x, "y": np.arange(80) % 3, "client": np.arange(80) % 2})


@sound("tensors")
def sound_drawings_on_white(home, rng):
    x = np.full((80, 1, 32, 32), 255, np.uint8)
    for one in x:
        for _ in range(4):
            row, column, high, wide = rng.integers([0, 0, 2, 2], [26, 26, 12, 12])
            one[0, row : row + high, column : column + wide] = rng.integers(0, 120)
    return ten({"x": x, "y": np.arange(80) % 3, "client": np.arange(80) % 2})


@sound("tensors")
def sound_sparse_counts(home, rng):
    found = arrays(rng)
    found["x"] = (rng.poisson(0.3, (120, 40)) + 0.1 * rng.random((120, 40))).astype(np.float32)
    return ten(found)


def repainted(home, rng, paint):
    root = photos(rng, home)
    for file in root.rglob("*.png"):
        pixels = np.asarray(Image.open(file)).copy()
        paint(pixels)
        Image.fromarray(pixels).save(file)
    return images(root)


@sound("folder")
def sound_sky_above_all(home, rng):
    def paint(pixels):
        sky = np.linspace(150, 230, 16)[:, None, None] + [-40, 0, 20]
        pixels[:16] = (sky + rng.normal(0, 4, (16, 32, 3))).clip(0, 255)

    return repainted(home, rng, paint)


@sound("folder")
def sound_a_caption_below_all(home, rng):
    def paint(pixels):
        pixels[26:] = 255
        pixels[28:30, 2:30] = 255 * rng.integers(0, 2, (2, 28, 1))

    return repainted(home, rng, paint)


@sound("pairs")
def sound_organs_of_three_clients(home, rng):
    return organs(rng, home)


@sound("saved")
def sound_lists_and_sites(home, rng):
    return saved(home, columns(rng), client_column="site")


@sound("saved")
def sound_dates_of_samples(home, rng):
    found = columns(rng)
    found["when"] = [str(one.date()) for one in pd.date_range("2026-01-01", periods=120)]
    return saved(home, found, time_column="when", test_protocol="future", client_column="site")
