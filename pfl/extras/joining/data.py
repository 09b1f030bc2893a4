"""Clients of other data that join a run whose original data are not available."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl.core.data import Adopts, ClientSplit, DataSource
from pfl.core.data_view import DataView, EmptySplit
from pfl.core.types import NO_CLIENT, DataSplit
from pfl.disk import reading
from pfl.federation.run import PARTITION, TRANSFORMS


def adopt(data: Adopts, run: Path) -> None:
    """Make data use the transforms that are stored with a run.

    Raises:
        ValueError: The run has none, or they are damaged.
    """
    file = run / TRANSFORMS
    content = reading.read_json(file)
    if not content:
        raise ValueError(
            f"{run} has no {TRANSFORMS}, which says how the run read its data: resume it where its "
            "data are (pfl fit --ckpt_path) to get the file"
        )
    try:
        data.adopt(content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def joining(data: DataSource, run: Path, name: str) -> DataView:
    """Return a run's federation with the clients of other data, all of them held out.

    Only the sample counts of the run's own clients are known, from the run folder, as for a server
    before the first round. The newcomers are numbered after them.

    Args:
        data: The data of the clients that join, already set up.
        run: The run folder.
        name: Name of the data, and of a client without a name if it is the only one.

    Raises:
        ValueError: The run's description of its partition is missing or damaged, or the data are
            those of the run.
    """
    file = run / PARTITION
    description = reading.read_json(file)
    try:
        own = _targets(description, data.num_classes)
        held = description.get("held_out", {}).values()
        earlier = sorted(int(client) for clients in held for client in clients)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is missing or damaged ({error!r})") from error
    if data.description().get("content_hash") == description.get("content_hash"):
        raise ValueError("the file has the data of the run itself: leave out --join and --data")
    first, count = len(own), len(own) + data.num_clients

    def split(client: int, name: DataSplit) -> ClientSplit:
        if client == NO_CLIENT or client >= first:
            return data.split(max(client - first, NO_CLIENT), name)
        targets = own[client] if name == "train" else own[client][:0]
        return EmptySplit(targets, "the samples of the run's own clients are not available")

    view = DataView.of(data)
    return replace(
        view,
        num_clients=count,
        apart={"unseen": range(first, count), "earlier": earlier},
        split=split,
        pooled_test=lambda: None,
        description=lambda: description,
        groups=((), []),
        client_names=_names(description, first, count, [*view.client_names], name),
        rows=lambda client, name: view.rows(client - first, name),
        stands_for=name,
    )


def _names(
    description: Mapping[str, Any], first: int, count: int, joining: list[str], name: str
) -> list[str]:
    """Return the names of a run's own clients, then of those that join it."""
    recorded = description.get("names")
    known = [*map(str, recorded)] if isinstance(recorded, list) else []
    joining = joining or ([name] if count - first == 1 else [])
    if repeated := [name for name in joining if name in known]:
        warnings.warn(
            f"{', '.join(repeated[:5])}: the run has a client of that name, so that this one "
            "may not be new",
            stacklevel=3,
        )
    numbered = [f"client {number}" for number in range(count)]
    own = known if len(known) == first else numbered[:first]
    return own + (joining or numbered[first:])


def _targets(description: Mapping[str, Any], classes: int | None) -> list[Tensor]:
    """Return (n,) targets for each client of a run that reproduce its label counts."""
    sizes = [len(client["train"]) for client in description["clients"]]
    if classes is None:
        return [torch.zeros(size) for size in sizes]
    counts = description["label_counts"]
    for size, labels in zip(sizes, counts, strict=True):
        sound = len(labels) == classes and all(type(n) is int and n >= 0 for n in labels)
        if not sound or sum(labels) != size:
            raise ValueError(f"label_counts do not fit {size} samples of {classes} classes")
    return [torch.arange(classes).repeat_interleave(torch.tensor(labels)) for labels in counts]
