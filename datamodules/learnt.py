"""What a data module learnt of its data, by which those of clients that join later are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from datamodules.checks import require
from datamodules.moments import Moments
from datamodules.targets import Ints

FORMAT = "pfl-transforms-1"


@dataclass(frozen=True)
class Learnt:
    """Names, categories and moments, as plain values.

    Attributes:
        task: Name of the task's class.
        class_names: Names of the classes, in the order of their numbers.
        class_weights: Weights of a balanced loss, one for each class; empty without one.
        features: The input columns of a table, in order, each with the values of a category, or
            ``None`` for a quantity.
        moments: Means and standard deviations of the columns of each standardised input, by name.
            Means also replace missing values.
    """

    task: str
    class_names: Sequence[str]
    class_weights: Sequence[float] = ()
    features: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    moments: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Return the values for a file."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Learnt:
        """Return what a file contains.

        Raises:
            ValueError: A value is missing, or is of another kind.
        """
        require(content.get("format") == FORMAT, f'it has no "format": "{FORMAT}"')
        values: dict[str, Any] = {item.name: content.get(item.name) for item in fields(cls)}
        for name, value in values.items():
            require(_is_sound(name, value), f"its {name} is missing or damaged: {str(value)[:60]}")
        return cls(**values)

    def moments_of(self, name: str, shape: tuple[int, ...]) -> Moments:
        """Return the moments of an input, each of a shape.

        Raises:
            ValueError: There are none for this input, or others.
        """
        moments = [np.array(values) for values in self.moments.get(name, ())]
        size = math.prod(shape)
        fit = len(moments) == 2 and all(len(values) == size for values in moments)
        require(fit, f"the run's moments do not fit the {size} columns of {name}")
        means, deviations = (values.reshape(shape) for values in moments)
        return Moments(np.ones(shape, np.int64), means, deviations)

    def check(self, task: str, clients: Sequence[Sequence[Ints]], names: Sequence[str]) -> None:
        """Refuse data of another task, and clients without training or test samples.

        Args:
            task: Name of the data's task.
            clients: Training and test samples of each client.
            names: Names of the clients; empty if they have none.

        Raises:
            ValueError: The data are refused.
        """
        require(task == self.task, f"the task of the run is {self.task}, that of the data {task}")
        for client, held in enumerate(clients):
            require(
                all(len(ids) for ids in held),
                f"{names[client] if names else 'the file'} has {sum(map(len, held))} samples: a "
                "client that joins needs some for training and some for testing",
            )


def _is_sound(name: str, value: object) -> bool:
    match name:
        case "task":
            return isinstance(value, str)
        case "class_names":
            return _texts(value)
        case "class_weights":
            return _numbers(value)
        case "features":
            return isinstance(value, dict) and all(v is None or _texts(v) for v in value.values())
        case _:
            several = [*value.values()] if isinstance(value, dict) else [None]
            return all(isinstance(v, list) and all(map(_numbers, v)) for v in several)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is float and math.isfinite(v) for v in value)
