"""One process that runs command after command, watched from outside."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tests.campaign import child

# A message of the program is no longer than this.
LINES = 15
# Seconds in which a command has refused its configuration or begun to train, on a busy machine.
PATIENCE = 60


@dataclass(frozen=True)
class Answer:
    """How a command ended; ``code`` is ``None`` if it was still training when patience ended."""

    code: int | None
    out: str = ""
    err: str = ""
    trace: str | None = None

    def check(self):
        """Refuse every end but a run that works, and a clear message with exit code 2 or 1.

        1 is for runs that fail at work, such as by a learning rate that is too high.
        """
        assert self.trace is None, self.trace
        assert "Traceback" not in self.err, self.err
        assert self.code in (0, 1, 2, None), f"exit {self.code}: {self.err}"
        if self.code:
            lines = self.err.strip().splitlines()
            assert lines, f"exit {self.code} without a word"
            assert len(lines) <= LINES, self.err
            assert "error: " in self.err, self.err


class Server:
    """Runs commands in one process; a process that hangs or dies is replaced."""

    def __init__(self):
        self._process = self._pipe = None

    def run(self, words, folder: Path) -> Answer:
        """Run a command in a folder."""
        if self._process is None:
            self._process, self._pipe = child.start(child.serve)
        self._pipe.send((list(words), str(folder)))
        deadline, trains = time.monotonic() + PATIENCE, False
        while self._pipe.poll(max(0, deadline - time.monotonic())):
            try:
                what, told = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                self.close()
                return Answer(1, trace=f"the process died: {(folder / 'err.txt').read_text()}")
            if what == "done":
                return Answer(*told)
            trains = told if what == "training" else trains
        self.close()
        return Answer(None) if trains else Answer(1, trace="it hangs before its first round")

    def close(self):
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
