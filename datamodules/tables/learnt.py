"""Values learnt from a table, for reading the tables of later clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from datamodules.checks import require
from datamodules.learnt import Learnt
from pfl.disk.form import STRICT

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

# Maximum number of distinct values of a category.
MOST_VALUES = 1000


@dataclass(frozen=True, config=STRICT)
class LearntTable(Learnt):
    """What a table adds to :class:`~datamodules.learnt.Learnt`.

    Attributes:
        features: The input columns, in order, each with the values of a category, or ``None`` for a
            quantity.
        class_values: The values of the negative and of the positive class of a binary task; empty
            for another one.
    """

    features: dict[str, Annotated[list[str], Field(max_length=MOST_VALUES)] | None]
    class_values: list[list[str]]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Parse the values of a file.

        Raises:
            ValueError: A value is missing or has the wrong type.
        """
        learnt = super().of(content)
        require(len(learnt.class_values) in (0, 2), "its class_values are not those of two classes")
        return learnt
