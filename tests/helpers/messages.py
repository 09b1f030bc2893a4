"""Messages are compared by their essential parts, so that rewording one changes no test."""

import re

import pytest


def parts(text: str) -> str:
    """Return the pattern of a message that contains some parts in this order.

    Args:
        text: The place, the key, the given value and the right one; `` ~ `` stands for any words
            between them.
    """
    return "(?s)" + ".*?".join(map(re.escape, text.split(" ~ ")))


def refuses(make, right: str, **wrong) -> None:
    """Check that the error for a number out of range names the argument, the range and the number.

    Args:
        make: The callable that takes the arguments.
        right: The range, in the words of :mod:`pfl.core.checks`; ``negative`` for numbers that must
            not be negative.
        wrong: The number by argument, or a tuple of them; each is passed alone.
    """
    for name, values in wrong.items():
        for value in values if isinstance(values, tuple) else (values,):
            with pytest.raises(ValueError, match=parts(f"{name} ~ {right} ~ {value}")):
                make(**{name: value})


def says(said: str, text: str) -> bool:
    """Return whether an output contains some parts in this order (see :func:`parts`)."""
    return re.search(parts(text), said) is not None
