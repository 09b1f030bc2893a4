"""The command line with which clients of another file join a run (``--join``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.cli.explain import UsageError, flags, run_folder, without
from pfl.extras.joining import FLAG
from pfl.imports import modules

if TYPE_CHECKING:
    from pfl.cli.config import Experiment
    from pfl.core.sheet import Sheet

# The commands that have it.
_COMMANDS = ("test", "predict", "export")


@dataclass(frozen=True)
class Joining:
    """The clients of a file, which take the place of a run's data.

    Attributes:
        file: The file.
    """

    file: Path

    def apply(self, experiment: Experiment) -> None:
        """Replace an experiment's data by those of the clients."""
        from pfl.extras.joining.experiment import let_join

        let_join(experiment, self.file)

    def sheets(self, experiment: Experiment, source: str) -> list[Sheet]:
        """Let the clients join, and return the tables of what is measured of them."""
        from pfl.extras.joining.experiment import sheets_of_joining

        return sheets_of_joining(experiment, source)


def taken(command: str, argv: Sequence[str]) -> tuple[list[str], Joining | None]:
    """Return a command line without its flags of joining, and the clients that join."""
    words, file = separated(argv) if command in _COMMANDS else ([*argv], None)
    return words, None if file is None else Joining(file)


def separated(argv: Sequence[str]) -> tuple[list[str], Path | None]:
    """Split a command line into words and the file of the clients that join.

    The run's configuration is added if none is given.

    Raises:
        UsageError: The file or the run is missing.
    """
    values = dict(flags(argv))
    file, run = values.get("--data"), values.get("--ckpt_path")
    is_class = file is None or file in modules.named()
    if FLAG not in values:
        if file is not None and not is_class and Path(file).exists():
            raise UsageError(
                f"--data {file} is a file or a folder: with {FLAG} K its clients join the run"
            )
        return [*argv], None
    if file is None or is_class:
        raise UsageError(f"{FLAG} needs the file of the clients that join: --data FILE")
    if not Path(file).exists():
        raise UsageError(f"--data {file}: there is no such file or folder")
    if run is None or run == "last":
        raise UsageError(f"{FLAG} needs the folder of a run: --ckpt_path RUN")
    if not Path(run).exists():
        raise UsageError(f"there is no checkpoint at {run}")
    left = without(argv, lambda flag: flag == "--data")
    if "--config" not in values:
        left = ["--config", str(run_folder(Path(run)) / "config.yaml"), *left]
    return left, Path(file)
