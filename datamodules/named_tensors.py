"""A data set as named tensors: assembly, checks and inference of the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.checks import require
from datamodules.record import Array
from datamodules.targets import Catalogue, Targets, array_digest, plain_name
from datamodules.view import first_not_finite
from pfl.core.task import Binary, Classification, MultiLabel, Regression, Task
from pfl.core.types import Inputs

# Maximum number of classes inferred from labels; more are considered a mistake.
_CLASSES = 1_000_000
# Prefix of the names of columns.
_COLUMN = "column."


@dataclass(frozen=True, eq=False)
class NamedTensors:
    """A whole data set as tensors, official training samples first.

    Attributes:
        inputs: Inputs, (n, ...): ``x``, or several as ``x.<name>``.
        y: Targets, (n, ...), in the form that the task needs.
        task: What is predicted.
        num_train: Number of official training samples.
        class_names: (C,) names of the classes; empty if there are none.
        client: (n,) natural client of each sample, if known.
        columns: (n,) numbers by which samples can be ordered, by name.
    """

    inputs: Mapping[str, Tensor]
    y: Tensor
    task: Task
    num_train: int
    class_names: Sequence[str]
    client: NDArray[Any] | None
    columns: Mapping[str, NDArray[np.float64]]

    @classmethod
    def of(cls, arrays: Mapping[str, Any], task: Task | None) -> NamedTensors:
        """Assemble tensors given by name, as listed in :class:`TensorData`.

        Raises:
            ValueError: A tensor is missing, unknown or unsuitable; the message names it.
        """
        rest = dict(arrays)
        train, test = _popped(rest, "x"), _popped(rest, "x_test")
        given = ", ".join(map(str, arrays)) or "nothing"
        require(
            bool(train) and "y" in rest,
            f"the data need x (or x.<name>) and y, got {given}; give them these names",
        )
        x, y = train, _signed(rest.pop("y"), "y")
        size = len(next(iter(x.values())))
        num_train = int(rest.pop("num_train", size))
        require(0 < num_train <= size, f"num_train is {num_train}, but there are {size} samples")
        if test:
            require("y_test" in rest, "x_test needs y_test")
            require("num_train" not in arrays, "give num_train or x_test, not both")
            y = torch.cat([y, _signed(rest.pop("y_test"), "y_test")])
            # Concatenated, bytes would become floats.
            ours, theirs = ({k.partition(".")[2]: v.dtype for k, v in p.items()} for p in (x, test))
            require(ours == theirs, f"x_test must have the types of x, {ours}, got {theirs}")
            x = {k: torch.cat([v, test[k.replace("x", "x_test", 1)]]) for k, v in x.items()}
        task, y = (_inferred(y) if task is None else task).of_targets(y)
        class_names, client = rest.pop("class_names", None), rest.pop("client", None)
        if not task.has_classes:
            class_names = ()
        elif class_names is None:
            class_names = _class_names(y, task)
        client = None if client is None else _clients(client)
        columns = {
            name.removeprefix(_COLUMN): np.asarray(rest.pop(name), np.float64)
            for name in arrays
            if name.startswith(_COLUMN)
        }
        require(not rest, f"unknown names in the data: {', '.join(rest)}")
        return cls(x, y, task, num_train, [*map(str, class_names)], client, columns)

    @property
    def x(self) -> Inputs:
        """The inputs of a network: one tensor, or several by the name after the dot."""
        several = {name.partition(".")[2]: value for name, value in self.inputs.items()}
        return several.get("", several)

    def parts(self) -> dict[str, Any]:
        """Return everything by name."""
        more = {} if self.client is None else {"client": self.client}
        columns = {f"{_COLUMN}{name}": values for name, values in self.columns.items()}
        return {**self.inputs, "y": self.y, **more, **columns}

    def check(self, incomplete: bool) -> None:
        """Reject tensors of different lengths, and numbers that are not finite.

        ``incomplete`` allows NaN in ``x``.

        Raises:
            ValueError: A tensor is rejected; the message names it.
        """
        size = len(self.y)
        for name, value in self.parts().items():
            last = tuple(value.shape[-1:]) == (size,)
            how = f": if its last axis is that of samples, give moveaxis({name}, -1, 0)" * last
            require(
                len(value) == size,
                f"{name} has {len(value)} samples, but there are {size} targets{how}",
            )
            if name == "x" and incomplete:
                continue
            # Natural clients may have names.
            named = name == "client" and value.dtype.kind != "f"
            bad = None if named else first_not_finite(torch.as_tensor(value))
            how = "; of_targets of a task of yours may number what is missing" * (name == "y")
            require(
                bad is None, f"{name} has values that are not finite, first in sample {bad}{how}"
            )
            channels = (
                name.startswith("x") and Array("", "", tuple(value.shape), 0, 0, True).channels_last
            )
            require(
                not (channels and value.dtype == torch.uint8),
                f"{name} is {tuple(value.shape)}, but images of bytes have their channels before "
                f"height and width: give {name}.permute(0, 3, 1, 2)",
            )

    def catalogue(self, class_names: Sequence[str]) -> Catalogue:
        """Return everything but the inputs."""
        has_classes = self.task.has_classes
        labels = self.y.numpy() if has_classes else np.zeros(len(self.y), np.int64)
        names: tuple[str, ...] = ()
        domains = None
        if self.client is not None:
            clients, domains = np.unique(self.client, return_inverse=True)
            domains, names = domains.astype(np.int64), tuple(map(str, clients))
        targets = Targets(labels, None, domains, self.columns, has_classes)
        arrays = [np.asarray(value) for name, value in self.parts().items() if name != "client"]
        digest = array_digest(*arrays)
        return Catalogue(targets, self.num_train, class_names, (), names, digest)


def _class_names(y: Tensor, task: Task) -> Sequence[str]:
    """Return the numbers of classes as their names."""
    largest = 1 if isinstance(task, Binary) else int(y.max())
    require(
        largest < _CLASSES,
        f"classes must be numbered from 0 to at most {_CLASSES - 1:,}, since a network has an "
        f"output for each; got {largest:,}",
    )
    return [str(number) for number in range(largest + 1)]


def _popped(rest: dict[str, Any], name: str) -> dict[str, Tensor]:
    """Pop the inputs of a name: one tensor, or several, as ``<name>.<...>``."""
    keys = [key for key in rest if key == name or key.startswith(f"{name}.")]
    require(name not in keys or len(keys) == 1, f"give {name} or {name}.<name>, not both")
    return {key: _samples(rest.pop(key), key) for key in keys}


def as_tensor(value: Any, name: str) -> Tensor:  # noqa: ANN401
    """Convert a tensor or an array to a tensor.

    Raises:
        ValueError: It is neither; the message names it.
    """
    value = _as_array(value, name)
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        words = np.asarray(value).dtype.kind in "US"
        how = f"; names, {name} = numpy.unique({name}, return_inverse=True) numbers words"
        raise ValueError(
            f"{name} is not a tensor of numbers: {error}{how if words else ''}"
        ) from error


def _as_array(value: Any, name: str) -> Any:  # noqa: ANN401
    """Return a table's columns or an array as torch reads them, each number as it is.

    Raises:
        ValueError: Values are masked, which torch would not see.
    """
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if not isinstance(value, np.ndarray):
        return value
    require(
        not np.ma.is_masked(value),
        f"{name} is a masked array, and what it masks would count: give {name}.filled(...) with "
        "numbers in their place, or leave these samples out",
    )
    # Of another order of bytes, as files of other machines have.
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def _samples(value: Any, name: str) -> Tensor:  # noqa: ANN401
    tensor = as_tensor(value, name)
    require(
        not tensor.is_complex(),
        f"{name} has complex numbers: give torch.view_as_real({name}), their two parts",
    )
    require(tensor.dim() > 0, f"{name} must have one sample per row, got a single number")
    require(tensor.layout == torch.strided, f"{name} is sparse: give {name}.to_dense()")
    # numpy lacks this type, which the hash of the data needs; values do not change.
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def _clients(value: Any) -> NDArray[Any]:  # noqa: ANN401
    """Return the (n,) natural clients: numbers, or names."""
    clients = np.asarray(value)
    if clients.dtype.kind == "S":
        clients = np.char.decode(clients, "utf-8", "replace")
    require(
        clients.ndim == 1,
        f"client is {clients.shape}: it must be one number or one name for each sample",
    )
    named = clients.dtype.kind != "O" or all(isinstance(name, str) for name in clients)
    require(named, "client must be one number or one name for each sample, none missing")
    if clients.dtype.kind in "OU":
        return np.array([plain_name(name) for name in clients.tolist()])
    return clients


def _signed(value: Any, name: str) -> Tensor:  # noqa: ANN401
    """Convert unsigned integers, for which torch has few operations, to signed ones."""
    y = _samples(value, name)
    if y.dtype not in (torch.uint16, torch.uint32, torch.uint64):
        return y
    require(bool((y.long() >= 0).all()), f"{name} has numbers above {2**63 - 1:,}")
    return y.long()


def _inferred(y: Tensor) -> Task:
    """Return the task that the type of the targets suggests."""
    if y.is_floating_point():
        return Regression()
    require(
        y.dim() < 2 or y.shape[1] > 1,
        f"y is {tuple(y.shape)}: give y[:, 0] for classes, or task: multilabel for one label",
    )
    return MultiLabel() if y.dim() > 1 else Classification()
