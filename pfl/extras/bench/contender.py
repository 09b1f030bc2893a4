"""A method in a benchmark: its configuration, search space and source."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from pfl.cli import catalogue
from pfl.cli.catalogue import KINDS
from pfl.cli.config import Experiment, as_in_yaml
from pfl.cli.explain import UsageError, as_flags
from pfl.cli.reading import read
from pfl.core.client import ClientModule
from pfl.core.record import MethodRecord
from pfl.core.space import Dimension
from pfl.disk import reading
from pfl.extras.bench import points
from pfl.extras.bench.rows import ALWAYS
from pfl.extras.bench.task import ALL, BenchTask
from pfl.federation import identity
from pfl.imports.hints import declared

# Outputs that the runs of a benchmark do without: they store only their results.
_PLAIN = {
    **{"loop.default_root_dir": None, "loop.name": None, "loop.loggers": None},
    **{"loop.callbacks": None, "loop.progress": False},
}
_OPTIONS = "model.init_args."


@dataclass(frozen=True)
class Contender:
    """A method on a task.

    Attributes:
        task: The task.
        name: Name of the method's class, or its import path.
        overrides: Flags of ``pfl fit`` for all runs.
    """

    task: BenchTask
    name: str
    overrides: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The flags of ``pfl fit`` for the method with its defaults."""
        return [*self.task.words(self.name), *self.overrides]

    @property
    def given(self) -> Mapping[str, Any]:
        """The task's settings for this method alone."""
        return self.task.methods.get(self.name, {})

    def experiment(self, seed: int, settings: Mapping[str, Any], rounds: int | None) -> Experiment:
        """Return a run of the method.

        ``seed`` applies to training, the partition and the task's ``seeded`` keys; ``rounds``
        defaults to the task's.

        Raises:
            UsageError: The configuration is wrong.
        """
        keys = ("seed", "data.init_args.split_seed", *self.task.seeded)
        length = {} if rounds is None else {"loop.rounds": rounds}
        more = as_flags({**settings, **dict.fromkeys(keys, seed), **length, **_PLAIN})
        try:
            return Experiment.of(read("fit", [*self.words, *more], usual=self.task.usual))
        except SystemExit as ended:
            raise UsageError("flags such as --help or --print_config start no run") from ended

    @cached_property
    def default(self) -> Experiment:
        """The method with its defaults and the first seed of the trials."""
        try:
            return self.experiment(self.task.tuning_seeds[0], {}, None)
        except UsageError as error:
            raise UsageError(f"{self.task.path}: {self.name}: {error}") from error

    @cached_property
    def stated(self) -> Mapping[str, Any]:
        """What the task states of the configuration, without seeds; defaults are left out."""
        words = [*self.words, *as_flags(_PLAIN)]
        described = Experiment.of(read("fit", words, usual=self.task.usual), defaults=False)
        stated = described.values
        for key in ("seed", "data.init_args.split_seed", *self.task.seeded):
            stated.pop(key, None)
        text = described.parser.dump(stated, skip_validation=True)
        return reading.mapping_of_yaml(text, "the task")

    @cached_property
    def method(self) -> type[ClientModule]:
        """The method's class."""
        method: type[ClientModule] = catalogue.find(self.default.values.model.class_path)
        return method

    @property
    def identifier(self) -> str:
        """Name of the class, or its import path if it is not of this project."""
        return identity.class_name(f"{self.method.__module__}.{self.method.__name__}")

    @cached_property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The shared dimensions, by dotted keys, then the method's own."""
        of_method = {_OPTIONS + one.name: one for one in self.method.space()}
        shared = {one.name: one for one in self.task.dimensions if self._takes(one.name)}
        # A method's own range for a shared dimension keeps the dimension's place in the sequence.
        return tuple(replace(one, name=key) for key, one in {**shared, **of_method}.items())

    def _takes(self, key: str) -> bool:
        """Return ``True`` unless a key is an argument that the method lacks."""
        name, method = key.removeprefix(_OPTIONS), cast(type, self.method)
        return name == key or name.partition(".")[0] in declared(method)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Reject settings that are outside the method's search space.

        Raises:
            UsageError: A key is not a dimension, or a value is outside its range.
        """
        known = {one.name: one for one in self.dimensions}
        for key, value in settings.items():
            if key not in known:
                raise UsageError(f"{self.name}: {key} is not a dimension of its search space")
            if not known[key].holds(value) and value != self._defaults.get(key):
                raise UsageError(f"{self.name}: {key}: {value!r} is outside its range")

    @cached_property
    def source_hash(self) -> str:
        """Hash of the source files of the method's class and of its base methods."""
        base = catalogue.find(KINDS["methods"])
        methods = [one for one in self.method.__mro__ if issubclass(one, base) and one is not base]
        files = [Path(inspect.getfile(one)).read_bytes() for one in methods]
        return hashlib.sha256(b"\0".join(dict.fromkeys(files))).hexdigest()[:32]

    def trials(self, count: int) -> list[dict[str, Any]]:
        """Return the settings of all trials; the first are the method's defaults."""
        return [self._defaults, *points.settings(self.dimensions, count)]

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        values = self.default.values
        names = [one.name for one in self.dimensions if one.name in values]
        return {name: as_in_yaml(values[name]) for name in names}


def _suits(method: type | None) -> bool:
    """Return ``True`` unless a method's record says that it needs a network of another kind."""
    record: MethodRecord | None = getattr(method, "record", None)
    return record is None or record.shown is not None


def contenders(task: BenchTask, names: Sequence[str], overrides: Sequence[str]) -> list[Contender]:
    """Return the named methods and those of every table, without duplicates.

    ``all`` selects those shown by ``pfl list methods``, without those whose record says that they
    need a network of another kind. ``overrides`` are flags of ``pfl fit`` for all runs.

    Raises:
        UsageError: A method is unknown, or its configuration is wrong.
    """
    by_identifier: dict[str, Contender] = {}
    known = []
    if ALL in names:
        methods, listed = catalogue.classes(), catalogue.listed("methods")
        known = [item.name for item in listed if _suits(methods.get(item.name))]
    for name in (*ALWAYS, *known, *(name for name in names if name != ALL)):
        one = Contender(task, name, tuple(overrides))
        by_identifier.setdefault(one.identifier, one)
    return list(by_identifier.values())
