"""Some samples of a data set of one's own, in its own batches, and the record of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Subset, TensorDataset, default_collate

from datamodules.checks import require
from datamodules.examined import with_content
from datamodules.given import array_of, columns_of
from datamodules.record import Division, Notes, Record
from datamodules.view import first_not_finite
from pfl.core.seeds import everything_scoped, streams
from pfl.core.state import nbytes
from pfl.core.task import Task
from pfl.core.types import Batch

CPU = torch.device("cpu")
# So many samples of each client are looked at.
_LOOKED = 3
# Samples of more bytes are not copied for a record.
_LIMIT = 2**30
_SIDES = {"train": 1, "val": 2, "test": 3, "pooled": 3}
Splits = Mapping[str, Mapping[str, "LoaderSplit"]]
# Kind, name of the client, and split.
Part = tuple[str, str, "LoaderSplit"]


class LoaderSplit:
    """Some samples of a data set, in the form of its own batches.

    Args:
        dataset: The data set.
        rows: Numbers of the samples.
        collate: Makes a batch of a list of samples.
        task: What is predicted, if samples are pairs of inputs and target.
    """

    augmented = False

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401
        rows: list[int],
        collate: Callable[[list[Any]], Any],
        task: Task | None,
    ) -> None:
        self.dataset, self.rows, self.collate, self.task = dataset, rows, collate, task
        self.device = CPU

    @cached_property
    def targets(self) -> Tensor:
        """(n, ...) targets of pairs, as the task has them; zeros if samples are something else.

        Raises:
            ValueError: They do not suit the task.
        """
        if self.task is None or not self.rows:
            return torch.zeros(len(self.rows), dtype=torch.int64)
        known = self.tensors()
        read = (torch.as_tensor(self.dataset[row][1]) for row in self.rows)
        return self.task.of_targets(torch.stack([*read]) if known is None else known[1])[1]

    def __len__(self) -> int:
        return len(self.rows)

    def some(self, positions: Sequence[int]) -> LoaderSplit:
        """Return the samples at some positions."""
        rows = [self.rows[position] for position in positions]
        return LoaderSplit(self.dataset, rows, self.collate, self.task)

    def origins(self) -> list[tuple[int, int]]:
        """Return the data set and the row of each sample, below any subset."""
        dataset, rows = self.dataset, self.rows
        while type(dataset) is Subset:
            rows, dataset = [dataset.indices[row] for row in rows], dataset.dataset
        return [(id(dataset), int(row)) for row in rows]

    def item(self, positions: Tensor, rng: torch.Generator | None = None) -> Any:  # noqa: ANN401
        """Return the samples at ``positions`` as their own loader would.

        Transforms draw from the default streams, which a client's job seeds.
        """
        rows = [self.rows[position] for position in positions.tolist()]
        several = getattr(self.dataset, "__getitems__", None)
        samples = several(rows) if callable(several) else [self.dataset[row] for row in rows]
        try:
            return self.collate(samples) if samples else []
        except (RuntimeError, TypeError) as error:
            if self.collate is not default_collate:
                raise
            raise ValueError(
                f"{len(samples)} samples of {type(self.dataset).__name__} make no batch: {error}; "
                "give collate_fn, which makes one of a list of samples"
            ) from error

    def batch(self, positions: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return the samples at ``positions`` as inputs and targets.

        Raises:
            ValueError: They have another form.
        """
        found = self.item(positions, rng)
        require(
            isinstance(found, tuple | list)
            and len(found) == 2
            and all(isinstance(one, Tensor) for one in found),
            f"batches of {type(self.dataset).__name__} are no pairs (x, y) of tensors: only a "
            "LightningModule with its own training_step reads them",
        )
        x, y = found
        x, y = (
            one.to(self.device, torch.get_default_dtype() if one.is_floating_point() else None)
            for one in (x, y if self.task is None else self.task.of_targets(y)[1])
        )
        return Batch(x, y)

    def tensors(self) -> tuple[Tensor, Tensor] | None:
        """Return inputs and targets of all samples, if the data set has them as two tensors."""
        dataset, rows = self.dataset, self.rows
        while type(dataset) is Subset:
            rows, dataset = [dataset.indices[row] for row in rows], dataset.dataset
        if type(dataset) is not TensorDataset or len(dataset.tensors) != 2:
            return None
        x, y = (value[rows].cpu() for value in dataset.tensors)
        return x, y


