"""Tensors by name, and sets saved by Hugging Face's package, sound and damaged."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from datamodules import HFDataset, LoaderData, TensorData
from tests.datamodules.corpus.folders import picture
from tests.datamodules.corpus.kinds import Case
from tests.datamodules.corpus.names import INVISIBLE, TWINS

Parts = dict[str, Any]
N = 90
NAMES = ("north", "south", "rome")


def parts(rng: np.random.Generator) -> Parts:
    """Return vectors, classes and clients."""
    return {
        "x": rng.normal(size=(N, 4)).astype(np.float32),
        "y": rng.integers(0, 3, N),
        "client": np.array(NAMES)[np.arange(N) % 3],
    }


def tensors(
    damage: str, words: str, change: Callable[[Parts, np.random.Generator], Any], **options: Any
) -> Case:
    """Return a case of tensors that are changed, given as a mapping or as a file."""

    def make(folder: Path, rng: np.random.Generator) -> Any:
        given = parts(rng)
        changed = change(given, rng)
        if isinstance(changed, bytes):
            (folder / "t.npz").write_bytes(changed)
            return TensorData(str(folder / "t.npz"), **options)
        if "source" in given:
            return given["source"]
        return TensorData(given, **options)

    return Case("tensors", damage, make, words)


def images(given: Parts, rng: np.random.Generator, shape: tuple[int, ...] = (3, 8, 8)) -> None:
    given["x"] = rng.integers(0, 256, (N, *shape), dtype=np.uint8)


def put(name: str, place: Any, value: Any) -> Callable[[Parts, np.random.Generator], None]:
    def change(given: Parts, rng: np.random.Generator) -> None:
        given[name] = given[name].copy()
        given[name][place] = value

    return change


def setting(**values: Any) -> Callable[[Parts, np.random.Generator], None]:
    def change(given: Parts, rng: np.random.Generator) -> None:
        given.update({name: value(given, rng) for name, value in values.items()})

    return change


def twin(name: str, change: Callable[[str], str]) -> Callable[[Parts, np.random.Generator], None]:
    def of(given: Parts, rng: np.random.Generator) -> None:
        if name == "client":
            clients = given["client"].astype(object)
            clients[0::6] = [change(str(one)) for one in clients[0::6]]
            given["client"] = clients
        else:
            given["class_names"] = [NAMES[0], change(NAMES[0]), NAMES[2]]

    return of


def loaders(given: Parts, rng: np.random.Generator, **options: Any) -> None:
    pairs = torch.utils.data.TensorDataset(torch.as_tensor(given["x"]), torch.as_tensor(given["y"]))
    given["source"] = LoaderData([pairs, pairs], task=None, **options)


def tests_of(given: Parts, rng: np.random.Generator) -> None:
    given["num_train"] = 70


FLOATS = np.float32
TENSORS = [
    tensors("labels of -100", "-100.*without a label", put("y", slice(0, 5), -100)),
    tensors("labels of -1", "without a label", put("y", slice(0, 5), -1)),
    tensors("labels of 255", "largest 255", put("y", slice(0, 5), 255)),
    tensors("classes from one on", "numbered from 0", setting(y=lambda g, rng: g["y"] + 1)),
    tensors("classes as floats", r"y.long\(\)", setting(y=lambda g, rng: g["y"].astype(FLOATS))),
    tensors("classes one-hot", "argmax", setting(y=lambda g, rng: np.eye(3)[g["y"]])),
    tensors(
        "masks as targets", "segmentation", setting(y=lambda g, rng: rng.integers(0, 3, (N, 8, 8)))
    ),
    tensors("masks as floats", "segmentation", setting(y=lambda g, rng: rng.random((N, 8, 8)))),
    tensors(
        "masks of 255",
        "ignore|values",
        setting(
            x=lambda g, rng: rng.normal(size=(N, 1, 8, 8)).astype(FLOATS),
            y=lambda g, rng: 255 * rng.integers(0, 2, (N, 8, 8)),
        ),
        task="segmentation",
    ),
    tensors("channels last", "permute", lambda g, rng: images(g, rng, (8, 8, 3))),
    tensors(
        "channels last in floats",
        "permute",
        setting(x=lambda g, rng: rng.random((N, 8, 8, 3)).astype(FLOATS)),
    ),
    tensors("bytes without channels", r"\[:, None\]", lambda g, rng: images(g, rng, (8, 8))),
    tensors(
        "floats to 255",
        "uint8",
        setting(x=lambda g, rng: rng.integers(0, 256, (N, 3, 8, 8)).astype(FLOATS)),
    ),
    tensors(
        "bytes of zeros and ones",
        "255",
        setting(x=lambda g, rng: rng.integers(0, 2, (N, 3, 8, 8), dtype=np.uint8)),
    ),
    tensors(
        "inputs that never move",
        "all samples|all rows",
        setting(x=lambda g, rng: np.zeros((N, 4), FLOATS)),
    ),
    tensors("a column that never moves", "all rows", put("x", (slice(None), 2), 5.0)),
    tensors("an input of -999", "far from", put("x", (slice(0, 6), 1), -999)),
    tensors("an input that is far", "decimal sign", put("x", (3, 1), 123456)),
    tensors("an input that is no number", "finite", put("x", (3, 1), np.nan)),
    tensors("an infinite input", "finite", put("x", (3, 1), np.inf)),
    tensors(
        "samples twice",
        "content of another",
        lambda g, rng: put("x", slice(0, 9), g["x"][9:18])(g, rng),
    ),
    tensors(
        "images twice",
        "content of another",
        lambda g, rng: (images(g, rng), put("x", slice(0, 9), g["x"][9:18])(g, rng))[1],
    ),
    tensors(
        "samples on both sides",
        "both sides",
        lambda g, rng: (tests_of(g, rng), put("x", slice(80, 85), g["x"][:5])(g, rng))[1],
        test_protocol="matched",
    ),
    tensors(
        "a test_fraction beside tests",
        "test_fraction",
        tests_of,
        test_fraction=0.4,
        test_protocol="matched",
    ),
    tensors(
        "a class of one sample",
        "single sample",
        lambda g, rng: (setting(y=lambda g, rng: g["y"] % 2)(g, rng), put("y", 3, 2)(g, rng))[1],
    ),
    tensors("one class", "nothing can be learnt", setting(y=lambda g, rng: np.zeros(N, int))),
    tensors(
        "a class for each sample", "class of their own", setting(y=lambda g, rng: np.arange(N))
    ),
    tensors(
        "a target that never moves",
        "all rows",
        setting(y=lambda g, rng: np.full(N, 2.5)),
        task="regression",
    ),
    tensors(
        "a target of 9999",
        "far from",
        lambda g, rng: (
            setting(y=lambda g, rng: rng.normal(size=N))(g, rng),
            put("y", slice(0, 4), 9999)(g, rng),
        )[1],
    ),
    tensors(
        "a client of one sample", "single sample", lambda g, rng: put("client", 4, "west")(g, rng)
    ),
    tensors(
        "clients without a name",
        "leave its samples",
        setting(client=lambda g, rng: [("north", "nan", "south")[n % 3] for n in range(N)]),
    ),
    tensors(
        "patients on both sides",
        "patient.*testing",
        setting(
            **{
                "column.patient": lambda g, rng: np.arange(N) // 3,
                "client": lambda g, rng: np.zeros(N, int),
            }
        ),
    ),
    tensors(
        "a time that never moves",
        "no order",
        setting(**{"column.time": lambda g, rng: np.ones(N)}),
        test_protocol="future",
    ),
    tensors("no archive of arrays", "npz", lambda g, rng: b"\x93NUMPY"),
    tensors("a pickle", "npz", lambda g, rng: b"\x80\x04\x95"),
    tensors("HDF5", "HDF5|npz", lambda g, rng: b"\x89HDF\r\n\x1a\n"),
    tensors(
        "loaders: a test_fraction",
        "test_fraction",
        lambda g, rng: loaders(
            g,
            rng,
            test=torch.utils.data.TensorDataset(torch.rand(9, 4), torch.zeros(9)),
            test_fraction=0.4,
        ),
    ),
    tensors(
        "loaders: one set for two splits",
        "samples, too",
        lambda g, rng: (
            loaders(g, rng),
            g.update(source=LoaderData(g["source"].source, val=g["source"].source)),
        )[1],
    ),
    *(
        tensors(f"{how} in a client", words, twin("client", change))
        for how, change, words in (*TWINS, *INVISIBLE)
    ),
    *(
        tensors(f"{how} in a class", words, twin("class", change))
        for how, change, words in (*TWINS, *INVISIBLE)
    ),
]

SOUND_TENSORS = [
    tensors("vectors", "", lambda g, rng: None),
    tensors("standardised", "", lambda g, rng: None, standardise="train"),
    tensors("images", "", images),
    tensors("with tests", "", tests_of, test_protocol="matched"),
    tensors("numbers to predict", "", setting(y=lambda g, rng: rng.normal(size=N))),
    tensors("labels", "", setting(y=lambda g, rng: rng.integers(0, 2, (N, 3)))),
    tensors(
        "masks",
        "",
        setting(
            x=lambda g, rng: rng.normal(size=(N, 1, 8, 8)).astype(FLOATS),
            y=lambda g, rng: rng.integers(0, 3, (N, 8, 8)),
        ),
        task="segmentation",
    ),
    tensors("tokens", "", setting(x=lambda g, rng: rng.integers(0, 500, (N, 12)))),
    tensors(
        "small whole numbers",
        "",
        setting(x=lambda g, rng: rng.integers(0, 4, (N, 3)).astype(FLOATS)),
    ),
    tensors("signals", "", setting(x=lambda g, rng: rng.normal(size=(N, 2, 30)).astype(FLOATS))),
    tensors(
        "in order of time",
        "",
        setting(**{"column.time": lambda g, rng: np.arange(N)}),
        test_protocol="future",
    ),
]


def saved(
    damage: str,
    words: str,
    change: Callable[[Parts, np.random.Generator], Any],
    pictures: bool = False,
    **options: Any,
) -> Case:
    """Return a case of a saved set whose columns are changed; other splits are keys with a dot."""

    def make(folder: Path, rng: np.random.Generator) -> Any:
        datasets = __import__("datasets")
        datasets.disable_progress_bars()
        kinds = ["no", "yes", "perhaps"]
        rows: Parts = {
            "value": [rng.normal(size=4).tolist() for _ in range(N)],
            "size": [round(float(rng.normal(50, 9)), 3) for _ in range(N)],
            "label": [kinds[int(n)] for n in rng.integers(0, 3, N)],
            "site": [NAMES[n % 3] for n in range(N)],
        }
        if pictures:
            rows["image"] = [png(picture(rng)) for _ in range(N)]
        other = change(rows, rng) or {}
        content = datasets.Dataset.from_dict(rows)
        content = content.cast_column("image", datasets.Image()) if pictures else content
        splits = {name: content.select(range(*where)) for name, where in other.items()}
        (datasets.DatasetDict(splits) if splits else content).save_to_disk(str(folder / "d"))
        usual = {
            "inputs": "image" if pictures else "value",
            "target": "label",
            "client_column": "site",
        }
        return HFDataset(str(folder / "d"), **{**usual, **options})

    return Case("saved", damage, make, words)


def png(image: Image.Image, suffix: str = "png", **options: Any) -> Parts:
    """Return an image as a saved set has it."""
    buffer = io.BytesIO()
    image.save(buffer, suffix, **options)
    return {"bytes": buffer.getvalue(), "path": None}


def replaced(make: Callable[[np.random.Generator], Parts], places: slice = slice(4, 5)) -> Any:
    def change(rows: Parts, rng: np.random.Generator) -> None:
        rows["image"][places] = [make(rng) for _ in rows["image"][places]]

    return change


def rows_put(name: str, value: Any, count: int = 5) -> Any:
    def change(rows: Parts, rng: np.random.Generator) -> None:
        for row in rng.choice(N, count, replace=False):
            rows[name][row] = value

    return change


def renamed(column: str, change: Callable[[str], str]) -> Any:
    def of(rows: Parts, rng: np.random.Generator) -> None:
        name = rows[column][0]
        places = [n for n, one in enumerate(rows[column]) if one == name]
        for place in places[::2]:
            rows[column][place] = change(name)

    return of


def moving(rng: np.random.Generator) -> Parts:
    return png(picture(rng), save_all=True, append_images=[picture(rng), picture(rng)])


def deep(rng: np.random.Generator) -> Parts:
    return png(Image.fromarray(rng.integers(0, 60000, (12, 12), dtype=np.uint16)))


SPLITS = {"train": (0, 60), "validation": (60, 75), "test": (75, 90)}
SAVED = [
    saved(
        "a val_fraction beside validation", "val_fraction", lambda r, rng: SPLITS, val_fraction=0.1
    ),
    saved(
        "validation without tests",
        "no split 'test'",
        lambda r, rng: {"train": (0, 70), "validation": (70, 90)},
    ),
    saved(
        "a test_fraction beside tests",
        "test_fraction",
        lambda r, rng: SPLITS,
        test_fraction=0.4,
        test_protocol="matched",
    ),
    saved("no train", "no split 'train'", lambda r, rng: {"training": (0, 90)}),
    saved(
        "rows twice",
        "content of another",
        lambda r, rng: r["value"].__setitem__(slice(0, 5), r["value"][5:10]),
    ),
    saved(
        "rows on both sides",
        "both sides",
        lambda r, rng: r["value"].__setitem__(slice(80, 85), r["value"][5:10]) or SPLITS,
        test_protocol="matched",
    ),
    saved("a label that is missing", "missing value", rows_put("label", None)),
    saved("a label that says nothing", "missing_values", rows_put("label", "unknown")),
    saved(
        "a label of -1",
        "without a label",
        lambda r, rng: r.update(label=[int(n) for n in rng.integers(-1, 3, N)]),
    ),
    saved("a size of -999", "missing_values", rows_put("size", -999.0), inputs="size"),
    saved("a size that is far", "decimal sign", rows_put("size", 123456.0, 1), inputs="size"),
    saved(
        "a size that never moves",
        "all rows|all samples",
        lambda r, rng: r.update(size=[5.0] * N),
        inputs="size",
    ),
    saved("a class of one row", "single sample", rows_put("label", "often", 1)),
    saved("a client of one row", "single sample", rows_put("site", "west", 1)),
    saved("one class", "nothing can be learnt", lambda r, rng: r.update(label=["yes"] * N)),
    saved("lists of other lengths", "max_length", lambda r, rng: r["value"].__setitem__(3, [1.0])),
    saved(
        "patients on both sides",
        "patient_id.*testing",
        lambda r, rng: r.update(patient_id=[f"P{n // 3}" for n in range(N)], site=["north"] * N),
    ),
    saved("a client that says nothing", "missing_values", rows_put("site", "unknown", 20)),
    saved("no set at all", "d", lambda r, rng: {"train": (0, 90)}, inputs="none"),
    saved("several frames", "several frames", replaced(moving), True),
    saved(
        "a picture of one colour",
        "single colour",
        replaced(lambda rng: png(Image.new("RGB", (12, 12)))),
        True,
    ),
    saved(
        "a picture for print",
        "CMYK",
        replaced(lambda rng: png(picture(rng, mode="CMYK"), "jpeg")),
        True,
    ),
    saved("sixteen bits", "16|clipped", replaced(deep), True),
    saved(
        "a grey first picture",
        "grey",
        replaced(lambda rng: png(picture(rng, mode="L")), slice(0, 1)),
        True,
    ),
    saved(
        "a picture of another size", "shape", replaced(lambda rng: png(picture(rng, size=9))), True
    ),
    saved(
        "a picture that is a page",
        "HTML",
        replaced(lambda rng: {"bytes": b"<html>404", "path": None}),
        True,
    ),
    saved("an empty picture", "empty", replaced(lambda rng: {"bytes": b"", "path": None}), True),
    saved(
        "a picture cut off",
        "row 5",
        replaced(lambda rng: {"bytes": png(picture(rng))["bytes"][:150], "path": None}),
        True,
    ),
    saved(
        "pictures twice",
        "content of another",
        lambda r, rng: r["image"].__setitem__(slice(0, 3), r["image"][3:6]),
        True,
    ),
    saved(
        "pictures on both sides",
        "both sides",
        lambda r, rng: r["image"].__setitem__(slice(80, 83), r["image"][3:6]) or SPLITS,
        True,
        test_protocol="matched",
    ),
    *(
        saved(f"{how} in a {what}", words, renamed(column, change))
        for what, column in (("client", "site"), ("class", "label"))
        for how, change, words in (*TWINS, *INVISIBLE)
    ),
]

SOUND_SAVED = [
    saved("as it is", "", lambda r, rng: None),
    saved("with splits", "", lambda r, rng: SPLITS, test_protocol="matched"),
    saved("pictures", "", lambda r, rng: None, True),
    saved("transparent pictures", "", replaced(lambda rng: png(picture(rng, mode="RGBA"))), True),
    saved(
        "grey pictures", "", replaced(lambda rng: png(picture(rng, mode="L")), slice(0, N)), True
    ),
    saved("single numbers", "", lambda r, rng: None, inputs="size"),
    saved("two inputs", "", lambda r, rng: None, inputs=["size", "value"]),
]
