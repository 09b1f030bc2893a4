"""Closing the callbacks of an interrupted run."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pfl.callbacks.analysis import Analysis
from pfl.callbacks.checkpoint import Checkpoint
from pfl.core.failure import error_line
from pfl.federation.run import Callback, Run


def interrupt(
    run: Run, waiting: Iterable[Callback], callbacks: Iterable[Callback], cause: BaseException
) -> None:
    """Let each callback close an interrupted run, even if another one fails.

    Args:
        run: The run.
        waiting: The callbacks that have not been called after its last round.
        callbacks: The callbacks to close.
        cause: What interrupted the run.
    """

    def turn(callback: Callback) -> tuple[bool, bool]:
        return not isinstance(callback, Analysis), not isinstance(callback, Checkpoint)

    # A resume continues after the last round, so callbacks that have not seen it get it first. The
    # run is saved before others close, which may wait for a network until they are interrupted.
    for callback in waiting:
        if run.latest is not None and not isinstance(callback, Checkpoint):
            with _closing(callback, cause):
                callback.on_round_end(run, run.latest)
    for callback in sorted(callbacks, key=turn):
        with _closing(callback, cause):
            callback.on_interrupt(run)


@contextmanager
def _closing(callback: Callback, cause: BaseException) -> Iterator[None]:
    """Turn errors of a callback, and further interruptions, into a warning."""
    try:
        yield
    except BaseException as error:
        # A full disk both ends a run and prevents saving it: report it once.
        if error_line(error) != error_line(cause):
            warnings.warn(
                f"{callback.name} could not close the run: {error_line(error)}", stacklevel=4
            )
