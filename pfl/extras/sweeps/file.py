"""Reading and checking a sweep file of ``wandb sweep``.

The keys are those of W&B's schema. Keys that are not supported are refused by name; keys that
matter only to W&B's service are listed as unused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from pfl.cli.yaml_file import YamlFile
from pfl.extras.sweeps.space import Parameter, read_parameter
from pfl.federation.summary import KINDS
from pfl.results.settings import short_names

AtLeastOne = Annotated[int, Field(ge=1)]
# Keys that matter only to W&B's service.
_UNUSED = ("project", "entity", "name", "description", "apiVersion", "kind", "controller")
_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")


@dataclass(frozen=True)
class Metric:
    """The metric that a sweep optimises.

    Attributes:
        name: Name under which a run logs or summarises it.
        goal: Whether more is better or less.
        target: A value at which the search ends.
    """

    name: str
    goal: Literal["minimize", "maximize"] = "minimize"
    target: float | None = None

    @property
    def sign(self) -> int:
        """-1 if more is better, so that a metric times this is to be as small as possible."""
        return -1 if self.goal == "maximize" else 1

    def reached(self, value: float | None) -> bool:
        """Return ``True`` if a value is as good as the target."""
        if self.target is None or value is None:
            return False
        return self.sign * value <= self.sign * self.target


# The forms of the file; see pfl.disk.form.
@dataclass(frozen=True)
class Early:
    """Settings of successive halving; W&B's ``hyperband`` is one bracket of it.

    Attributes:
        min_iter: Number of values of the metric after which runs are first compared; they are
            compared again after ``eta`` times as many, ``eta ** 2`` times as many, and so on.
        eta: The best ``1 / eta`` of the runs that have come so far continue.
        strict: A run is stopped once it falls behind, as in the papers.
    """

    type: Literal["hyperband"]
    min_iter: AtLeastOne
    eta: Annotated[int, Field(ge=2)] = 3
    strict: Literal[True] = True


@dataclass(frozen=True, kw_only=True)
class _SweepForm:
    method: Literal["grid", "random", "bayes"]
    metric: Metric
    parameters: dict[str, Any]
    early_terminate: Early | None = None
    command: list[Any] = field(default_factory=lambda: [*_COMMAND])
    run_cap: AtLeastOne | None = None
    program: str | float = ""


@dataclass(frozen=True, kw_only=True)
class Sweep(_SweepForm):
    """A sweep file: its keys that are used here, and what they mean.

    Attributes:
        path: The file.
        varied: The parameters that are searched, by dotted keys.
        constants: Parameters that are the same for every point.
        unused: Keys of the file that are not used here.
    """

    path: Path
    varied: Mapping[str, Parameter]
    constants: Mapping[str, Any]
    unused: Sequence[str]

    @property
    def short(self) -> dict[str, str]:
        """The short names of the parameters, by which Optuna and people know them."""
        return short_names([*self.varied])

    @property
    def drawn(self) -> dict[str, Any]:
        """The distributions of the parameters, by short names."""
        return {self.short[key]: one.drawn for key, one in self.varied.items()}

    @property
    def size(self) -> int:
        """Number of points of a grid."""
        return math.prod(len(parameter.values) for parameter in self.varied.values())

    def point(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that Optuna's choices stand for, without the constants."""
        return {key: one.decode(params[self.short[key]]) for key, one in self.varied.items()}


def read(path: Path) -> Sweep:
    """Read a sweep file.

    Raises:
        UsageError: The sweep cannot be run; the message names the key.
    """
    reader = YamlFile(path, "sweep file")
    content = reader.content()
    unused = [key for key in content if key in _UNUSED]
    used = {key: value for key, value in content.items() if key not in _UNUSED}
    form: _SweepForm = reader.formed(used, _SweepForm)
    if form.program and not any("${program}" in str(word) for word in form.command):
        unused.append("program")
    if form.early_terminate and form.metric.name.rpartition("/")[2] in KINDS:
        what = f"{form.metric.name} has no value after each round"
        raise reader.error(what, "early_terminate")
    varied, constants = _parameters(reader, form)
    return Sweep(**vars(form), path=path, varied=varied, constants=constants, unused=unused)


def _parameters(reader: YamlFile, form: _SweepForm) -> tuple[dict[str, Parameter], dict[str, Any]]:
    """Return the parameters that are searched, and the values of the constants."""
    every = {
        name: read_parameter(reader, name, content, form.method == "grid")
        for name, content in form.parameters.items()
    }
    constants = {name: one.first for name, one in every.items() if "value" in form.parameters[name]}
    if len(constants) == len(every):
        raise reader.error("there is nothing to search: all are constants", "parameters")
    return {name: one for name, one in every.items() if name not in constants}, constants
