"""Messages are compared by what they must name, so that rewording one changes no test."""

import re

import pytest


def parts(text: str) -> str:
    """Return the pattern of a message that holds some parts in this order.

    Args:
        text: The place, the key, what was given and what would be right; `` ~ `` stands for any
            words between them.
    """
    return "(?s)" + ".*?".join(map(re.escape, text.split(" ~ ")))


def refuses(make, right: str, **wrong) -> None:
    """Check that a number out of range is refused by the argument's name, the range and the number.

    Args:
        make: What takes the arguments.
        right: The range, in the words of :mod:`pfl.core.checks`: ``negative`` for those that must
            not be.
        wrong: The number by argument, or a tuple of them; each is passed alone.
    """
    for name, values in wrong.items():
        for value in values if isinstance(values, tuple) else (values,):
            with pytest.raises(ValueError, match=parts(f"{name} ~ {right} ~ {value}")):
                make(**{name: value})


def says(said: str, text: str) -> bool:
    """Return whether an output holds some parts in this order (see :func:`parts`)."""
    return re.search(parts(text), said) is not None
