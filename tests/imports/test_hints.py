"""Declared types: unions keep their order, and functions that are values are told from makers."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch

from pfl.cli import values
from pfl.imports import hints


def test_unions_keep_the_order_in_which_a_parser_tries_them():
    assert get_args(hints.union([str | int, None])) == (str, int, type(None))
    assert get_args(hints.union([int | str, None])) == (int, str, type(None))
    assert get_args(hints.plain_part(str | int | list[torch.nn.Module])) == (str, int)
    assert get_args(hints.plain_part(int | str | list[torch.nn.Module])) == (int, str)


def test_a_value_is_read_in_the_order_of_its_own_type():
    assert values._reader(repr(str | int), str | int).parse_args(["--value=0"]).value == "0"
    assert values._reader(repr(int | str), int | str).parse_args(["--value=0"]).value == 0


@pytest.mark.parametrize(
    ("hint", "is_value"),
    [
        (Callable, True),
        (Callable[[Any], Any], True),
        (Callable[[torch.Tensor], torch.Tensor] | None, True),
        (Callable[[Any], str] | str | int | None, True),
        (Callable[..., torch.optim.Optimizer], False),
        (type[torch.optim.Optimizer], False),
        (torch.nn.Module, False),
        (str | int, False),
    ],
)
def test_a_function_is_a_value_where_its_type_does_not_say_what_is_made(hint, is_value):
    assert hints.takes_function(hint) is is_value
