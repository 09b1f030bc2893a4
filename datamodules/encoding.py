"""The text of a file: its encoding, by its content, and the line that converts another."""

from __future__ import annotations

from pathlib import Path

from datamodules import formats
from datamodules.checks import require


def decode(path: Path, converted: str = "table.csv") -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark, packed or not.

    Args:
        path: The file.
        converted: Name of the converted file in the advice.

    Raises:
        ValueError: It is no such file; the message says what it is, and how to convert it.
    """
    content, name = formats.content(path)
    if name == "UTF-16":
        with formats.reading(path, "is UTF-16, and is damaged", cure="copy it again"):
            text = content.decode("utf-16")
    else:
        require(not name, f"{path} is no text: {formats.advice(name, path)}")
        text = _of_utf8(path, content, converted)
    few = 4 * text.count("\0") < len(text)
    advice = (
        f"{text.count(chr(0))} of them, in line {text[: text.find(chr(0))].count(chr(10)) + 1} "
        "first, where it was cut off or overwritten: copy it again"
        if few
        else f"if it is UTF-16: iconv -f utf-16le -t utf-8 {path} > {converted}"
    )
    require("\0" not in text, f"{path} is not text: it has a NUL character; {advice}")
    return text


def _of_utf8(path: Path, content: bytes, converted: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        if b"\0" in content[: formats.HEAD]:
            raise ValueError(f"{path} is not text: it has bytes of a format of its own") from error
        around = content[max(0, error.start - 15) : error.start + 10].decode("cp1252", "replace")
        what = f"line {line} has the byte 0x{byte:02x} ({around!r} in Windows' encoding)"
        advice = f"convert it: iconv -f cp1252 -t utf-8 {path} > {converted}"
        # Converted as a whole, these lines would be spoilt.
        if any(_is_utf8(one) for one in content.splitlines() if not one.isascii()):
            advice = (
                "other lines are UTF-8, as if two files were joined: convert the one in Windows' "
                "encoding (iconv -f cp1252 -t utf-8), and join them again"
            )
        raise ValueError(f"{path} is not UTF-8 text: {what}; {advice}") from error


def _is_utf8(line: bytes) -> bool:
    return line.decode("utf-8", "ignore").encode() == line
