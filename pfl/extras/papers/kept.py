"""Find, resume and clean up the stored runs behind a table."""

from __future__ import annotations

import re
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from pfl.cli.explain import UsageError
from pfl.disk import lock
from pfl.extras.papers.plan import PlannedRun
from pfl.federation.resume import FILE
from pfl.results.files import RunError
from pfl.results.runs import RunFolder

# Name of a run folder: its starting time.
_STARTED = re.compile(r"\d{8}-\d{6}(-\d+)?")


def finished(run: PlannedRun) -> Path | None:
    """Return the folder in which a run was finished, or ``None``."""
    return next((f for f in _folders(run) if (f / "summary.json").is_file()), None)


def resumable(run: PlannedRun) -> Path | None:
    """Return the newest folder that a run can be resumed from, or ``None``."""
    return next((f for f in _folders(run) if (f / FILE).is_file()), None)


def clear(run: PlannedRun) -> None:
    """Remove folders of processes that ended before their first checkpoint."""
    for folder in _folders(run):
        kept = any((folder / file).is_file() for file in ("summary.json", FILE))
        if not kept and not folder.is_symlink() and _STARTED.fullmatch(folder.name):
            shutil.rmtree(folder)


def rounds_done(folder: Path) -> int:
    """Count the completed rounds recorded in a run folder."""
    try:
        return RunFolder.read(folder).round
    except RunError:
        return 0


def _folders(run: PlannedRun) -> list[Path]:
    """Return the folders of a run, newest first; they are named by their starting time."""
    home = Path(run.root, run.name)
    return sorted((path for path in home.glob("*") if path.is_dir()), reverse=True)


def locked(root: str | Path, name: str) -> AbstractContextManager[None]:
    """Lock a run against other processes of this machine; see :func:`pfl.disk.lock.locked`.

    Raises:
        UsageError: The folder cannot be made.
    """
    folder = Path(root, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"runs of tables cannot be stored in {root}: {error}") from error
    return lock.locked(folder)
