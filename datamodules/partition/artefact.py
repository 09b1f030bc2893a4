"""Partition files: the exact samples of every client, the recipe and a content hash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.partition.natural import client_names
from datamodules.partition.partitioner import Partitioner
from datamodules.partition.splits import Division, Holding
from datamodules.targets import Catalogue, Ints
from pfl.core.held_out import NOBODY, HeldOut
from pfl.disk import reading

FORMAT = "pfl-partition-1"


def recipe(partitioner: Partitioner) -> dict[str, Any]:
    """Return the partitioner as class path and arguments, as in a configuration."""
    values = {
        name: recipe(value) if isinstance(value, Partitioner) else value
        for name, value in vars(partitioner).items()
    }
    its_class = type(partitioner)
    return {"class_path": f"{its_class.__module__}.{its_class.__qualname__}", "init_args": values}


def describe(
    data: str, catalogue: Catalogue, division: Division, how: dict[str, Any]
) -> dict[str, Any]:
    """Describe a partition in plain values, ready for JSON.

    ``content_hash`` identifies the data set, ``hash`` the partition.

    Args:
        data: Name of the data set.
        catalogue: Catalogue of the data set.
        division: Samples of each client.
        how: The partitioner's recipe and the settings of the rule that made it.
    """
    held = _held(catalogue, division)
    return {
        "format": FORMAT,
        "hash": _hash(held),
        "data": data,
        "samples": len(catalogue.targets),
        "num_clients": len(division.holdings),
        **how,
        **({"names": [*names]} if (names := client_names(catalogue, division)) else {}),
        **held,
    }


def _held(catalogue: Catalogue, division: Division) -> dict[str, Any]:
    """Return what the hash covers: the data set and the samples of every client."""
    pooled, out = division.pooled_test, division.held_out
    held = {name: [*clients] for name, clients in out._asdict().items()}
    return {
        "content_hash": catalogue.content_hash(),
        "clients": [
            {name: ids.tolist() for name, ids in vars(holding).items()}
            for holding in division.holdings
        ],
        "pooled_test": None if pooled is None else pooled.tolist(),
        **({"held_out": held} if out != NOBODY else {}),
    }


def _hash(held: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()[:32]


def read(path: Path) -> dict[str, Any]:
    """Read a description from its file.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is no JSON, too deep or too large, or not a partition file.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"partition: there is neither a file {path} nor a partitioner of that name; pfl list "
            "partitions lists the partitioners"
        )
    description = reading.read_json(path)
    if description.get("format") != FORMAT:
        raise ValueError(f'{path} is not a partition file (it has no "format": "{FORMAT}")')
    return description


def restore(description: dict[str, Any], catalogue: Catalogue, path: Path) -> Division:
    """Restore the division that a file describes.

    Raises:
        ValueError: The file was made for other data, is damaged, or is not a partition.
    """
    try:
        given = description["content_hash"]
        holdings = tuple(
            Holding(*(_ids(client[name]) for name in ("train", "val", "test")))
            for client in description["clients"]
        )
        pooled = description["pooled_test"]
        outside = description.get("held_out", {})
        out = HeldOut(*(tuple(_ids(outside.get(name, [])).tolist()) for name in HeldOut._fields))
        division = Division(holdings, None if pooled is None else _ids(pooled), out)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the partition file {path} is damaged ({error!r})") from error
    if given != catalogue.content_hash():
        raise ValueError(
            f"the partition {path} was made for other data ({description.get('data')}, "
            f"{description.get('samples')} samples, content hash {given}); this data set has "
            f"{len(catalogue.targets)} samples and the hash {catalogue.content_hash()}"
        )
    if not holdings:
        raise ValueError(f"the partition file {path} is damaged (its list of clients is empty)")
    _check(division, len(catalogue.targets), path)
    if description.get("hash") != _hash(_held(catalogue, division)):
        raise ValueError(
            f"the partition file {path} is damaged: its samples do not match its hash "
            f"{description.get('hash')}"
        )
    return division


def _ids(values: object) -> Ints:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise TypeError(f"{str(values)[:40]} is not a list of whole numbers")
    return np.array(values, np.int64)


def _check(division: Division, count: int, path: Path) -> None:
    """Refuse a sample that is out of range, held by two clients, or both trained and tested on."""
    fitted = [ids for h in division.holdings for ids in (h.train, h.val)]
    tested = [h.test for h in division.holdings]
    if division.pooled_test is not None:
        tested.append(division.pooled_test)
    everything = np.concatenate([*fitted, *tested])
    if everything.size and not 0 <= everything.min() <= everything.max() < count:
        raise ValueError(f"the partition {path} names samples outside 0..{count - 1}")
    out = [client for clients in division.held_out for client in clients]
    if out and not 0 <= min(out) <= max(out) < len(division.holdings):
        raise ValueError(f"the partition {path} holds out a client that it does not have")
    owned = np.concatenate(fitted)
    if len(np.unique(owned)) != len(owned):
        raise ValueError(f"the partition {path} gives a training sample to two clients")
    if np.isin(np.concatenate(tested), owned).any():
        raise ValueError(f"the partition {path} tests on training samples")
