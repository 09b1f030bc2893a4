"""Child processes that end with their parent, even if it is killed.

``python -m pfl.extras.sites.child COMMAND...`` runs a command in its own process group.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

END_SECONDS = 20.0


def start_child(
    command: Sequence[str], log: IO[bytes], env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command that ends with this process but ignores Ctrl-C.

    Raises:
        FileNotFoundError: Its program is not installed.
    """
    # Programs installed beside this Python come first.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if shutil.which(command[0], path=path) is None:
        raise FileNotFoundError(
            f"there is no program {command[0]}: pip install 'pfl-lightning[flower]', or [nvflare]"
        )
    return subprocess.Popen(
        [sys.executable, "-m", "pfl.extras.sites.child", *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**os.environ, "PATH": path, **env},
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a child process, and wait for it."""
    process.terminate()
    try:
        process.wait(2 * END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _run(command: Sequence[str]) -> int:
    parent = os.getppid()

    def leave(number: int, frame: FrameType | None) -> Any:  # noqa: ANN401
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while process.poll() is None and os.getppid() == parent:
            time.sleep(0.2)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
    return process.returncode


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
