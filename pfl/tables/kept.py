"""Find, resume and clean up the stored runs behind a table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import chain
from pathlib import Path

import yaml

from pfl.cli.explain import UsageError
from pfl.core import lock
from pfl.results.files import RunError
from pfl.results.runs import RunFolder
from pfl.tables.plan import PlannedRun, name_of
from pfl.tables.shorten import part_of


def finished(run: PlannedRun) -> Path | None:
    """Return the folder in which a run was finished, or ``None``."""
    return next((f for f in _folders(run) if (f / "summary.json").is_file()), None)


def resumable(run: PlannedRun) -> Path | None:
    """Return the newest folder that a run can be resumed from, or ``None``."""
    return next((f for f in _folders(run) if (f / "checkpoints" / "last.ckpt").is_file()), None)


def clear(run: PlannedRun) -> None:
    """Remove folders of processes that ended before their first checkpoint."""
    for folder in _inside(Path(run.root, run.name)):
        kept = (folder / "summary.json", folder / "checkpoints" / "last.ckpt")
        if not any(file.is_file() for file in kept):
            shutil.rmtree(folder)


def rounds_done(folder: Path) -> int:
    """Count the completed rounds recorded in a run folder."""
    try:
        return RunFolder.read(folder).round
    except RunError:
        return 0


def _folders(run: PlannedRun) -> Iterator[Path]:
    """Yield the folders of a run, including those that earlier versions named differently."""
    own, (alike, _, _) = Path(run.root, run.name), run.name.rpartition("_")
    yield from _inside(own)
    others = (other for other in sorted(Path(run.root).glob(f"{alike}_*")) if other != own)
    for folder in chain.from_iterable(map(_inside, others)):
        if run.name in _names(folder, run.scale):
            yield folder


def _inside(folder: Path) -> list[Path]:
    """Return the run folders in a folder, newest first; they are named by their starting time."""
    return sorted((path for path in folder.glob("*") if path.is_dir()), reverse=True)


def _names(folder: Path, scale: float) -> set[str]:
    """Return the possible names of the run in a folder, from its stored configuration."""
    file = folder / "config.yaml"
    return _read_names(file.resolve(), file.stat().st_mtime_ns, scale) if file.is_file() else set()


@cache
def _read_names(file: Path, changed: int, scale: float) -> set[str]:
    """Return the names for a stored configuration, which is read again only after a change."""
    del changed
    try:
        config = yaml.safe_load(file.read_text("utf-8"))
        noise = json.loads(file.with_name("environment.json").read_text("utf-8")).get("noise")
        names = {name_of(config, noise=noise)}
        limit = config["data"]["init_args"].pop("max_samples", None)
        if scale < 1 and limit is not None:
            # A shortened run stores the number of samples that resulted from its scale.
            partition = json.loads(file.with_name("partition.json").read_text("utf-8"))
            if limit == part_of(partition["samples"], scale):
                names.add(name_of(config, scale, noise))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError):
        # A folder that cannot be read is not one of our runs.
        return set()
    return names


@contextmanager
def locked(root: str | Path, name: str) -> Iterator[None]:
    """Lock a run against other processes of this machine; the lock ends with the process.

    Raises:
        BusyError: Another process is working on the run.
        UsageError: The folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(lock.locked(Path(root, name)))
        except lock.BusyError:
            raise
        except OSError as error:
            raise UsageError(f"runs of tables cannot be stored in {root}: {error}") from error
        yield
