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
_MEMORY = "lower data.batch_size, or train fewer clients at a time"
# What to do about errors of torch that do not say it.
_ADVICE = (
    (
        re.compile("same dtype.*(BFloat16|Half)|(BFloat16|Half).*same dtype"),
        "the network's parameters have half precision, and its inputs do not: give it as "
        "net.float(); loop.precision: bf16-mixed computes its steps in half precision",
    ),
    (
        re.compile("Only Tensors created explicitly by the user"),
        "the network holds a computed tensor, as one that is pruned does: make it permanent "
        "(torch.nn.utils.prune.remove) before it is given",
    ),
    (
        re.compile(r"Target -?\d+ is out of bounds"),
        "classes are numbered from 0 to one less than the network's outputs: give its last layer "
        "data.outputs of them",
    ),
)


class NonFiniteError(ArithmeticError):
    """Numbers of a client or of the server are no longer finite, and the run has to end."""


class ExplainedError(Exception):
    """An error whose message is complete, so that no notes are added to it."""


class JobError(RuntimeError):
    """A client's job failed in another process; the message names client, phase and line."""


@contextmanager
def during(activity: str, jobs: Sequence[Job] = ()) -> Iterator[None]:
    """Add the activity as a note to an error raised in this scope; inner notes come first.

    From Python 3.11 on, tracebacks show such notes.

    Args:
        activity: Such as ``"phase 'local'"``. The first note adds the method's line.
        jobs: The jobs that it is for, whose round and clients are put before it; ``activity`` may
            be empty then.
    """
    try:
        yield
    except ExplainedError:
        raise
    except Exception as error:
        line = "" if _notes(error) else line_of(error)
        what = ", ".join(filter(None, (_at_work(jobs) if jobs else "", activity)))
        # As error.add_note does, which Python 3.10 lacks.
        earlier = getattr(error, "__notes__", [])
        told = [] if earlier else [*filter(None, [advice(error)])]
        error.__notes__ = [*earlier, *told, f"{_NOTE}{what}{line}"]
        raise


def _at_work(jobs: Sequence[Job]) -> str:
    """Return the round and the clients of some jobs in words."""
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
    if is_memory(error):
        return f"out of memory ({text}): {_MEMORY}"
    return "; ".join(filter(None, (text, advice(error))))


def advice(error: BaseException) -> str:
    """Return what to do about an error that does not say it itself; empty if nothing is known."""
    return next((how for words, how in _ADVICE if words.search(str(error))), "")


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

    It is empty if neither raised the error.
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
