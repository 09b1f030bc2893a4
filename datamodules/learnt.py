"""Values learnt by a data module, for reading the data of later clients."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
from pydantic import Field, FiniteFloat
from pydantic.dataclasses import dataclass

from datamodules.checks import require
from datamodules.moments import ColumnMoments
from datamodules.targets import Ints
from pfl.disk.form import STRICT, parsed

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

Deviation: TypeAlias = Annotated[FiniteFloat, Field(gt=0)]
FORMAT = "pfl-transforms-1"


@dataclass(frozen=True, config=STRICT)
class Learnt:
    """Names and moments, as plain values; a data set that learns more has a subclass.

    Attributes:
        task: Name of the task's class.
        class_names: Names of the classes, in the order of their numbers.
        class_weights: Weights of a balanced loss, one for each class; empty without one.
        moments: Means and standard deviations of the columns of each standardised input, by name.
            Means also replace missing values; the deviation of equal values is one.
    """

    task: str
    class_names: list[str]
    class_weights: list[FiniteFloat]
    moments: dict[str, tuple[list[FiniteFloat], list[Deviation]]]

    def content(self) -> dict[str, Any]:
        """Return the values for a file."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Parse the values of a file.

        Raises:
            ValueError: A value is missing or has the wrong type.
        """
        require(content.get("format") == FORMAT, f'it has no "format": "{FORMAT}"')
        return parsed(json.dumps({n: v for n, v in content.items() if n != "format"}), cls)

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
