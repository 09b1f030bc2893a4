"""Values learnt by a data module, for reading the data of later clients."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from pydantic import Field, FiniteFloat
from pydantic.dataclasses import dataclass

from datamodules.checks import require
from datamodules.moments import ColumnMoments
from datamodules.targets import Ints
from pfl.disk.form import STRICT, parsed

FORMAT = "pfl-transforms-1"
# Maximum number of distinct values of a category.
MOST_VALUES = 1000


@dataclass(frozen=True, config=STRICT)
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
        class_values: The values of the negative and of the positive class in the table of a binary
            task; empty without one.
    """

    task: str
    class_names: list[str]
    class_weights: list[FiniteFloat]
    features: dict[str, Annotated[list[str], Field(max_length=MOST_VALUES)] | None]
    moments: dict[str, list[list[FiniteFloat]]]
    class_values: list[list[str]]

    def content(self) -> dict[str, Any]:
        """Return the values for a file."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Learnt:
        """Parse the values of a file.

        Raises:
            ValueError: A value is missing or has the wrong type.
        """
        require(content.get("format") == FORMAT, f'it has no "format": "{FORMAT}"')
        learnt = parsed(json.dumps({n: v for n, v in content.items() if n != "format"}), cls)
        require(len(learnt.class_values) in (0, 2), "its class_values are not those of two classes")
        return learnt

    def moments_of(self, name: str, shape: tuple[int, ...]) -> ColumnMoments:
        """Return the moments of an input, reshaped to ``shape``.

        Raises:
            ValueError: There are none for this input, or they have another shape.
        """
        moments = [np.array(values) for values in self.moments.get(name, ())]
        size = math.prod(shape)
        fit = len(moments) == 2 and all(len(values) == size for values in moments)
        require(fit, f"the run's moments do not fit the {size} columns of {name}")
        means, deviations = (values.reshape(shape) for values in moments)
        return ColumnMoments(np.ones(shape, np.int64), means, deviations)

    def check(self, task: str, clients: Sequence[Sequence[Ints]], names: Sequence[str]) -> None:
        """Reject data of another task, and clients without training or test samples.

        ``clients`` has the training and the test samples of each client.

        Raises:
            ValueError: The data are rejected.
        """
        require(task == self.task, f"the task of the run is {self.task}, that of the data {task}")
        for client, held in enumerate(clients):
            require(
                all(len(ids) for ids in held),
                f"{names[client] if names else 'the file'} has {sum(map(len, held))} samples: a "
                "client that joins needs some for training and some for testing",
            )
