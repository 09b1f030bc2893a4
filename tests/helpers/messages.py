"""Messages are compared by what they must name, so that rewording one changes no test."""

import re


def parts(text: str) -> str:
    """Return the pattern of a message that holds some parts in this order.

    Args:
        text: The place, the key, what was given and what would be right; `` ~ `` stands for any
            words between them.
    """
    return "(?s)" + ".*?".join(map(re.escape, text.split(" ~ ")))
