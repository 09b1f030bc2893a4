"""Names written in two ways, for every reader that groups samples by names."""

from __future__ import annotations

from collections.abc import Callable

LOOKS = str.maketrans("eoai", "\u0435\u043e\u0430\u0456")
_BOTH = "count as different"
# What is done to a name, and what a helpful line about it has.
INVISIBLE: list[tuple[str, Callable[[str], str], str]] = [
    ("a zero-width space", lambda name: name + "\u200b", r"\\u200b"),
    ("a soft hyphen", lambda name: name[:1] + "\u00ad" + name[1:], r"\\xad"),
    ("a mark of direction", lambda name: "\u200f" + name, r"\\u200f"),
]
TWINS: list[tuple[str, Callable[[str], str], str]] = [
    ("another case", str.upper, _BOTH),
    ("a space inside", lambda name: name[:1] + "\u00a0" + name[1:], _BOTH),
    (
        "wide letters",
        lambda name: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in name),
        _BOTH,
    ),
    (
        "letters of another script",
        lambda name: name.translate(LOOKS) + ("" if {*name} & {*"eoai"} else "."),
        _BOTH,
    ),
]
