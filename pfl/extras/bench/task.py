"""A task of a benchmark, as its file describes it: data, network, rounds, shared dimensions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pfl.cli.yaml_file import YamlFile
from pfl.core.space import Dimension


# The form of the file; see pfl.disk.form.
@dataclass(frozen=True)
class _RangeForm:
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: list[Any] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _TaskForm:
    """The form of the file.

    Attributes:
        caption: One line.
        config: Configuration files: network, data, loop, and the reference's rate and epochs.
        shared: Ranges of the values that are searched for every method, by dotted keys.
        set: Dotted keys of the configuration and their values.
        methods: Further settings of single methods, by their names.
        tuning_seeds: Seeds of the trials, each with a partition of its own.
        seeded: Dotted keys that have the seed of each run, besides those of training and partition.
        score: The score by which settings and rounds are chosen; ``None`` is the data's main one.
        notes: Lines below the table.
    """

    caption: str
    config: str | list[str]
    shared: dict[str, _RangeForm]
    set: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    tuning_seeds: list[Annotated[int, Field(ge=0)]] = field(default_factory=lambda: [1001])
    seeded: list[str] = field(default_factory=list)
    score: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class BenchTask(_TaskForm):
    """A task: the keys of its file, and what they mean.

    Attributes:
        path: The file.
        configs: The configuration files.
        dimensions: What is searched for every method.
    """

    path: Path
    configs: tuple[Path, ...]
    dimensions: tuple[Dimension, ...]

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.stem

    def plain(self) -> dict[str, Any]:
        """Return what counts for all methods besides the configuration, ready for JSON."""
        return {
            "name": self.name,
            "shared": [dimension.plain() for dimension in self.dimensions],
            "tuning_seeds": self.tuning_seeds,
            "score": self.score,
            **({"seeded": self.seeded} if self.seeded else {}),
        }


def read(path: Path) -> BenchTask:
    """Read a task's file.

    Raises:
        UsageError: The file is missing or wrong; the message names the line.
    """
    file = YamlFile(path, "task file")
    form: _TaskForm = file.formed(file.content(), _TaskForm)
    if not form.shared:
        raise file.error("a task needs dimensions that all methods share", "shared")
    file.check_seeds(form.tuning_seeds, "tuning_seeds")
    return BenchTask(
        **vars(form),
        path=path,
        configs=file.configs(form.config, "config"),
        dimensions=tuple(_dimension(file, *item) for item in form.shared.items()),
    )


def _dimension(file: YamlFile, key: str, form: _RangeForm) -> Dimension:
    try:
        return Dimension(key, form.low, form.high, form.log, tuple(form.choices))
    except ValueError as error:
        raise file.error(str(error), "shared", key) from error
