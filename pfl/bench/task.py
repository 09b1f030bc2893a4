"""A task of a benchmark, as its file describes it: data, network, rounds, shared dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pfl.cli import shipped
from pfl.cli.explain import UsageError
from pfl.cli.yaml_file import YamlFile
from pfl.core.space import Dimension
from pfl.disk.form import Least


# The form of the file; see pfl.disk.form.
@dataclass(frozen=True)
class _Range:
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: list[Any] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Task:
    caption: str
    config: str | list[str]
    shared: dict[str, _Range]
    set: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    tuning_seeds: list[Annotated[int, Least(0)]] = field(default_factory=lambda: [1001])
    score: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """A task, as its file describes it.

    Attributes:
        path: The file.
        caption: One line.
        configs: Configuration files: network, data, loop, and the reference's rate and epochs.
        settings: Dotted keys of the configuration and their values.
        shared: Dimensions that are searched for every method, by dotted keys.
        methods: Further settings of single methods, by their names.
        tuning_seeds: Seeds of the trials, each with a partition of its own.
        score: The score by which settings and rounds are chosen; ``None`` is the data's main one.
        notes: Lines below the table.
    """

    path: Path
    caption: str
    configs: tuple[Path, ...]
    settings: Mapping[str, Any]
    shared: tuple[Dimension, ...]
    methods: Mapping[str, Mapping[str, Any]]
    tuning_seeds: tuple[int, ...]
    score: str | None
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.stem

    def plain(self) -> dict[str, Any]:
        """Return what counts for all methods besides the configuration, ready for JSON."""
        return {
            "name": self.name,
            "shared": [dimension.plain() for dimension in self.shared],
            "tuning_seeds": [*self.tuning_seeds],
            "score": self.score,
        }


def read(path: Path) -> Task:
    """Read a task's file.

    Raises:
        UsageError: The file is missing or wrong; the message names the line.
    """
    file = YamlFile(path, "task file")
    given: _Task = file.formed(file.content(), _Task)
    if not given.shared:
        raise file.error("a task needs dimensions that all methods share", "shared")
    seeds = given.tuning_seeds
    if not seeds or len({*seeds}) < len(seeds):
        raise file.error(
            f"expected one seed or several different ones, got {seeds}", "tuning_seeds"
        )
    names = [given.config] if isinstance(given.config, str) else given.config
    return Task(
        path=path,
        caption=given.caption,
        configs=tuple(_config(file, name) for name in names),
        settings=given.set,
        shared=tuple(_dimension(file, *item) for item in given.shared.items()),
        methods=given.methods,
        tuning_seeds=tuple(seeds),
        score=given.score,
        notes=tuple(given.notes),
    )


def _config(file: YamlFile, name: str) -> Path:
    try:
        return Path(shipped.config(name, file.path.parent))
    except UsageError as error:
        raise file.error(str(error), "config") from error


def _dimension(file: YamlFile, key: str, given: _Range) -> Dimension:
    try:
        return Dimension(key, given.low, given.high, given.log, tuple(given.choices))
    except ValueError as error:
        raise file.error(str(error), "shared", key) from error
