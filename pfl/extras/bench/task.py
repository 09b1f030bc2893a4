"""A task of a benchmark, read from a file: data, network, rounds, shared dimensions."""

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
        caption: One-line description.
        config: Configuration files: network, data, loop, the reference's learning rate and epochs.
        shared: Ranges of the values that are searched for every method, by dotted keys.
        set: Values of dotted keys of the configuration.
        methods: Further settings of single methods, by name.
        tuning_seeds: Seeds of the trials, each with a partition of its own.
        seeded: Dotted keys set to each run's seed, besides those of training and partition.
        score: Score by which settings and rounds are chosen; ``None`` for the main score.
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
    """A task: the content of its file, parsed.

    Attributes:
        path: The file.
        configs: The configuration files.
        dimensions: Dimensions that are searched for every method.
    """

    path: Path
    configs: tuple[Path, ...]
    dimensions: tuple[Dimension, ...]

    @property
    def name(self) -> str:
        """Name of the task: that of its file."""
        return self.path.stem

    def plain(self) -> dict[str, Any]:
        """Return the settings of all methods besides the configuration, for JSON."""
        return {
            "name": self.name,
            "shared": [dimension.plain() for dimension in self.dimensions],
            "tuning_seeds": self.tuning_seeds,
            "score": self.score,
            **({"seeded": self.seeded} if self.seeded else {}),
        }


def read(path: Path) -> BenchTask:
    """Read a task file.

    Raises:
        UsageError: The file is missing or wrong; the message names the line.
    """
    file = YamlFile(path, "task file")
    form: _TaskForm = file.formed(file.content(), _TaskForm)
    if not form.shared:
        raise file.error("expected at least one dimension that all methods share", "shared")
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
