"""Arguments that cannot be are refused by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeAlias

import pytest

from pfl.core.checks import (
    known_words,
    within,
)

if TYPE_CHECKING:
    from decimal import Decimal

Form: TypeAlias = Literal["inverse", "log"]
NAN = float("nan")


def test_an_interval_has_the_ends_that_its_brackets_say():
    for interval, fine in {"[0, 1]": (0, 1), "(0, 1]": (1,), "[0, 1)": (0,), "(0, 1)": ()}.items():
        within(interval, mu=0.5, other=None)
        for value in (-0.1, 0, 1, 1.1, NAN):
            if value in fine:
                within(interval, mu=value)
            else:
                message = re.escape(f"mu must lie in {interval}, got {value}")
                with pytest.raises(ValueError, match=message):
                    within(interval, mu=value)


class Base:
    def __init__(self, form: Form = "log", size: int = 1):
        pass


class Kind(Base):
    def __init__(self, part: Literal["head"] | None = None, top: int | Literal["all"] = 1):
        pass


def test_words_are_read_off_the_types_of_a_class_and_its_bases():
    known_words(Kind, {"form": "log", "part": None, "top": 3, "size": "so", "unheard": 1})
    with pytest.raises(ValueError, match=r"form .*inverse, log.*'so'"):
        known_words(Kind, {"form": "so"})
    with pytest.raises(ValueError, match=r"part .*head, None.*'so'"):
        known_words(Kind, {"part": "so"})


def test_types_for_the_type_checker_alone_are_passed_over():
    class Later(Base):
        def __init__(self, form: Form, price: Decimal):
            pass

    known_words(Later, {"form": "log"})
