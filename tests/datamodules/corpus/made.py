"""What the cases of the corpus are made of: tables, series, folders, arrays and saved sets."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from datamodules import (
    IID,
    WISDM,
    HeartDisease,
    HFDataset,
    ImageFolder,
    PairFolder,
    PFLlibFolder,
    Shakespeare,
    TabularData,
    TensorData,
    TimeSeries,
)

SITES = ["Aachen", "Bonn", "Köln", "Trier"]
HEAD = ["site", "age", "bmi", "sex", "outcome"]
SH = ["station", "time", "load"]


def rows(rng, n=160):
    out = []
    for i in range(n):
        age = int(rng.integers(25, 88))
        bmi = round(float(rng.normal(26, 4)), 1)
        out.append(
            [
                SITES[i % 4],
                age,
                bmi,
                "fm"[int(rng.integers(2))],
                ["no", "yes"][int(age + rng.normal(0, 12) > 55)],
            ]
        )
    return out


def text(rs, head=HEAD, sep=",", end="\n"):

    def cell(v):
        s = str(v)
        return '"' + s.replace('"', '""') + '"' if sep in s or '"' in s or "\n" in s else s

    return end.join(sep.join(map(cell, r)) for r in [head, *rs]) + end


def col(rs, values, name, head=HEAD):
    return (
        [[*r[:-1], v, r[-1]] for r, v in zip(rs, values, strict=False)],
        [*head[:-1], name, head[-1]],
    )


def tab(home, content, name="t.csv", enc="utf-8", **kw):
    p = home / name
    p.write_bytes(content if isinstance(content, bytes) else content.encode(enc))
    kw = {"target": "outcome", "client_column": "site", **kw}
    return TabularData(str(p), **kw)


def series(rng, n=120, clients=("north", "south", "west"), step="D", start="2025-01-01"):
    out = []
    for k, c in enumerate(clients):
        v = np.cumsum(rng.normal(0, 1, n)) + 50 + 10 * k
        s = pd.date_range(start, periods=n, freq=step)
        out += [
            [c, str(a) if step != "D" else str(a.date()), round(float(b), 3)]
            for a, b in zip(s, v, strict=True)
        ]
    return out


def ts(home, rs, head=SH, content=None, **kw):
    p = home / "s.csv"
    p.write_text(content or text(rs, head))
    kw = {
        "target": "load",
        "client_column": "station",
        "time_column": "time",
        "past": 5,
        "horizon": 2,
        **kw,
    }
    if kw["time_column"] is None:
        kw.pop("time_column")
    return TimeSeries(str(p), **kw)


def heart(rng, home, change=None):
    root = home / "heart"
    root.mkdir()
    for h in ("cleveland", "hungarian", "switzerland", "va"):
        lines = []
        for _ in range(40):
            num = int(rng.integers(0, 5))
            lines.append(
                [
                    round(float(rng.integers(30, 75)), 1),
                    float(rng.integers(2)),
                    float(rng.integers(1, 5)),
                    float(rng.integers(94, 200)),
                    float(rng.integers(130, 400)),
                    float(rng.integers(2)),
                    float(rng.integers(3)),
                    float(rng.integers(80, 200)),
                    float(rng.integers(2)),
                    round(float(rng.uniform(0, 5)), 1),
                    "?",
                    "?",
                    "?",
                    num,
                ]
            )
        if change:
            lines = change(h, lines)
        (root / f"processed.{h}.data").write_bytes(
            lines
            if isinstance(lines, bytes)
            else "\n".join(",".join(map(str, r)) for r in lines).encode() + b"\n"
        )
    return root


def hd(root):
    return HeartDisease(str(root))


def arff(rng, home, change=None, data=None):
    attrs = ["UNIQUE_ID", "user", "X0", "X1", "PEAK", "class"]
    kinds = ["numeric", "numeric", "numeric", "numeric", "numeric", "{Walking,Jogging,Sitting}"]
    lines = (
        ["@relation w", ""]
        + [f'@attribute "{a}" {k}' for a, k in zip(attrs, kinds, strict=True)]
        + ["", "@data"]
    )
    k = 0
    rs = []
    for u in range(1, 7):
        for c in ("Walking", "Jogging", "Sitting"):
            for i in range(8):
                k += 1
                rs.append(
                    [
                        k,
                        u,
                        round(float(rng.uniform()), 2),
                        round(float(rng.uniform()), 3),
                        round(float(rng.normal(900, 200)), 1) if i else "?",
                        c,
                    ]
                )
    if data:
        rs = data(rs)
    txt = "\n".join(lines + [",".join(map(str, r)) for r in rs]) + "\n"
    if change:
        txt = change(txt)
    p = home / "w.arff"
    p.write_bytes(txt if isinstance(txt, bytes) else txt.encode())
    return p


def wisdm(p):
    return WISDM(str(p))


def bard(rng, home, change=lambda s: s, enc="utf-8"):
    words = [
        "the",
        "and",
        "to",
        "of",
        "thou",
        "art",
        "my",
        "lord",
        "king",
        "night",
        "day",
        "love",
        "speak",
        "well",
        "fair",
        "queen",
        "sword",
    ]
    out = []
    for k in range(60):
        out.append(
            f"{['ROMEO', 'JULIET', 'NURSE'][k % 3]}:\n"
            + "\n".join(" ".join(rng.choice(words, 8)) for _ in range(8))
            + "\n"
        )
    p = home / "s.txt"
    p.write_bytes(change("\n".join(out)).encode(enc))
    return Shakespeare(str(p))


def pic(rng, size=(16, 16), mode="RGB"):
    a = rng.integers(0, 256, (*size[::-1], 3), np.uint8)
    return Image.fromarray(a).convert(mode)


def folder(rng, home, classes=("cat", "dog", "owl"), n=12, suffix=".png", size=(16, 16)):
    root = home / "f"
    for c in classes:
        (root / c).mkdir(parents=True)
        for i in range(n):
            pic(rng, size).save(root / c / f"{c[:1]}{i:02}{suffix}")
    return root


def images(root, **kw):
    return ImageFolder(str(root), num_clients=3, partition=IID(), **kw)


def pairs(rng, home, n=6, values=(0, 1, 2), clients=("a", "b")):
    im, ma = (home / "im", home / "ma")
    for c in clients:
        (im / c).mkdir(parents=True)
        (ma / c).mkdir(parents=True)
        for i in range(n):
            pic(rng).save(im / c / f"{i}.png")
            m = rng.choice(values, (16, 16)).astype(np.uint8)
            Image.fromarray(m, "L").save(ma / c / f"{i}.png")
    return (im, ma)


def pairfolder(im, ma, **kw):
    return PairFolder(str(im), str(ma), **kw)


def arrays(rng, n=120, d=6, c=3):
    y = rng.integers(0, c, n)
    x = rng.normal(0, 1, (n, d)).astype(np.float32) + y[:, None]
    return {"x": x, "y": y, "client": rng.integers(0, 4, n)}


def ten(a, **kw):
    return TensorData(a, **kw)


def changed(change):
    """Return a maker of tensors that somebody changes first."""

    def make(home, rng):
        found = arrays(rng)
        change(found, rng)
        return ten(found)

    return make


def npz(home, a, **kw):
    p = home / "a.npz"
    np.savez(p, **a)
    return ten(str(p), **kw)


def saved(home, cols, features=None, splits=None, inputs="x", target="y", **kw):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    p = home / "hf"
    if splits:
        datasets.DatasetDict(
            {k: datasets.Dataset.from_dict(v, features=features) for k, v in splits.items()}
        ).save_to_disk(str(p))
    else:
        datasets.Dataset.from_dict(cols, features=features).save_to_disk(str(p))
    if "client_column" not in kw:
        kw |= {"num_clients": 3, "partition": IID()}
    return HFDataset(str(p), inputs, target, **kw)


def hfcols(rng, n=90, d=4):
    y = rng.integers(0, 3, n)
    return {
        "x": (rng.normal(0, 1, (n, d)) + y[:, None]).astype("float32").tolist(),
        "y": y.tolist(),
        "site": [SITES[i % 4] for i in range(n)],
    }


def pfllib(rng, home, n=3, change=None, kind=np.float32, raw=False):
    root = home / "MNIST"
    for part in ("train", "test"):
        (root / part).mkdir(parents=True)
        for c in range(n):
            m = 40 if part == "train" else 12
            d = {"x": rng.normal(0, 1, (m, 1, 6, 6)).astype(kind), "y": rng.integers(0, 4, m)}
            if change:
                d = change(part, c, d)
            if d is not None:
                np.savez_compressed(root / part / f"{c}.npz", data=d)
    return root


def pfl(root, **kw):
    return PFLlibFolder(str(root), **kw)


def flb(rng, home, change):
    a = arrays(rng)
    ids = rng.permutation(120)
    parts = [
        {"train": ids[i * 40 : i * 40 + 30], "val": ids[:0], "test": ids[i * 40 + 30 : i * 40 + 40]}
        for i in range(3)
    ]
    d = {"separation": {"train": [0, 1, 2], "test": [0, 1, 2], "total": 3}, "data_indices": parts}
    d = change(d, parts) or d
    p = home / "partition.pkl"
    p.write_bytes(pickle.dumps(d))
    a.pop("client")
    return ten(a, partition=str(p))
