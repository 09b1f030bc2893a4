"""What a method's own test file states of it, for the tests that every method passes.

``FACTS`` in ``tests/lightning_modules/test_<method>.py`` maps each class of the method's file to
its :class:`Facts`. Numbers of floats are those of :func:`pfl.testing.toy.mlp`: its backbone has
5 * 6 + 6 parameters and its head 6 * 3 + 3; D = 6 features, C = 3 classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pfl.core.types import ClientInfo

BODY, HEAD, MEANS = 36, 21, 18
NET = BODY + HEAD

Moved: TypeAlias = "int | tuple[int, int]"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts on a method that tests of all methods check.

    Attributes:
        travels: Beginnings of the names of entries that travel.
        stays: Beginnings of the names of entries that stay with the client.
        extra: Names of what only goes up.
        floats: Number of floats that a participant receives and sends in a round; one number if
            both are equal; a function of the client if clients differ.
        fewer: Options under which promises are checked, where the default takes many steps.
        variants: Options under which the method takes another way through its plan; their numbers
            are recorded too.
        stacks: Options under which it computes in another way, which a stack must follow.
        serves: Options of the server that no plain loop sets, each with the attribute of the server
            that it becomes and a value.
        draws: The entry that holds what the method draws when it is built.
        needs_classes: Whether it refuses tasks without classes.
        needs_parts: Whether it refuses networks without backbone and head.
        not_private: A part of the reason why single samples cannot be kept private with it.
    """

    travels: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    floats: Moved | Callable[[ClientInfo], Moved]
    fewer: Mapping[str, Any] = field(default_factory=dict)
    variants: Sequence[Mapping[str, Any]] = ()
    stacks: Sequence[Mapping[str, Any]] = ()
    serves: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    draws: str | None = None
    needs_classes: bool = False
    needs_parts: bool = False
    not_private: str | None = None


def of_classes(info: ClientInfo) -> int:
    """Return the floats of a row of features and its number for each class of a client."""
    return int((info.label_counts > 0).sum()) * (6 + 1)
