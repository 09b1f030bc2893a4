"""A task of a benchmark, read from a file: data, network, rounds, shared dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pfl.cli import shipped
from pfl.cli.explain import as_flags
from pfl.cli.yaml_file import YamlFile
from pfl.core.space import Dimension

# Selects every method.
ALL = "all"
# The method of a baseline's configuration.
_CLASS = re.compile(r"^model:\n  class_path: (\w+)$", re.MULTILINE)


def file_of(word: str) -> Path:
    """Return a task's file, given by path or by the name of a shipped one."""
    if not Path(word).suffix and not word.startswith("bench/"):
        word = f"bench/{word}"
    return Path(shipped.config(word))


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

    @property
    def usual(self) -> list[str]:
        """The flags of ``pfl fit`` for the task, which those of a method override."""
        configs = [word for file in self.configs for word in ("--config", str(file))]
        return [*configs, *as_flags(self.set)]

    def words(self, method: str) -> list[str]:
        """Return the flags of ``pfl fit`` for a method with its defaults."""
        overlay = _overlays().get(method)
        named = [f"--model={method}"] if overlay is None else ["--config", str(overlay)]
        return [*named, *as_flags(self.methods.get(method, {}))]

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


@cache
def _overlays() -> Mapping[str, Path]:
    """Return the configuration files of shipped baselines, by class name."""
    files = (shipped.root() / "configs" / "baselines").glob("*.yaml")
    named = {file: _CLASS.search(file.read_text(encoding="utf-8")) for file in sorted(files)}
    return {found[1]: file for file, found in named.items() if found}
