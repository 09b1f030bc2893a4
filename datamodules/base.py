"""Base class of federated data modules, for the loop and for a plain Trainer."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from lightning.pytorch.utilities.parsing import collect_init_args
from torch.utils.data import DataLoader

from datamodules.augment import Augmentation
from datamodules.checks import require
from datamodules.examined import by_client, completed
from datamodules.learnt import Learnt
from datamodules.partition import artefact
from datamodules.partition.artefact import PLACE
from datamodules.partition.natural import client_names, domain_of_each, warn_of_merging
from datamodules.partition.partitioner import ByDomain, Partitioner
from datamodules.partition.splits import Division, Rule, TestProtocol, divide, natural
from datamodules.partition.unseen import Unseen, later
from datamodules.reader import DataReader
from datamodules.report import Report
from datamodules.targets import Catalogue
from datamodules.tasks.named import AnyTask, LossOptions, task_of
from datamodules.view import Prepared, Store, View, batches, channel_values, checked, count
from pfl.core.checks import check_arguments, positive
from pfl.core.data import MetricSpec
from pfl.core.ranges import AtLeastOne, Range
from pfl.core.types import Batch, DataSplit, Split
from pfl.core.words import Metrics

# Maximum number of domains with their own columns of scores.
_MOST_GROUPS = 12


class FederatedDataModule(DataReader):
    """A data set and its division into clients.

    The images of all clients are one uint8 tensor, and a client's split is an array of row numbers;
    a batch is indexed and normalised as a whole. A subclass implements the abstract methods of
    :class:`~datamodules.reader.DataReader`.

    Attributes:
        given: Arguments of the constructor.

    Args:
        num_clients: Number of clients, N; ``None`` for all natural clients of the data, or those of
            a partition file.
        partition: A partitioner, or the path of a partition file of this data set. The file
            replaces test_protocol, test_fraction, val_fraction, split_seed, max_samples and
            max_train_samples.
        batch_size: Batch size in training.
        eval_batch_size: Batch size in validation and testing.
        drop_last: Drop the last training batch if it is not full, unless it is the only one.
        shuffle: Shuffle the training samples in each epoch. ``False`` keeps their stored order,
            which is drawn once with the split.
        test_protocol: Where a client's test samples come from: ``pooled``, ``future``,
            ``official_classes``, ``matched`` or ``global``; see
            :class:`~datamodules.partition.splits.Rule`.
        test_fraction: Fraction of the samples set aside for testing if no official test set is
            used.
        val_fraction: Fraction of a client's remaining training samples set aside for validation.
        split_seed: Seed of partition and splits, independent of the training seed.
        max_samples: Use at most this many samples of training and test set together, with all
            classes in proportion (for shortened runs).
        max_train_samples: Use at most this many training samples, with all classes in proportion,
            and the whole common test set.
        mean: Mean of each channel of inputs scaled to [0, 1], or one number for all channels.
        std: Standard deviation of each channel, or one number for all channels.
        augment: Random transforms of training batches of images, (n, C, H, W) uint8.
        client: The client whose data a plain Trainer uses; ``None`` combines all clients.
        public: Another data set, whose training samples server and clients may use if the method
            needs them (:attr:`pfl.core.server.Server.public`, a part of a client's plan).
        metrics: Metrics of torchmetrics to compute in addition to the task's own scores: class
            paths, or mappings with ``metric``, a ``name`` and options. Options that follow from the
            task, such as the number of classes, can be left out.
        loss: Options of the task's loss, such as ``{class_weights: balanced}``; see
            :class:`~datamodules.tasks.named.LossOptions`.
        task: What is predicted, if not the usual: a task, the import path of its class, or a name.
            Data whose samples have classes need a task that has classes.
        unseen: Holds clients out of training to join afterwards; see
            :class:`~datamodules.partition.unseen.Unseen`. It replaces the held-out clients of a
            partition file.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        num_clients: AtLeastOne | None,
        partition: Partitioner | Annotated[str, PLACE],
        batch_size: AtLeastOne = 32,
        eval_batch_size: AtLeastOne = 250,
        drop_last: bool = False,
        shuffle: bool = True,
        test_protocol: TestProtocol = "pooled",
        test_fraction: Annotated[float, Range("(0, 1)")] = 0.25,
        val_fraction: Annotated[float, Range("[0, 1)")] = 0.0,
        split_seed: int = 1,
        max_samples: int | None = None,
        max_train_samples: int | None = None,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        augment: Augmentation | None = None,
        client: int | None = None,
        public: FederatedDataModule | None = None,
        metrics: Annotated[Sequence[MetricSpec], Metrics()] = (),
        loss: LossOptions | None = None,
        task: AnyTask | None = None,
        unseen: Unseen | None = None,
    ) -> None:
        super().__init__()
        frames = collect_init_args(sys._getframe(), [], classes=(FederatedDataModule,))
        # Those of a subclass come first, as it may pass on other values.
        self.given = {name: value for frame in frames for name, value in frame.items()}
        check_arguments(self)
        if num_clients is not None and self.published is not None and num_clients > self.published:
            raise ValueError(
                f"num_clients is {num_clients}, but there are only {self.published} samples to "
                "divide"
            )
        self.partition = partition
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.augment = augment
        self.client = client
        self.public = public
        self.metrics = metrics
        self.loss = loss
        self._task = None if task is None else task_of(task)
        self.unseen = unseen
        self.rule = Rule(
            test_protocol, test_fraction, val_fraction, split_seed, max_samples, max_train_samples
        )
        self._num_clients = num_clients
        self._mean = channel_values("mean", self.default_mean if mean is None else mean)
        self._std = channel_values("std", self.default_std if std is None else std)
        positive(std=min(self._std))
        self._learnt: Learnt | None = None

    # For the loop and the engines.

    @property
    def num_clients(self) -> int:
        """Number of clients, N."""
        if self._num_clients is None:
            if isinstance(self.partition, Partitioner):
                named = natural(self.catalogue(), self.rule)
                require(named > 0, "num_clients is required: the data have no natural clients")
                self._num_clients = named
            else:
                self._num_clients = len(self.division.holdings)
        return self._num_clients

    @property
    def apart(self) -> Mapping[str, Sequence[int]]:
        """The clients that are not of the federation, by what they are there for."""
        return self.division.apart

    @cached_property
    def client_names(self) -> Sequence[str]:
        """(N,) names of the clients, such as hospitals; empty if they have only numbers."""
        return client_names(self.contents, self.division)

    def rows(self, client: int, split: Split) -> Sequence[int]:
        """Return the sample numbers of a split in :attr:`contents`, in stored order."""
        ids: list[int] = self.division.holdings[client].of(split).tolist()
        return ids

    @property
    def groups(self) -> tuple[tuple[str, ...], list[int]]:
        """Names of the domains, and each client's domain, for grouped scores.

        Both are empty if the data have no domains or many, or if a client has several.
        """
        return domain_of_each(self.contents, self.division, _MOST_GROUPS)

    @cached_property
    def reading(self) -> Report:
        """A report of the data as read, with doubts and the samples of each client and class."""
        prepared, natural = self._prepared, isinstance(self.partition, ByDomain)
        chosen = isinstance(self.partition, str) and not self.rule.max_samples
        found = completed(self.record(), prepared, self.rule, natural, chosen)
        # Only needed here: what is in use are the transformed ones.
        prepared.raw = {}
        return Report.of(found, *by_client(prepared, self.client_names))

    def setup(self, stage: str | None = None) -> None:
        """Read and divide the data set and the public one; later calls do nothing.

        Doubts about the data are warnings.
        """
        holdings = self.division.holdings
        self.tell()
        if self._learnt is not None:
            held = [(holding.train, holding.test) for holding in holdings]
            self._learnt.check(type(self.task).__name__, held, self.client_names)
        if self.public is not None:
            self.public.prepare_data()
            self.public.setup()

    def split(self, client: int, name: DataSplit) -> View:
        """Return one split of one client, or the public samples; it may be empty.

        Raises:
            ValueError: There is no such client.
        """
        if (found := self._prepared.views.get((client, name))) is not None:
            return found
        if name == "public" and self.public is not None:
            return self.public._loaded("train")
        if name == "public":
            return View(self._prepared.store, torch.empty(0, dtype=torch.int64))
        if not 0 <= client < self.num_clients:
            raise ValueError(f"there is no client {client}, only 0 to {self.num_clients - 1}")
        ids = self.division.holdings[client].of(name)
        return self._prepared.view((client, name), ids, self.augment)

    def pooled_test(self) -> View | None:
        """Return the common test set, or ``None`` if there is none."""
        ids = self.division.pooled_test
        return None if ids is None else self._prepared.view((None, "test"), ids, None)

    @property
    def public_samples(self) -> int:
        """Number of samples of the public data set; zero if there is none."""
        return 0 if self.public is None else len(self.public._loaded("train"))

    def to(self, device: torch.device) -> None:
        """Place batches on ``device``."""
        self._prepared.store.to(device)
        if self.public is not None:
            self.public.to(device)

    @property
    def division(self) -> Division:
        """The samples of each client, by their numbers in :attr:`contents`."""
        return self._prepared.division

    @property
    def contents(self) -> Catalogue:
        """Labels, subclasses and domains of all samples, used or not."""
        return self._prepared.catalogue

    def description(self) -> dict[str, Any]:
        """Describe the partition in plain values: recipe, seed, indices, content hash."""
        return self._prepared.description

    # For a plain Trainer.

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the training batches of ``client``, or of all clients."""
        view = self._loaded("train")
        drop_last = self.drop_last and len(view) >= self.batch_size
        return batches(view, self.batch_size, self.shuffle, drop_last)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the validation batches of ``client``, or of all clients."""
        return batches(self._loaded("val"), self.eval_batch_size)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the test batches of ``client``, of the common test set, or of all clients."""
        return batches(self._loaded("test"), self.eval_batch_size)

    def _loaded(self, name: Split) -> View:
        if self.client is not None:
            return self.split(self.client, name)
        if name == "test" and (pooled := self.pooled_test()) is not None:
            return pooled
        return self._prepared.view((None, name), self.division.of_members(name), self.augment)

    @cached_property
    def _prepared(self) -> Prepared:
        catalogue = self.catalogue()
        division, how = self.divide(catalogue)
        ids = division.samples()
        inputs, rows = self.inputs(ids)
        lookup = np.full(len(catalogue.targets), -1, np.int64)
        lookup[ids] = rows
        values = self.target_values(catalogue, ids)
        targets = values.new_zeros(count(inputs), *values.shape[1:])
        targets[torch.from_numpy(rows)] = values
        ready = checked(inputs, self.fitted(inputs, lookup, division), self.augment)
        store = Store(ready, targets, self._mean, self._std)
        description = artefact.describe(type(self).__name__, catalogue, division, how)
        return Prepared(catalogue, division, description, store, torch.from_numpy(lookup), inputs)

    def divide(self, catalogue: Catalogue) -> tuple[Division, dict[str, Any]]:
        """Divide a catalogue, and return partitioner and rule as plain values, too.

        Raises:
            ValueError: The partition does not fit the catalogue or leaves no test samples.
        """
        if self._learnt is not None:
            self._num_clients = max(1, len(catalogue.domain_names))
            return later(catalogue, self.rule), {}
        if isinstance(self.partition, Partitioner):
            division = divide(catalogue, self.partition, self.num_clients, self.rule)
            warn_of_merging(catalogue, division, isinstance(self.partition, ByDomain))
            how = {"partition": artefact.recipe(self.partition), **vars(self.rule)}
        else:
            division, how = artefact.load(self.partition, catalogue, self._num_clients)
        if self.unseen is not None:
            division = replace(division, apart=self.unseen.apply(catalogue, division))
        division.check_tested()
        return division, how
