"""Arguments that cannot be are refused by name."""

from __future__ import annotations

import re
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import pytest
from jsonargparse import ArgumentError, ArgumentParser

from pfl.core.checks import check_arguments, ranges, within, words
from pfl.core.ranges import AtLeastOne, Fraction, NotNegative, Range

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
    def __init__(self, form: Form = "log", size: int = 1, share: Fraction = 0.5) -> None:
        check_arguments(self)


class Kind(Base):
    def __init__(
        self,
        part: Literal["head"] | None = None,
        top: AtLeastOne | Literal["all"] = 1,
        decay: Annotated[float, Range("(0, 1]")] | None = None,
        **options,
    ):
        super().__init__(**options)


def test_words_and_ranges_are_read_off_the_types_of_a_class_and_its_bases():
    assert words(Kind) == {"form": ("inverse", "log"), "part": ("head", None)}
    assert {n: str(one) for n, one in ranges(Kind).items()} == {
        "share": "[0, 1]",
        "top": "[1, inf]",
        "decay": "(0, 1]",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "so"}, "form must be one of inverse, log, got 'so'"),
        ({"part": "so"}, "part must be one of head, None, got 'so'"),
        ({"share": 1.5}, "share must lie in [0, 1], got 1.5"),
        ({"share": NAN}, "share must lie in [0, 1], got nan"),
        ({"decay": 0}, "decay must lie in (0, 1], got 0"),
        ({"top": 0}, "top must be at least 1, got 0"),
    ],
)
def test_constructors_only_assign_and_the_base_checks_words_and_ranges(options, message):
    Kind(form="log", part="head", top=3, size="so", share=1, decay=1.0)
    Kind(top="all", decay=None)
    Marked(decay=None, part=None)
    Marked(decay=1.0, part="head")
    with pytest.raises(ValueError, match=re.escape(message)):
        Kind(**options)


class Marked:
    def __init__(
        self,
        decay: Annotated[float | None, Range("(0, 1]"), "a mark"] = None,
        part: Annotated[Literal["head"] | None, "a mark"] = None,
        several: list[Literal["head"]] = (),
        nothing: None = None,
    ) -> None:
        check_arguments(self)


def test_what_stands_beside_a_union_stands_beside_each_of_its_types():
    assert words(Marked) == {"part": ("head", None)}
    for name, value in {"decay": 0.0, "part": "so"}.items():
        with pytest.raises(ValueError, match=f"^{name} must"):
            Marked(**{name: value})
    with pytest.raises(TypeError, match="decay must be a number"):
        Marked(decay="so")


@pytest.mark.parametrize("value", ["0.5", None, [0.5]])
def test_an_argument_with_a_range_takes_numbers(value):
    with pytest.raises(TypeError, match=re.escape(f"share must be a number, got {value!r}")):
        Kind(share=value)


def test_a_default_and_what_a_class_gives_to_its_base_are_checked_too():
    class OutOfRange(Base):
        def __init__(self, mu: NotNegative[float] = -1.0):
            super().__init__()

    class Doubles(Base):
        def __init__(self, share: float = 0.75):
            super().__init__(share=2 * share)

    with pytest.raises(ValueError, match=r"mu must not be negative, got -1\.0"):
        OutOfRange()
    with pytest.raises(ValueError, match=r"share must lie in \[0, 1\], got 1\.5"):
        Doubles()


def test_a_constructor_that_is_wrapped_or_names_its_base_is_checked():
    def logged(start):
        @wraps(start)
        def started(self, *args, **options):
            start(self, *args, **options)

        return started

    class Wrapped(Kind):
        @logged
        def __init__(self, mu: NotNegative[float] = 1.0, **options):
            Kind.__init__(self, **options)

    Wrapped(mu=0)
    for wrong in ({"mu": -1}, {"decay": 2}, {"share": 2}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Wrapped(**wrong)


def test_types_for_the_type_checker_alone_are_passed_over_and_the_others_are_checked():
    class Later(Base):
        def __init__(self, price: Decimal, mu: NotNegative[float] = 1.0):
            super().__init__()

    Later(1)
    with pytest.raises(ValueError, match="mu must not be negative"):
        Later(1, mu=-1)


def test_a_parser_reads_the_plain_type_beside_a_range():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Kind, "kind")
    found = parser.parse_args(["--kind.top=2", "--kind.share=0.25", "--kind.decay=null"]).kind
    assert (found.top, found.share, found.decay) == (2, 0.25, None)
    with pytest.raises(ArgumentError, match="share"):
        parser.parse_args(["--kind.share=half"])
    with pytest.raises(ValueError, match="share must lie in"):
        parser.instantiate(parser.parse_args(["--kind.share=2"]))
