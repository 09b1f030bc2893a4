"""Where a run failed: what it was doing, for which client, and in which line of the method."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from traceback import walk_tb
from typing import TYPE_CHECKING

from pfl.disk.reading import is_memory

if TYPE_CHECKING:
    from pfl.core.types import Job

_NOTE = "pfl: in "
_LONGEST = 400
_NAMED = 10  # clients listed at most
# Packages whose lines say nothing about a method, and ours, whose lines say less than the user's.
_LIBRARIES = (
    *(*sys.stdlib_module_names, "pfl", "torch", "lightning", "lightning_fabric"),
    *("lightning_utilities", "torchmetrics", "torchvision", "numpy"),
)
_OURS = ("lightning_modules", "datamodules")
_ADVICE = "lower data.batch_size, or train fewer clients at a time"


class NonFiniteError(ArithmeticError):
    """Numbers of a client or of the server are no longer finite, and the run has to end."""


class ExplainedError(Exception):
    """An error whose message is complete, so that no notes are added to it."""


class JobError(RuntimeError):
    """A client's job failed in another process; the message names client, phase and line."""


@contextmanager
def during(activity: str) -> Iterator[None]:
    """Add the activity as a note to an error raised in this scope; inner notes come first.

    From Python 3.11 on, tracebacks show such notes.

    Args:
        activity: Such as ``"phase 'local'"``. The first note adds the method's line.
    """
    try:
        yield
    except ExplainedError:
        raise
    except Exception as error:
        line = "" if _notes(error) else line_of(error)
        # As error.add_note does, which Python 3.10 lacks.
        earlier = getattr(error, "__notes__", [])
        error.__notes__ = [*earlier, f"{_NOTE}{activity}{line}"]
        raise


def at_work(jobs: Sequence[Job]) -> str:
    """Describe the round and the clients of some jobs, for :func:`during`."""
    together = " as one stack" if len(jobs) > 1 else ""
    clients = clients_text([job.info.client for job in jobs])
    return f"round {jobs[0].info.round}, {clients}{together}"


def clients_text(clients: Sequence[int]) -> str:
    """Return clients as text: ``client 3``, ``clients 1, 2``, or ten of them and how many more.

    :data:`pfl.core.types.NO_CLIENT` is the common test set.
    """
    if any(client < 0 for client in clients):
        return "the common test set"
    word = "client" if len(clients) == 1 else "clients"
    more = f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else ""
    return f"{word} {', '.join(map(str, clients[:_NAMED]))}{more}"


def failure_line(error: BaseException) -> str | None:
    """Return where and why a run failed, in one line; ``None`` if the error has no notes.

    Example:
        ``round 3, client 5, phase 'local' (mine.py, line 12): KeyError: 'net.head.bias'``
    """
    if isinstance(error, JobError | NonFiniteError):
        return str(error)
    notes = [note.removeprefix(_NOTE) for note in reversed(_notes(error))]
    return f"{', '.join(notes)}: {error_line(error)}" if notes else None


def error_line(error: BaseException) -> str:
    """Return the type and the first line of an error, and advice if memory is exhausted."""
    name, first = type(error).__name__, str(error).strip().partition("\n")[0]
    text = shorten(f"{name}: {first}" if first else name, _LONGEST)
    return f"out of memory ({text}): {_ADVICE}" if is_memory(error) else text


def last_words(log: Path) -> str:
    """Return the last three lines of a log that report failures, or else the last three.

    Empty lines and Ray's marks, which begin with a colon, do not count.
    """
    text = re.sub(r"\x1b\[[\d;]*m", "", log.read_text(errors="replace"))  # without colours
    stripped = map(str.strip, text.splitlines())
    lines = [line for line in stripped if line and not line.startswith(":")]
    failures = [line for line in lines if re.search("error|failed", line, re.IGNORECASE)]
    return " / ".join((failures or lines)[-3:])


def line_of(error: BaseException) -> str:
    """Return `` (<file>, line <n>)``, the innermost line of the user's code, or else of a method.

    It is empty if the error was raised elsewhere.
    """
    return _innermost(error, _OURS) or _innermost(error, ())


def _innermost(error: BaseException, apart: Sequence[str]) -> str:
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in (*_LIBRARIES, *apart):
            place = f" ({_shown(frame.f_code.co_filename)}, line {line})"
    return place


def _shown(file: str) -> str:
    """Return a file's path, relative to the working folder if it lies below."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", [])
    return [note for note in notes if isinstance(note, str) and note.startswith(_NOTE)]
