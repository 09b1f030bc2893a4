"""Reading and checking a sweep file of ``wandb sweep``.

The keys are those of W&B's schema. Keys that are not supported are refused by name; keys that
matter only to W&B's service are listed as unused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pfl.cli.yaml_file import YamlFile
from pfl.federation.summary import KINDS
from pfl.sweeps.parameters import read_space
from pfl.sweeps.space import Space

Method = Literal["grid", "random", "bayes"]
# Keys that are used here, and keys that matter only to W&B's service.
_USED = ("method", "metric", "parameters", "early_terminate", "command", "run_cap", "program")
_UNUSED = ("project", "entity", "name", "description", "apiVersion", "kind", "controller")
_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")


@dataclass(frozen=True)
class Metric:
    """The metric that a sweep optimises.

    Attributes:
        name: Name under which a run logs or summarises it.
        maximize: Whether more is better.
        target: A value at which the search ends.
    """

    name: str
    maximize: bool
    target: float | None = None

    @property
    def logged(self) -> bool:
        """``True`` if the metric has a value after each tested round, not only at the end."""
        return self.name.rpartition("/")[2] not in KINDS

    def reached(self, value: float) -> bool:
        """Return ``True`` if a value is as good as the target."""
        if self.target is None:
            return False
        return value >= self.target if self.maximize else value <= self.target


@dataclass(frozen=True)
class Early:
    """Settings of successive halving; W&B's ``hyperband`` is one bracket of it.

    Attributes:
        first: Number of values of the metric after which runs are first compared; they are compared
            again after ``eta`` times as many, ``eta ** 2`` times as many, and so on.
        eta: The best ``1 / eta`` of the runs that have come so far continue.
        last: Number of values after which no run is stopped any more.
    """

    first: int
    eta: int
    last: int | None = None


@dataclass(frozen=True)
class Sweep:
    """A sweep file.

    Attributes:
        path: The file.
        method: How points are chosen.
        metric: The metric to optimise.
        space: The search space.
        command: The command that runs a point, with W&B's macros.
        program: The value of ``${program}``.
        early: When runs are stopped early; ``None`` for never.
        run_cap: Largest number of points.
        unused: Keys of the file that are not used here.
        content: The whole file.
    """

    path: Path
    method: Method
    metric: Metric
    space: Space
    command: Sequence[str]
    program: str
    early: Early | None
    run_cap: int | None
    unused: Sequence[str]
    content: Mapping[str, Any]


def read(path: Path) -> Sweep:
    """Read a sweep file.

    Raises:
        UsageError: The sweep cannot be run; the message names the key.
    """
    reader = YamlFile(path, "sweep file")
    content = reader.content()
    reader.check_keys(content, (*_USED, *_UNUSED))
    method: Method = content.get("method", "none")
    if method not in (methods := get_args(Method)):
        raise reader.error(f"expected one of {', '.join(methods)}, got {method!r}", "method")
    metric = _metric(reader, content)
    command = content.get("command", list(_COMMAND))
    if not isinstance(command, list) or not command:
        raise reader.error(f"expected a list of words, got {command!r}", "command")
    program = str(content.get("program", ""))
    run_cap = content.get("run_cap")
    if run_cap is not None and (not isinstance(run_cap, int) or run_cap < 1):
        raise reader.error(f"expected a whole number, at least 1, got {run_cap!r}", "run_cap")
    unused = [key for key in content if key in _UNUSED]
    if program and not any("${program}" in str(word) for word in command):
        unused.append("program")
    return Sweep(
        path=path,
        method=method,
        metric=metric,
        space=read_space(reader, content, method),
        command=[str(word) for word in command],
        program=program,
        early=_early(reader, content, metric) if "early_terminate" in content else None,
        run_cap=run_cap,
        unused=unused,
        content=content,
    )


def _metric(reader: YamlFile, content: Mapping[str, Any]) -> Metric:
    given = reader.mapping(content, "metric")
    reader.check_keys(given, ("name", "goal", "target"), "metric")
    name, goal, target = given.get("name"), given.get("goal", "minimize"), given.get("target")
    if not isinstance(name, str):
        raise reader.error(f"expected the name of a metric, got {name!r}", "metric", "name")
    if goal not in ("minimize", "maximize"):
        raise reader.error(f"expected minimize or maximize, got {goal!r}", "metric", "goal")
    if target is not None and not isinstance(target, int | float):
        raise reader.error(f"expected a number, got {target!r}", "metric", "target")
    return Metric(name, goal == "maximize", target)


def _early(reader: YamlFile, content: Mapping[str, Any], metric: Metric) -> Early:
    key = "early_terminate"
    given = reader.mapping(content, key)
    if given.get("type") != "hyperband":
        raise reader.error(f"only hyperband is supported, got {given.get('type')!r}", key, "type")
    reader.check_keys(given, ("type", "min_iter", "max_iter", "s", "eta", "strict"), key)
    if given.get("strict") is False:
        what = "false is not supported: a run is stopped once it falls behind, as in the papers"
        raise reader.error(what, key, "strict")
    if not metric.logged:
        raise reader.error(f"{metric.name} has no value after each round", key)
    for name in ("min_iter", "max_iter", "s", "eta"):
        value, least = given.get(name), 2 if name == "eta" else 1
        if value is not None and (not isinstance(value, int) or value < least):
            what = f"expected a whole number, at least {least}, got {value!r}"
            raise reader.error(what, key, name)
    eta, last = given.get("eta", 3), given.get("max_iter")
    if ("min_iter" in given) == (last is not None) or (last is None) != ("s" not in given):
        raise reader.error("give either min_iter, or max_iter and s", key)
    if last is None:
        return Early(given["min_iter"], eta)
    # W&B compares at max_iter / eta, max_iter / eta ** 2, ...: at most s times, never below one.
    first = last
    for _ in range(given["s"]):
        first = first // eta or first
    if first == last:
        raise reader.error(f"max_iter must be at least eta, which is {eta}", key, "max_iter")
    return Early(first, eta, last)
