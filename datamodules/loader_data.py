"""Loaders, data sets or a LightningDataModule of your own, whose batches have any form."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import lightning as L
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from datamodules.checks import require
from datamodules.loader_split import LoaderSplit, examined, names_of
from datamodules.reader import ClientData
from datamodules.report import Report
from datamodules.tasks.named import AnyTask, task_of
from pfl.core.checks import check_arguments
from pfl.core.data import ClientSplit
from pfl.core.data_view import EmptySplit
from pfl.core.foreign import OwnSteps
from pfl.core.ranges import AtLeastOne, Fraction
from pfl.core.seeds import everything_scoped, generator
from pfl.core.task import Task
from pfl.core.types import DataSplit, Inputs, Split

CPU = torch.device("cpu")
# One client's samples: a loader whose data set and form of batches are used, or a data set.
Loader: TypeAlias = "DataLoader | Dataset"  # type: ignore[type-arg] # the parser refuses Any here


class LoaderData(ClientData):
    """Loaders, data sets or a LightningDataModule of your own, divided by client.

    A LightningModule with its own steps gets batches as the loaders collate them: nested tuples,
    dictionaries, lists of boxes. The framework draws the order of samples; a loader gives its data
    set, its ``collate_fn``, its batch size and whether it shuffles. A network without steps of its
    own needs ``task``, and samples ``(x, y)``.

    Args:
        source: A LightningDataModule; or a list with a loader or a map-style data set for each
            client; or these by the clients' names.
        client: For a LightningDataModule with one loader: what names the client of a sample. A
            function of a sample, a key or an index into it, or the name of a sequence in the data
            set with an entry for each sample. A LightningDataModule whose loaders are lists or
            dictionaries has one for each client.
        val: Validation samples of each client, as ``source`` of lists.
        test: Test samples of each client; one loader is a common test set.
        batch_size: Batch size in training; ``None`` is that of the loaders.
        eval_batch_size: Batch size in validation and testing; ``None`` is ``batch_size``.
        collate_fn: Makes a batch of a list of samples; ``None`` is that of the loaders.
        shuffle: Shuffle the training samples in each epoch; ``None`` is as the loaders do.
        drop_last: Drop the last training batch if it is not full; ``None`` is as the loaders do.
        test_fraction: Fraction of the training samples set aside for testing, where there is no
            test set.
        val_fraction: Fraction of the training samples set aside for validation, where there is no
            validation set.
        split_seed: Seed of these draws.
        task: What a network without steps of its own predicts: a task, the import path of its
            class, or a name.
        outputs: For ``task``: the number of outputs of a network.

    Raises:
        ValueError: The source is no such thing, or a loader draws samples by a sampler of its own,
            whose order would be lost.
    """

    apart: Mapping[str, Sequence[int]] = {}
    metrics: Sequence[Any] = ()
    input_shape: tuple[int, ...] = ()

    def __init__(
        self,
        source: L.LightningDataModule | Sequence[Loader] | Mapping[str, Loader],
        *,
        client: Callable[[Any], Any] | str | int | None = None,
        val: Sequence[Loader] | Mapping[str, Loader] | None = None,
        test: Loader | Sequence[Loader] | Mapping[str, Loader] | None = None,
        batch_size: AtLeastOne | None = None,
        eval_batch_size: AtLeastOne | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        test_fraction: Fraction = 0.2,
        val_fraction: Fraction = 0.0,
        split_seed: int = 1,
        task: AnyTask | None = None,
        outputs: int = 0,
    ) -> None:
        super().__init__()
        self.given = {n: v for n, v in locals().items() if n not in ("self", "__class__")}
        check_arguments(self)
        self.source, self.client, self.test, self.val = source, client, test, val
        self.collate_fn, self.split_seed = collate_fn, split_seed
        self.fractions = {"test": test_fraction, "val": val_fraction}
        self.task: Task = OwnSteps() if task is None else task_of(task)
        self.outputs, self._asked = outputs, (batch_size, eval_batch_size, shuffle, drop_last)

    # What the loop and the engines read.

    @property
    def batch_size(self) -> int:
        """Number of samples in a training batch."""
        return self._asked[0] or int(self._usual("batch_size", 32))

    @property
    def eval_batch_size(self) -> int:
        """Number of samples in a batch of a test."""
        return self._asked[1] or self.batch_size

    @property
    def shuffle(self) -> bool:
        """Whether training samples are shuffled in each epoch."""
        usual = self._usual("shuffles", True)
        return bool(usual if self._asked[2] is None else self._asked[2])

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        usual = self._usual("drop_last", False)
        return bool(usual if self._asked[3] is None else self._asked[3])

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self._splits["train"])

    @property
    def client_names(self) -> Sequence[str]:
        """(N,) names of the clients; empty if they have only numbers."""
        names = [*self._splits["train"]]
        return () if names == [str(number) for number in range(len(names))] else names

    @property
    def num_classes(self) -> int | None:
        """C, if a task with classes is given."""
        return self.outputs if self.task.has_classes else None

    def prepare_data(self) -> None:
        """Let a LightningDataModule download what it needs."""
        if isinstance(self.source, L.LightningDataModule):
            self.source.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Divide the samples; doubts about them are warnings."""
        self.tell()

    @cached_property
    def reading(self) -> Report:
        """A report of the samples, with doubts."""
        usual = inspect.signature(LoaderData).parameters
        shares = {f"{kind}_fraction": share for kind, share in self.fractions.items()}
        shares = {name: share for name, share in shares.items() if share != usual[name].default}
        given = [kind for kind, part in self._parts.items() if part is not None]
        return Report.of(examined(self._splits, shares, given))

    def split(self, client: int, name: DataSplit) -> ClientSplit:
        """Return one split of one client; it may be empty, and there are no public samples.

        Raises:
            ValueError: There is no such client.
        """
        if name == "public":
            return EmptySplit(torch.empty(0), "there are no public samples")
        require(0 <= client < self.num_clients, f"there is no client {client}")
        return [*self._splits[name].values()][client]

    def rows(self, client: int, split: Split) -> Sequence[int]:
        """Return the number of each sample of a client in the data set that it is from."""
        return [*self._splits[split].values()][client].rows

    def pooled_test(self) -> LoaderSplit | None:
        """Return the common test set, if there is one."""
        return self._splits["pooled"].get("")

    def to(self, device: torch.device) -> None:
        """Place the batches of networks on a device; Lightning places those of its own loops."""
        for splits in self._splits.values():
            for split in splits.values():
                split.device = device

    def blank(self, count: int) -> Inputs:
        """Return the inputs of the first samples.

        Raises:
            ValueError: The samples are no pairs of inputs and target.
        """
        inputs: Inputs = self.split(0, "train").batch(torch.zeros(count, dtype=torch.int64)).x
        return inputs

    def description(self) -> dict[str, Any]:
        """Describe the division in plain values, with a hash of sizes and first samples."""
        sizes = {
            kind: {name: len(split) for name, split in splits.items()}
            for kind, splits in self._splits.items()
        }
        hashed = hashlib.sha256(repr(sizes).encode())
        with everything_scoped(0, CPU):
            for split in self._splits["train"].values():
                for leaf in tree_leaves(split.item(torch.zeros(min(1, len(split))).long())):
                    shown = leaf.cpu().numpy().tobytes() if isinstance(leaf, Tensor) else repr(leaf)
                    hashed.update(shown if isinstance(shown, bytes) else shown.encode())
        return {"sizes": sizes, "hash": hashed.hexdigest()[:32]}

    # The division.

    @cached_property
    def _parts(self) -> dict[str, Any]:
        """The source's loaders by split: by name of the client, or one whose samples are named."""
        source = self.source
        if not isinstance(source, L.LightningDataModule):
            return {"train": source, "val": self.val, "test": self.test}
        source.setup("fit")
        parts = {"train": source.train_dataloader()}
        for stage, split in (("validate", "val"), ("test", "test")):
            method = f"{split}_dataloader"
            if getattr(type(source), method) is not getattr(L.LightningDataModule, method):
                source.setup(stage)
                parts[split] = getattr(source, method)()
        return parts

    @cached_property
    def _splits(self) -> dict[str, dict[str, LoaderSplit]]:
        """The splits by kind and name of the client."""
        train = self._of_clients("train")
        require(bool(train), "source has no client: give a loader or a data set for each")
        found = {"train": train, "val": dict[str, LoaderSplit](), "test": dict[str, LoaderSplit]()}
        pooled = {}
        for kind in ("val", "test"):
            part = self._parts.get(kind)
            if kind == "test" and part is not None and _alone(part) and self.client is None:
                pooled, part = {"": self._whole(part, "test")}, None
            elif part is not None:
                found[kind] = self._of_clients(kind)
            if part is None and not (kind == "test" and pooled):
                for name, split in train.items():
                    train[name], found[kind][name] = self._aside(split, name, kind)
            if unknown := found[kind].keys() - train.keys():
                raise ValueError(f"client {min(unknown)} has {kind} samples, but none to train on")
            found[kind] = {n: found[kind].get(n, one.some([])) for n, one in train.items()}
        return {**found, "train": train, "pooled": pooled}

    def _of_clients(self, kind: str) -> dict[str, LoaderSplit]:
        """Return a split of each client."""
        part = self._parts[kind]
        if _alone(part):
            require(
                self.client is not None,
                f"{type(self.source).__name__} has one {kind} loader for all clients: name the "
                "client of a sample with client, such as client='site'",
            )
            whole, rows = self._whole(part, kind), dict[str, list[int]]()
            for row, name in enumerate(names_of(whole, self.client)):
                rows.setdefault(str(name), []).append(row)
            return {name: whole.some(rows[name]) for name in sorted(rows)}
        if isinstance(part, Mapping):
            return {str(name): self._whole(one, kind) for name, one in part.items()}
        return {str(number): self._whole(one, kind) for number, one in enumerate(part)}

    def _whole(self, loader: Any, kind: str) -> LoaderSplit:  # noqa: ANN401
        """Return all samples of a loader or a data set."""
        dataset: Any = loader.dataset if isinstance(loader, DataLoader) else loader
        require(
            hasattr(dataset, "__len__")
            and hasattr(dataset, "__getitem__")
            and not isinstance(dataset, IterableDataset),
            f"{type(dataset).__name__} in {kind} is no map-style data set, which has __len__ and "
            "__getitem__: the order of samples is drawn here",
        )
        collate = self.collate_fn or default_collate
        if isinstance(loader, DataLoader):
            own = type(loader.sampler), type(loader.batch_sampler)
            require(
                isinstance(loader.sampler, RandomSampler | SequentialSampler)
                and loader.batch_sampler is not None
                and type(loader.batch_sampler).__module__.startswith("torch."),
                f"a {kind} loader has the sampler {own[0].__name__} or {own[1].__name__}, but the "
                "order of samples is drawn here: give its data set in its place",
            )
            collate = self.collate_fn or loader.collate_fn
        task = None if isinstance(self.task, OwnSteps) else self.task
        return LoaderSplit(dataset, list(range(len(dataset))), collate, task)

    def _aside(self, split: LoaderSplit, name: str, kind: str) -> tuple[LoaderSplit, LoaderSplit]:
        """Set a fraction of a client's training samples aside."""
        count = round(self.fractions[kind] * len(split))
        order = torch.randperm(len(split), generator=generator(self.split_seed, kind, name))
        chosen, rest = order[:count].sort().values, order[count:].sort().values
        return split.some(rest.tolist()), split.some(chosen.tolist())

    def _usual(self, name: str, default: Any) -> Any:  # noqa: ANN401
        """Return a setting of the training loaders, which must agree in it."""
        part = self._parts["train"]
        loaders = [*part.values()] if isinstance(part, Mapping) else part
        loaders = loaders if isinstance(loaders, Sequence) else [loaders]
        values = {
            isinstance(one.sampler, RandomSampler) if name == "shuffles" else getattr(one, name)
            for one in loaders
            if isinstance(one, DataLoader)
        }
        require(
            len(values) < 2,
            f"the loaders differ in {name} ({', '.join(map(str, sorted(values)))}): give "
            f"{'shuffle' if name == 'shuffles' else name}",
        )
        return next(iter(values), default)


def _alone(part: object) -> bool:
    """Return ``True`` for one loader or data set, and not several."""
    return not isinstance(part, Mapping | list | tuple)
