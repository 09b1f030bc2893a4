"""Groups that differ from all others: the same change, in columns of every reader."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch.utils.data import TensorDataset

from datamodules import HFDataset, LoaderData, TabularData, TensorData, TimeSeries
from tests.datamodules.corpus.kinds import Case, collectors
from tests.datamodules.corpus.made import saved

DAMAGED, SOUND, _, sound = collectors()
SITES = np.array(["Aachen", "Bonn", "Calw", "Demmin"])
N = 200


def samples(rng):
    """Return clients, four columns of numbers on levels of their own, and three classes."""
    client = np.arange(N) % 4
    y = rng.permutation(N) % 3
    x = rng.normal(0, 1, (N, 4)) * [3, 8, 5, 2] + [26, 140, 70, -40] + y[:, None]
    return client, np.round(x, 3), y


def table(home, client, x, y):
    named = {f"m{place}": x[:, place] for place in range(4)}
    frame = pd.DataFrame(
        {"site": SITES[client], **named, "kind": np.array(["a", "b", "c", "d"])[y]}
    )
    frame.to_csv(home / "t.csv", index=False)
    return TabularData(str(home / "t.csv"), "kind", client_column="site")


def series(home, client, x, y):
    days = pd.date_range("2026-01-01", periods=N // 4).strftime("%Y-%m-%d")
    order = np.argsort(client, kind="stable")
    named = {f"m{place}": x[order, place] for place in range(4)}
    frame = pd.DataFrame({"site": SITES[client[order]], "day": [*days] * 4, **named})
    frame.to_csv(home / "s.csv", index=False)
    more = {"features": ["m1", "m2", "m3"], "time_column": "day"}
    return TimeSeries(str(home / "s.csv"), "m0", "site", past=5, **more)


def tensors(home, client, x, y):
    return TensorData({"x": x.astype(np.float32), "y": y, "client": SITES[client]})


def lists(home, client, x, y) -> HFDataset:
    found = {"x": x.astype(np.float32).tolist(), "y": y.tolist(), "site": SITES[client].tolist()}
    return saved(home, found, client_column="site")


def loaders(home, client, x, y):
    parts = [
        TensorDataset(torch.tensor(x[client == one]).float(), torch.tensor(y[client == one]))
        for one in range(4)
    ]
    return LoaderData(dict(zip(SITES.tolist(), parts, strict=True)))


READERS = {"table": table, "series": series, "tensors": tensors, "saved": lists}
BY_LOADER = {**READERS, "loaders": loaders}


def crossed(damage, words, readers, damages=DAMAGED):
    """Keep a change of samples as a case of several readers."""

    def keep(change):
        for name, make in readers.items():

            def case(home, rng, make=make):
                return make(home, *change(*samples(rng)))

            reader = "tensors" if name == "loaders" else name
            damages.append(Case(reader, f"{damage} ({name})", case, words))
        return change

    return keep


@crossed("columns changed places at a client", r"changed places at the client 'Bonn'", BY_LOADER)
def at_a_client(client, x, y):
    x[client == 1] = x[client == 1][:, [1, 0, 2, 3]]
    return client, x, y


@crossed("columns changed places in the second half", r"changed places in rows", {
    "table": table, "tensors": tensors, "saved": lists,
})  # fmt: skip
def in_a_half(client, x, y):
    x[N // 2 :] = x[N // 2 :][:, [1, 0, 2, 3]]
    return client, x, y


@crossed("two numbers for two reasons", r"is -998.*(name it in missing_values|replace it)", READERS)
def two_reasons(client, x, y):
    x[3::21, 2], x[9::21, 2] = -998.0, -999.0
    return client, x, y


@crossed("cut off at the largest that can be measured", r"none is beyond.*cut off", BY_LOADER)
def cut_off(client, x, y):
    x[:, 2] = np.minimum(x[:, 2], 74.5)
    return client, x, y


@crossed("standardised at one client alone", r"(standardised there alone|spread)", {
    "table": table, "tensors": tensors, "saved": lists, "loaders": loaders,
})  # fmt: skip
def standardised(client, x, y):
    own = client == 2
    x[own] = np.round((x[own] - x[own].mean(0)) / x[own].std(0), 3)
    return client, x, y


@crossed("scaled at one client alone", r"spread 255 times|another unit|far", BY_LOADER)
def scaled(client, x, y):
    x[client == 2] *= 255
    return client, x, y


@crossed("classes of other names at a client", r"'Bonn'.* has the classes.*otherwise", {
    "table": table, "tensors": tensors, "saved": lists, "loaders": loaders,
})  # fmt: skip
def otherwise(client, x, y):
    # A fourth class takes the place of the first.
    return client, x, np.where((client == 1) & (y == 0), 3, y)


@crossed("a number far beyond all others", r"at most .* elsewhere|nearly everywhere", BY_LOADER)
def far_beyond(client, x, y):
    x[17, 2] = 710.0
    return client, x, y


def unlike(name, change, readers=BY_LOADER, sounds=SOUND):
    """Keep what is unlike in groups, and yet sound."""
    for reader, make in readers.items():

        def case(home, rng, make=make):
            return make(home, *change(*samples(rng)))

        kind = "tensors" if reader == "loaders" else reader
        sounds.append(Case(kind, "", case, name=f"{name} ({reader})"))


def levels(client, x, y):
    """Give each client a level of its own."""
    return client, np.round(x + 2.0 * client[:, None], 3), y


def widths(client, x, y):
    """Let the numbers of each client spread as far as they do."""
    middles = x.mean(0)
    return client, np.round(middles + (x - middles) * (1 + 0.3 * client[:, None]), 3), y


def some_classes(client, x, y):
    """Let one client have two classes of three."""
    return client, x, np.where((client == 1) & (y == 2), 1, y)


unlike("levels of clients", levels)
unlike("spreads of clients", widths)
unlike("classes of clients", some_classes, {"table": table, "tensors": tensors, "saved": lists})
unlike("as usual", lambda *parts: parts)
