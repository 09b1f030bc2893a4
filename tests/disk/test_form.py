"""Forms of files: what fits, and the place and the nearest name of what does not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from pfl.disk.form import FormError, formed
from pfl.disk.nearest import hint, nearest
from tests.helpers.messages import parts


@dataclass(frozen=True)
class Inner:
    """A part of a file."""

    word: Literal["one", "two"] | None = None
    counts: list[Annotated[int, Field(ge=2)]] = field(default_factory=list)


@dataclass(frozen=True)
class Outer:
    """A file."""

    name: str
    parts: dict[str, Inner | str | None] = field(default_factory=dict)
    share: float = 0.5
    anything: Any = 3


def test_mappings_become_dataclasses_and_null_is_the_default():
    content = {"name": "x", "parts": {1: {"word": "two"}, "b": "text", "c": None}, "share": None}
    parts = {"1": Inner("two"), "b": "text", "c": None}
    assert formed(content, Outer) == Outer("x", parts, 0.5, 3)
    assert formed({"name": "x", "share": 1, "anything": [None]}, Outer) == Outer("x", {}, 1, [None])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "keys and values ~ []"),
        ({}, "'name' ~ missing"),
        ({"name": None}, "name: ~ text ~ None"),
        ({"name": "x", "shares": 1}, "shares: ~ 'share'"),
        ({"name": "x", 3: 1}, "3: ~ name, parts, share, any"),
        ({"name": "x", "share": True}, "share: ~ number ~ True"),
        ({"name": "x", "parts": {"a": 3}}, "parts.a: ~ keys and values or a text ~ 3"),
        ({"name": "x", "parts": {"a": {"word": "tow"}}}, "parts.a.word: ~ one, two"),
        (
            {"name": "x", "parts": {"a": {"counts": [2, 1]}}},
            "parts.a.counts.1: ~ least 2",
        ),
        ({"name": "x", "parts": {"a": {"counts": [2.0]}}}, "whole number, at least 2 ~ 2.0"),
        ({"name": "x", "parts": {"a": {"counts": [True]}}}, "whole number, at least 2 ~ True"),
    ],
)
def test_the_place_of_a_mistake_is_named(content, message):
    with pytest.raises(FormError) as caught:
        formed(content, Outer)
    assert re.search(parts(message), str(caught.value))
    place = ".".join(caught.value.keys)
    assert str(caught.value) == f"{place}: {caught.value.what}".removeprefix(": ")


def test_a_near_word_is_named():
    with pytest.raises(FormError, match=parts("'maximise' ~ 'maximize'")):
        formed("maximise", Literal["minimize", "maximize"])
    with pytest.raises(FormError, match=parts("clients: ~ 'client")):
        formed({"clients": 1}, dict[Literal["client"], int])


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**5000], ids=["63", "-63", "5000"])
def test_a_number_beyond_64_bits_is_none(number):
    with pytest.raises(FormError, match="whole number"):
        formed(number, int)
    assert formed(2**63 - 1, int) == 2**63 - 1


def test_a_word_is_not_the_number_that_it_equals():
    """In Python, True == 1 == 1.0."""
    for value in (True, 1.0):
        with pytest.raises(FormError, match="one of 1, got "):
            formed(value, Literal[1])
    assert formed(1, Literal[1]) == 1


def test_nearest_names():
    assert nearest("FEDPER", ["fedper", "FedPer"]) == "; did you mean 'FedPer'?"
    assert nearest("acc", ["acd", "ace", "x"], 2) == "; did you mean 'ace' or 'acd'?"
    assert nearest("x", ["loss"]) == ""
    assert hint("x", ["loss", "acc"]) == "; choose from loss, acc"
