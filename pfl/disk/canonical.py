"""JSON in one form only, so that equal content has equal bytes and one hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def text(content: Any) -> str:  # noqa: ANN401
    """Return content as readable JSON with sorted keys.

    Raises:
        ValueError: A number is not finite.

    Example:
        >>> print(text({"b": 1, "a": 0.1}), end="")
        {
         "a": 0.1,
         "b": 1
        }
    """
    return json.dumps(content, sort_keys=True, allow_nan=False, indent=1) + "\n"


def digest(content: Any) -> str:  # noqa: ANN401
    """Return a hash of content, 32 characters; the order of keys does not count.

    Raises:
        ValueError: A number is not finite.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    packed = json.dumps(content, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(packed.encode()).hexdigest()[:32]