def names_of(split: LoaderSplit, client: Any) -> Sequence[Any]:  # noqa: ANN401
    """Return the name of the client of each sample of a data set."""
    dataset = split.dataset
    column = getattr(dataset, client, None) if isinstance(client, str) else None
    if column is not None and len(column) == len(dataset):
        return [one.item() if isinstance(one, Tensor) else one for one in column]
    name = client if callable(client) else lambda sample: _at(sample, client)
    return [name(dataset[row]) for row in range(len(dataset))]


def _at(sample: Any, key: str | int) -> Any:  # noqa: ANN401
    try:
        found = sample[key]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"client: a sample has no {key!r}, and the data set no sequence of this name with an "
            "entry for each sample: give a key, an index or a function of a sample"
        ) from error
    return found.item() if isinstance(found, Tensor) else found


def examined(splits: Splits, shares: Mapping[str, float], given: Sequence[str]) -> Record:
    """Return the record of the samples of all clients, with what tensors hold.

    Args:
        splits: The splits by kind and name of the client.
        shares: As in :class:`datamodules.record.Division`.
        given: Likewise.
    """
    parts = [(kind, name, one) for kind, own in splits.items() for name, one in own.items()]
    known = _known(parts)
    division = replace(_division(splits, parts), shares=shares, given=given)
    found = Record(
        f"{sum(len(one) for *_, one in parts):,} samples",
        notes=Notes(unread=[*_shared(splits), *_drawn(splits)]),
        division=division,
        place=_place_of(parts),
        forms=_forms(splits["train"]),
    )
    forms = {(x.shape[1:], x.dtype, y.shape[1:], y.dtype) for x, y in known}
    if len(forms) != 1 or sum(nbytes(x) for x, _ in known) > _LIMIT:
        return found
    return _of_tensors(found, *(torch.cat(of) for of in zip(*known, strict=True)))


def _known(parts: Sequence[Part]) -> list[tuple[Tensor, Tensor]]:
    """Return the tensors of splits if all are of tensors, whose targets are then checked."""
    tensors = [one.tensors() for *_, one in parts if len(one)]
    known = [one for one in tensors if one is not None]
    if len(known) < len(tensors):
        return []
    for kind, name, one in parts:
        try:
            _ = one.targets
        except ValueError as error:
            raise ValueError(f"{kind} samples{_whose(name)}: {error}") from error
    return known


def _division(splits: Splits, parts: Sequence[Part]) -> Division:
    """Return which samples each client has, and on which side of the splits they are."""
    names, counts = [*splits["train"]], [len(one) for *_, one in parts]
    places = [names.index(name) for kind, name, _ in parts if kind != "pooled"]
    held = [[len(splits[kind][name]) for kind in ("train", "val", "test")] for name in names]
    return Division(
        {"client": dict(zip(names, np.sum(held, 1).tolist(), strict=True))},
        None,
        # Samples of a common test set are of no client.
        np.repeat(places, counts) if len(places) == len(parts) else None,
        np.repeat([_SIDES[kind] for kind, *_ in parts], counts),
        protocol="matched",
        natural=True,
        held=np.array(held),
    )


def _place_of(parts: Sequence[Part]) -> Callable[[int], str]:
    """Return a function that says where a sample stands among those of all splits."""
    counts = [len(one) for *_, one in parts]
    ends = np.cumsum(counts)

    def place(row: int) -> str:
        number = int(np.searchsorted(ends, row, "right"))
        kind, name, _ = parts[number]
        return f"{kind} sample {row - int(ends[number]) + counts[number]}{_whose(name)}"

    return place


