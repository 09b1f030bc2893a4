"""Small files in the layouts of the published data sets."""

from __future__ import annotations

import csv
import gzip
import json
import pickle
import struct

import numpy as np
from PIL import Image

from datamodules.superclasses import CIFAR100_CLASSES


def write_all(root):
    """Write every data set of the papers below ``root``, as the configurations expect it."""
    cifar10(root / "cifar-10-batches-py")
    cifar100(root / "cifar-100-python")
    fashion_mnist(root / "FashionMNIST" / "raw")
    stl10(root / "stl10_binary")
    femnist(root / "femnist")
    ham10000(root / "ham10000")
    sun397(root)
    folders(root / "pacs", [f"{s}/{c}" for s in STYLES for c in range(7)], 12, 96)
    digits = ("mnist_m", "svhn", "synthetic", "usps")
    folders(root / "digits", [f"{s}/{c}" for s in digits for c in range(10)], 40, 32)
    for part, count in (("train", 30), ("val", 2)):
        folders(root / "imagenet" / part, [f"n{label}" for label in range(20)], count, 32)


STYLES = ("art_painting", "cartoon", "photo", "sketch")


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def labels(classes, each):
    return np.tile(np.arange(classes), each)


def cifar10(folder, train=100, test=6):
    folder.mkdir(parents=True)
    names = [f"label_{label}" for label in range(10)]
    dump(folder / "batches.meta", {"label_names": names})
    for part in range(1, 6):
        y = labels(10, train // 5)
        dump(folder / f"data_batch_{part}", {"data": noise(len(y), 3072), "labels": y.tolist()})
    y = labels(10, test)
    dump(folder / "test_batch", {"data": noise(len(y), 3072), "labels": y.tolist()})


def cifar100(folder, train=50, test=12):
    folder.mkdir(parents=True)
    dump(folder / "meta", {"fine_label_names": list(CIFAR100_CLASSES)})
    for part, each in (("train", train), ("test", test)):
        y = labels(100, each)
        dump(folder / part, {"data": noise(len(y), 3072), "fine_labels": y.tolist()})


def dump(path, content):
    path.write_bytes(pickle.dumps(content))


def fashion_mnist(folder, train=100, test=6):
    folder.mkdir(parents=True)
    for name, each in (("train", train), ("t10k", test)):
        y = labels(10, each).astype(np.uint8)
        idx(folder / f"{name}-images-idx3-ubyte", noise(len(y), 28, 28))
        idx(folder / f"{name}-labels-idx1-ubyte", y)


def idx(path, values):
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    with gzip.open(path.with_suffix(".gz"), "wb") as file:
        file.write(header + values.tobytes())
    path.write_bytes(header + values.tobytes())


def stl10(folder, train=20, test=4):
    folder.mkdir(parents=True)
    names = "airplane bird car cat deer dog horse monkey ship truck"
    (folder / "class_names.txt").write_text(names.replace(" ", "\n"))
    for name, each in (("train", train), ("test", test)):
        y = labels(10, each)
        noise(len(y), 3, 96, 96).tofile(folder / f"{name}_X.bin")
        (y + 1).astype(np.uint8).tofile(folder / f"{name}_y.bin")


def femnist(folder, writers=4):
    for part, each in (("train", 10), ("test", 1)):
        y = labels(62, each).tolist()
        x = (noise(len(y), 784) / 255).round(6).tolist()
        users = {f"w{n}": {"x": x[n::writers], "y": y[n::writers]} for n in range(writers)}
        (folder / part).mkdir(parents=True)
        content = {"users": list(users), "num_samples": [], "user_data": users}
        (folder / part / "all_data_0.json").write_text(json.dumps(content))


def ham10000(folder, each=8):
    classes = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    sources = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
    rows = [
        {"image_id": f"ISIC_{n:07}", "dx": dx, "dataset": source}
        for n, (source, dx) in enumerate(
            (source, dx) for source in sources for dx in classes for _ in range(each)
        )
    ]
    for row in rows:
        image(folder / "HAM10000_images_part_1" / f"{row['image_id']}.jpg", 32)
    table(folder / "HAM10000_metadata.csv", rows)


def sun397(root, each=8):
    """Write 150 classes, and the file of their superclasses."""
    kinds = ("indoor", "outdoor_man-made", "outdoor_natural")
    names = [(f"{kind[0]}{kind[8:9]}{n:02}", kind) for kind in kinds for n in range(50)]
    for name, _ in names:
        for number in range(each):
            image(root / "SUN397" / name[0] / name / f"sun_{number}.jpg", 64)
    (root / "SUN397" / "ClassName.txt").write_text(
        "\n".join(f"/{name[0]}/{name}" for name, _ in names)
    )
    rows = [{"class": name, "superclass": kind} for name, kind in names]
    table(root / "sun397_superclasses.csv", rows)
    flags = {"indoor": 0, "outdoor, natural": 2, "outdoor, man-made": 1}
    table(
        root / "three_levels.csv",
        [
            {"category": f"/{name[0]}/{name}"}
            | {column: int(kind == kinds[place]) for column, place in flags.items()}
            for name, kind in names
        ],
    )


def folders(root, classes, each, size):
    for name in classes:
        for number in range(each):
            image(root / name / f"{number}.png", size)


def image(path, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = hash_of(path)
    Image.fromarray(noise(size, size, 3, seed=seed)).save(path)


def hash_of(path):
    """Return a number derived from a file's name, the same in every process."""
    return sum(ord(letter) * place for place, letter in enumerate(path.name, 1))


def table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
