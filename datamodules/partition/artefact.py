"""Partition files: the exact samples of every client, the recipe and a content hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from datamodules.checks import require
from datamodules.numpy_pickle import read_arrays
from datamodules.partition.natural import client_names
from datamodules.partition.partitioner import Partitioner
from datamodules.partition.splits import Division, Holding, Rule
from datamodules.targets import Catalogue, Ints
from pfl.core.places import Place
from pfl.disk import reading

FORMAT = "pfl-partition-1"
# Where a partition file must be.
PLACE = Place(
    "give a partition file or a partitioner ('pfl list partitions' shows them; in Python: "
    "Dirichlet(alpha=0.1))"
)


def recipe(partitioner: Partitioner) -> dict[str, Any]:
    """Return a partitioner as class path and arguments, as in a configuration."""
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
        how: The partitioner's recipe and the settings of the rule.
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
    """Return the hashed content: the data set and the samples of every client."""
    pooled, apart = division.pooled_test, division.apart
    return {
        "content_hash": catalogue.content_hash(),
        "clients": [
            {name: ids.tolist() for name, ids in vars(holding).items()}
            for holding in division.holdings
        ],
        "pooled_test": None if pooled is None else pooled.tolist(),
        **({"held_out": {role: [*who] for role, who in apart.items()}} if apart else {}),
    }


def _hash(held: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()[:32]


def load(
    path: str, catalogue: Catalogue, num_clients: int | None = None
) -> tuple[Division, dict[str, Any]]:
    """Restore the division of a file, and return it with its recipe and rule.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is not a partition file, is for other data or another number of
            clients, or is damaged.
    """
    file = Path(path).expanduser()
    PLACE.check(path)
    if file.suffix == ".pkl":
        how: dict[str, Any] = {"partition": f"FL-bench's {file.name}"}
        division = _of_fl_bench(file)
        _check(division, len(catalogue.targets), file)
    else:
        description = reading.read_json(file)
        require(
            description.get("format") == FORMAT,
            f'{file} is not a partition file (it has no "format": "{FORMAT}")',
        )
        names = ("partition", *(field.name for field in fields(Rule)))
        how = {name: description.get(name) for name in names}
        division = _restored(description, catalogue, file)
    count = len(division.holdings)
    require(
        num_clients in (None, count),
        f"num_clients is {num_clients}, but the partition {file} has {count} clients",
    )
    return division, how


def _of_fl_bench(path: Path) -> Division:
    """Return the division of a ``partition.pkl`` of FL-bench.

    Its numbers are those of training and official test samples in one row, as here.
    """
    held = read_arrays(path)
    clients: Any = held.get("data_indices") if isinstance(held, Mapping) else None
    form = isinstance(clients, list) and all(
        isinstance(one, Mapping) and {"train", "test"} <= one.keys() for one in clients
    )
    require(form, f"{path} is not a partition.pkl of FL-bench: it lacks data_indices of clients")
    trained = held.get("separation", {}).get("train", range(len(clients)))
    require(
        len(trained) >= len(clients),
        f"{path} keeps {len(clients) - len(trained)} clients for tests alone; give data.unseen, "
        "and let FL-bench split by samples",
    )
    holdings = [
        Holding(*(_ids(list(one.get(name, ()))) for name in ("train", "val", "test")))
        for one in clients
    ]
    return Division(tuple(holdings), None, {})


def _restored(description: dict[str, Any], catalogue: Catalogue, path: Path) -> Division:
    try:
        file = _File.model_validate(description)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"the partition file {path} is damaged ({place}: {first['msg']})"
        ) from error
    if file.content_hash != catalogue.content_hash():
        raise ValueError(
            f"the partition {path} was made for other data ({description.get('data')}, "
            f"{description.get('samples')} samples, content hash {file.content_hash}); this data "
            f"set has {len(catalogue.targets)} samples and content hash {catalogue.content_hash()}"
        )
    holdings = tuple(Holding(*map(_ids, vars(client).values())) for client in file.clients)
    apart = {role: tuple(clients) for role, clients in file.held_out.items()}
    pooled = None if file.pooled_test is None else _ids(file.pooled_test)
    division = Division(holdings, pooled, apart)
    _check(division, len(catalogue.targets), path)
    if file.hash != _hash(_held(catalogue, division)):
        raise ValueError(
            f"the partition file {path} is damaged: its samples do not match its hash {file.hash}"
        )
    return division


_Numbers: TypeAlias = list[Annotated[int, Field(ge=0, lt=2**63)]]


class _Client(BaseModel):
    """The samples of a client, in the order of :class:`Holding`."""

    model_config = ConfigDict(strict=True)

    train: _Numbers
    val: _Numbers
    test: _Numbers


class _File(BaseModel):
    """The required content of a file; the rest describes the partition."""

    model_config = ConfigDict(strict=True)

    content_hash: str
    hash: str
    clients: Annotated[list[_Client], Field(min_length=1)]
    pooled_test: _Numbers | None
    held_out: dict[str, _Numbers] = {}


def _ids(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def _check(division: Division, count: int, path: Path) -> None:
    """Reject samples out of range, of two clients, or in both training and test sets."""
    pooled = [] if division.pooled_test is None else [division.pooled_test]
    owned = np.concatenate([ids for h in division.holdings for ids in (h.train, h.val)])
    tested = np.concatenate([*(h.test for h in division.holdings), *pooled])
    every = np.concatenate([owned, tested])
    outside = every[(every < 0) | (every >= count)]
    require(
        not len(outside),
        f"the partition {path} has samples outside 0..{count - 1}, such as {outside[:1]}",
    )
    require(
        all(one < len(division.holdings) for who in division.apart.values() for one in who),
        f"the partition {path} holds out a client that it does not have",
    )
    values, times = np.unique(owned, return_counts=True)
    require(
        len(values) == len(owned),
        f"the partition {path} gives a training sample to two clients, or twice to one, such as "
        f"{values[times > 1][:1]}",
    )
    both = np.intersect1d(owned, tested)
    require(
        not len(both),
        f"the partition {path} tests on training samples, {len(both)} of them, such as {both[:1]}: "
        "divide the samples again",
    )
