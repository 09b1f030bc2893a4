"""What an owner lets out of single samples: an epsilon over all runs, kept on the disk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pfl.core.checks import positive, within
from pfl.core.types import Job
from pfl.disk.form import FormError, Least, formed
from pfl.disk.reading import FileError, read_json
from pfl.disk.writing import write
from pfl.engines.transport.clients import Refusal
from pfl.passage import accountant
from pfl.training import separable
from pfl.training.context import Context
from pfl.training.sample_level import steps_of

_PRIVATE = "loop.privacy with level: sample and noise: system"
# With less noise epsilon is large, and takes minutes to compute.
_LEAST_SIGMA = 0.3


@dataclass(frozen=True)
class Spent:
    """Steps that were taken.

    Attributes:
        batches: Steps of an epoch, m: a step has a sample with rate 1 / m.
        sigma: Deviation of their noise, in units of the clip.
        steps: How many there were.
    """

    batches: Annotated[int, Least(1)]
    sigma: float
    steps: Annotated[int, Least(1)]


@dataclass(frozen=True)
class _Account:
    spent: list[Spent]


class Budget:
    """Lets a client take only steps that keep single samples private, up to the owner's epsilon.

    The steps are those of the site's own data and plan, whatever the server says of its run. They
    are written down before they are taken, and add up over all runs: a message that is sent again
    gets other noise.

    Args:
        file: Where the steps that were taken are written.
        epsilon: The largest epsilon that is allowed.
        delta: The delta that it holds for.

    Raises:
        ValueError: A number is out of range, or the file is damaged.
        ModuleNotFoundError: The package ``dp-accounting`` is missing.
    """

    def __init__(self, file: Path, epsilon: float, delta: float) -> None:
        positive(epsilon=epsilon)
        within("(0, 1)", delta=delta)
        accountant.epsilon(1.0, 1.0, 1, delta)  # Without the package, an error now, not in a run.
        self._file, self._epsilon, self._delta = file, epsilon, delta
        self._spent = _read(file)
        self._examined: Context | None = None

    def check(self, run: Mapping[str, Any]) -> None:
        """Refuse a run that does not say that it keeps single samples private.

        Raises:
            Refusal: It does not.
        """
        privacy = run["loop"].get("privacy")
        told = privacy if isinstance(privacy, Mapping) else {}
        if told.get("level") != "sample" or told.get("noise") != "system":
            raise Refusal(f"the owner asks for {_PRIVATE}, but the run has {privacy}")

    def charge(self, context: Context, job: Job) -> None:
        """Write down the steps of a job that is about to train.

        Raises:
            Refusal: Its steps do not keep samples private, or exceed the owner's epsilon.
        """
        level = job.sample_level
        if level is None or not level.system:
            raise Refusal(f"the owner asks for {_PRIVATE}, but round {job.info.round} has {level}")
        if not level.sigma >= _LEAST_SIGMA:
            raise Refusal(f"sigma must be at least {_LEAST_SIGMA} here, got {level.sigma:g}")
        if context is not self._examined and (why := separable.obstacle(context, job)) is not None:
            raise Refusal(f"samples cannot be kept private: {why}")
        self._examined = context
        spent = self._spent.copy()
        for batches, steps in steps_of(context, job.info):
            spent[batches, level.sigma] += steps
        epsilon = self._of(spent)
        # Not the other way round: a comparison with NaN is false.
        if not epsilon <= self._epsilon:
            raise Refusal(
                f"the owner allows epsilon {self._epsilon:g} at delta {self._delta:g}, and with "
                f"round {job.info.round} it would be {epsilon:.4g}"
            )
        lines = [asdict(Spent(*kind, steps)) for kind, steps in sorted(spent.items()) if steps]
        write(self._file, json.dumps({"spent": lines}, indent=1))
        self._spent = spent

    def _of(self, spent: Counter[tuple[int, float]]) -> float:
        parts = ((1 / batches, sigma, steps) for (batches, sigma), steps in spent.items())
        return accountant.of_parts(tuple(parts), self._delta)


def _read(file: Path) -> Counter[tuple[int, float]]:
    spent = Counter[tuple[int, float]]()
    if file.exists():
        try:
            account: _Account = formed(read_json(file), _Account)
        except FormError as error:
            raise FileError(f"{file} is damaged ({error})") from error
        for kind in account.spent:
            spent[kind.batches, kind.sigma] += kind.steps
    return spent