def _whose(name: str) -> str:
    return f" of client {name}" if name else ""


def _forms(splits: Mapping[str, LoaderSplit]) -> dict[str, str]:
    """Return types and shapes of the first samples of each client; no shapes if they vary."""
    leaves: dict[str, list[list[Any]]] = {}
    with everything_scoped(0, CPU):
        for name, split in splits.items():
            some = torch.arange(min(_LOOKED, len(split)))
            leaves[name] = [
                tree_leaves(split.item(row) if split.task is None else split.batch(row)[:2])
                for row in some[:, None]
            ]

    def form(leaf: Any, whole: bool, paired: bool) -> str:  # noqa: ANN401
        if not isinstance(leaf, Tensor):
            return type(leaf).__name__
        # Floats of pairs are brought to one type.
        kind = "floats" if paired and leaf.is_floating_point() else str(leaf.dtype)[6:]
        return f"{kind} {tuple(leaf.shape[1:])}" if whole else f"{kind} in {leaf.dim() - 1} axes"

    def of(paired: bool, whole: bool) -> dict[str, set[str]]:
        return {
            name: {", ".join(form(leaf, whole, paired) for leaf in one) for one in own}
            for name, own in leaves.items()
        }

    paired = any(split.task is not None for split in splits.values())
    found = of(paired, whole=True)
    if any(len(own) > 1 for own in found.values()):
        found = of(paired, whole=False)
    return {name: own.pop() for name, own in found.items() if len(own) == 1}


def _drawn(splits: Splits) -> Iterator[str]:
    """Yield a line if samples to be tested on draw random numbers."""
    for kind in ("val", "test", "pooled"):
        for name, split in splits[kind].items():
            with everything_scoped(0, CPU):
                before = streams()
                split.item(torch.arange(min(_LOOKED, len(split))))
                changed = streams() != before
            # Samples that are set aside have the transforms of those to train on.
            if changed and split.dataset is not getattr(splits["train"].get(name), "dataset", None):
                yield (
                    f"{kind} samples of client {name} draw random numbers, so that each test is "
                    "another: leave random transforms out of their data set"
                )
                return


def _of_tensors(found: Record, x: Tensor, y: Tensor) -> Record:
    """Return a record with what inputs and targets hold."""
    shown = f"x: {x.dtype} {tuple(x.shape)}, y: {y.dtype} {tuple(y.shape)}"
    found.notes.facts.append(shown.replace("torch.", ""))
    if (bad := first_not_finite(x)) is not None:
        found.notes.unread.append(f"x has values that are not finite, first in {found.place(bad)}")
    columns = columns_of("x", x)
    given = found.division
    if y.dim() == 1 and not y.is_floating_point():
        classes, labels = np.unique(y.numpy(), return_inverse=True)
        counts = np.bincount(labels).tolist()
        named = {"class": dict(zip(map(str, classes.tolist()), counts, strict=True))}
        given = replace(given, names={**given.names, **named}, labels=labels)
    elif y.is_floating_point():
        columns += columns_of("y", y.reshape(len(y), -1), "target")
    found = replace(
        found, columns=tuple(columns), arrays=(array_of("x", x, len(x)),), division=given
    )
    return with_content(found, x, np.arange(len(x)))


def _shared(splits: Splits) -> Iterator[str]:
    """Yield a line for samples that are in two splits."""
    seen: dict[tuple[int, int], tuple[str, str]] = {}
    for kind, every in splits.items():
        for name, split in every.items():
            own, whose = (kind, name), _whose(name)
            shared = [row for row in split.origins() if seen.setdefault(row, own) != own]
            if shared:
                other, owner = seen[shared[0]]
                whom = f" of client {owner}" if other == kind else ""
                yield (
                    f"{len(shared)} {kind} samples{whose} are {other} samples{whom}, too: "
                    "divide the data set (torch.utils.data.random_split)"
                )
