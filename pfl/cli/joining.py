"""The words of a command that lets the clients of another file join a run (``--join``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pfl.cli import known
from pfl.cli.explain import UsageError

FLAG = "--join"


def separated(argv: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return a command's words without the file of the clients that join, and that file.

    Without a configuration, that of the run is added.

    Raises:
        UsageError: The file or the run is not given, or does not exist.
    """
    words = [part for word in argv for part in _parted(word)]
    files = [value for flag, value in pairwise(words) if flag == "--data"]
    named = files and not known.is_class(files[-1]) and Path(files[-1]).exists()
    if FLAG not in words:
        if named:
            raise UsageError(
                f"--data {files[-1]} is a file or a folder: with {FLAG} K its clients join the run"
            )
        return [*argv], None
    if not files or known.is_class(files[-1]):
        raise UsageError(f"{FLAG} needs the file of the clients that join: --data FILE")
    if not named:
        raise UsageError(f"--data {files[-1]}: there is no such file or folder")
    where = [value for flag, value in pairwise(words) if flag == "--ckpt_path"]
    if not where or where[-1] == "last":
        raise UsageError(f"{FLAG} needs the folder of a run: --ckpt_path RUN")
    if not Path(where[-1]).exists():
        raise UsageError(f"there is no checkpoint at {where[-1]}")
    places = [place for place, word in enumerate(words) if word == "--data"]
    taken = {place + more for place in places for more in (0, 1)}
    left = [word for place, word in enumerate(words) if place not in taken]
    if "--config" not in words:
        left = ["--config", str(folder_of(Path(where[-1])) / "config.yaml"), *left]
    return left, Path(files[-1])


def folder_of(checkpoint: Path) -> Path:
    """Return the run folder that ``--ckpt_path`` names, by itself or by a file in it."""
    return checkpoint if checkpoint.is_dir() else checkpoint.absolute().parent.parent


def _parted(word: str) -> list[str]:
    """Return the flag and the value of a word such as ``--data=FILE``; other words as they are."""
    flag, equals, value = word.partition("=")
    return (
        [flag, value] if equals and flag in ("--data", "--config", "--ckpt_path", FLAG) else [word]
    )
