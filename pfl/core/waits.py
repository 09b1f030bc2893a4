"""What a user waits for: seconds by topic, which add up to all of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Timer


class Waits:
    """A stopwatch.

    Attributes:
        seconds: Seconds by topic, in the order in which they came up.

    Args:
        running: Seconds for which it has been running.
    """

    def __init__(self, running: float = 0.0) -> None:
        self._last = time.perf_counter() - running
        self.seconds: dict[str, float] = {}

    def lap(self, topic: str) -> float:
        """Count the seconds since the last lap to a topic, and return them."""
        now = time.perf_counter()
        lap, self._last = now - self._last, now
        self.seconds[topic] = self.seconds.get(topic, 0.0) + lap
        return lap

    def split(self, rest: str, **seconds: float) -> None:
        """Count the seconds since the last lap to several topics, and what is left to another."""
        left = max(0.0, self.lap(rest) - sum(seconds.values()))
        del self.seconds[rest]
        self.seconds |= {**seconds, rest: left}

    def told(self) -> str:
        """Return the sum, and topics that took a tenth of a second or so."""
        parts = [f"{name} {value:.1f}" for name, value in self.seconds.items() if value >= 0.05]
        return ": ".join([f"{sum(self.seconds.values()):.1f}", *([", ".join(parts)] * bool(parts))])


# Of the command that is running; none in a program of a user's own.
_COMMAND: ContextVar[Waits | None] = ContextVar("_COMMAND", default=None)


@contextmanager
def of_command(is_process: bool) -> Iterator[None]:
    """Watch what the user of a command waits for, in this scope.

    Args:
        is_process: Whether the command is all that the process does; then its start counts too.
    """
    token = _COMMAND.set(Waits(_since_start() if is_process else 0.0))
    try:
        yield
    finally:
        _COMMAND.reset(token)


def lap(topic: str) -> None:
    """Count to a topic what the user of a command has waited for since the last lap."""
    if (waits := _COMMAND.get()) is not None:
        waits.lap(topic)


@contextmanager
def said(what: str, after: float = 1.0) -> Iterator[None]:
    """Say on stderr what the user of a command waits for in this scope, if it takes long.

    Args:
        what: What it is, such as ``reading the data``.
        after: Seconds after which it is said.
    """
    timer = Timer(after, print, [f"{what} ..."], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    if _COMMAND.get() is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def of_run() -> Waits:
    """Return the stopwatch of a run that begins: the command's, or a new one.

    Further runs of a command count from there on.
    """
    if (waits := _COMMAND.get()) is None:
        return Waits()
    _COMMAND.set(Waits())
    return waits


def _since_start() -> float:
    """Return the seconds since this process was started; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0.0
    ticks = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
