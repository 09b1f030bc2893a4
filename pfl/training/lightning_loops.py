"""Lightning's loops on the batches of a federation: Trainers, their loaders, and calls of them."""

from __future__ import annotations

import copy
import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.warnings import PossibleUserWarning
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader

from pfl.core.constants import as_given
from pfl.core.data import ClientSplit, FederatedData, item
from pfl.core.devices import on_host
from pfl.core.foreign import package_of

# Loggers that tell of every Trainer; a federation makes one for each client and round.
_QUIET = ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric")
# Held while a Trainer sets up its loaders: Lightning replaces ``DataLoader.__init__`` meanwhile,
# and what two threads replace and give back in turn stays replaced.
_LOADERS = threading.RLock()
_KINDS, _REPLACED = (DataLoader, BatchSampler), ("__init__", "__setattr__", "__delattr__")


class Batches:
    """The batches of each epoch, as a loader of Lightning.

    Args:
        read: Returns the samples at some positions.
        epochs: The positions of the batches of each epoch.
        number: Returns the number of the current epoch.
        dataset: The samples, which have a number, as code asks a loader for it.
    """

    def __init__(
        self,
        read: Callable[[Tensor], Any],
        epochs: Sequence[Sequence[Tensor]],
        number: Callable[[], int] = lambda: 0,
        dataset: Sized = (),
    ) -> None:
        self._read, self._epochs, self._number = read, epochs, number
        self.dataset, self.batch_size = dataset, max(map(len, epochs[0]), default=0)

    def __len__(self) -> int:
        return len(self._epochs[0])

    def __iter__(self) -> Iterator[Any]:
        for positions in self._epochs[min(self._number(), len(self._epochs) - 1)]:
            yield self._read(positions)


def derived(base: str, own: object, net: nn.Module) -> Any:  # noqa: ANN401
    """Return an object as one of a class of the Lightning that the module is from."""
    found: Any = import_module(package_of(net))
    for name in base.split("."):
        found = getattr(found, name)
    made = type(type(own).__name__, (type(own), found), {})
    derived: Any = object.__new__(made)
    derived.__dict__ = own.__dict__
    return derived


def make_trainer(net: nn.Module, fabric: Fabric, **options: Any) -> Any:  # noqa: ANN401
    """Return a Trainer of the Lightning that a module is from, on a Fabric's device."""
    # A client's loaders are made here, and one client's are small: what is possible is no news.
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", ".*val_dataloader. but have no .validation_step")
    warnings.filterwarnings("ignore", ".*LeafSpec", module=r".*lightning.*_pytree")
    device = fabric.device
    with _quiet():
        return import_module(package_of(net)).Trainer(
            accelerator="cpu" if on_host(device) else device.type,
            devices=1 if device.index is None else [device.index],
            precision=fabric.strategy.precision.precision,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            **{"logger": False, **options},
        )


def ran(
    verb: Callable[..., Any],
    net: Any,  # noqa: ANN401
    data: FederatedData,
    fabric: Fabric,
    *loaders: Batches,
    **options: Any,
) -> Any:  # noqa: ANN401
    """Call a verb of a Trainer, with the data module that the batches are from; return its answer.

    Raises:
        KeyboardInterrupt: The user interrupts it.
    """
    interrupts = signal.getsignal(signal.SIGINT)
    own, alone = _of_user(data, loaders), Alone()
    cast(Any, verb).__self__.callbacks.append(derived("Callback", alone, net))
    try:
        with _quiet(), alone.held(), as_given(net):
            if own is None:
                return verb(net, *loaders, **options)
            return verb(net, datamodule=own, **options)
    except SystemExit as error:
        # Lightning ends the process when it is interrupted; a federation saves its run first.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupts)
        net.trainer = None
        if not on_host(fabric.device):
            net.to(fabric.device)


def _of_user(data: FederatedData, loaders: Sequence[Any]) -> Any:  # noqa: ANN401
    """Return the user's data module with some loaders in place of its own; ``None`` without one.

    Its other hooks, such as transforms of whole batches, are the user's.
    """
    source = getattr(data, "source", None)
    if not hasattr(source, "on_after_batch_transfer"):
        return None
    shown: Any = copy.copy(source)
    train, *others = loaders
    shown.prepare_data = shown.setup = shown.teardown = lambda *_, **__: None
    shown.train_dataloader = shown.test_dataloader = lambda: train
    shown.val_dataloader = lambda: (others or loaders)[0]
    return shown


def in_order(data: FederatedData, fabric: Fabric, split: ClientSplit) -> Batches:
    """Return the batches of a test, in stored order."""
    chunks = torch.split(torch.arange(len(split)), data.eval_batch_size)
    return Batches(reader(fabric, split, None), [chunks], dataset=split)


def overrides(net: nn.Module, name: str) -> bool:
    """Return ``True`` if a module has a step of its own."""
    base = next(kind for kind in type(net).__mro__ if kind.__name__ == "LightningModule")
    return getattr(type(net), name, None) is not getattr(base, name, None)


def reader(
    fabric: Fabric, split: ClientSplit, rng: torch.Generator | None
) -> Callable[[Tensor], Any]:
    """Return a function that reads samples of a split, with random transforms by ``rng``."""

    def read(positions: Tensor) -> Any:  # noqa: ANN401
        with fabric.autocast():
            return item(split, positions, rng)

    return read


class Alone:
    """A callback that ends the time in which no other Trainer may set up loaders."""

    def __init__(self) -> None:
        self._holds = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock until the loops start, or this scope ends.

        If they never start, as a hook that makes loaders raised, Lightning leaves ``DataLoader``
        and ``BatchSampler`` replaced; here they are given back.
        """
        _LOADERS.acquire()
        self._holds = True
        usual = {(kind, name): getattr(kind, name) for kind in _KINDS for name in _REPLACED}
        try:
            yield
        finally:
            if self._holds:
                for (kind, name), given in usual.items():
                    if getattr(kind, name) is not given:
                        setattr(kind, name, given)
            self._release()

    def _release(self, *_: Any) -> None:
        if self._holds:
            self._holds = False
            _LOADERS.release()

    on_train_start = on_validation_start = on_test_start = _release


class _Quiet:
    """Silences what Lightning tells of each Trainer, as long as one scope is open."""

    def __init__(self) -> None:
        self._lock, self._open = threading.Lock(), 0
        self._levels: dict[logging.Logger, int] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Open a scope, in any thread."""
        with self._lock:
            if self._open == 0:
                self._silence()
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if self._open == 0:
                    for logger, level in self._levels.items():
                        logger.setLevel(level)

    def _silence(self) -> None:
        names = [*_QUIET, *(f"{name}.utilities.rank_zero" for name in _QUIET)]
        self._levels = {(one := logging.getLogger(name)): one.level for name in names}
        for logger, level in self._levels.items():
            logger.setLevel(max(level, logging.WARNING))


_quiet = _Quiet()
