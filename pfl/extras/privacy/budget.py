"""An owner's budget for single samples: an epsilon over all runs, stored beside the data."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from filelock import FileLock
from pydantic import Field
from pydantic.dataclasses import dataclass

from pfl.core.checks import positive, within
from pfl.core.data import FederatedData
from pfl.core.data_view import DataView
from pfl.core.state import each
from pfl.core.types import Inputs, Job
from pfl.disk.form import STRICT, FormError, parsed
from pfl.disk.reading import FileError, text
from pfl.disk.writing import written
from pfl.engines.transport.clients import Refusal
from pfl.extras.privacy import accountant, separable
from pfl.extras.privacy.clip import LEAST_CLIP
from pfl.extras.privacy.privacy import check_delta, check_loss
from pfl.extras.privacy.sample_level import PrivateSamples, steps_of
from pfl.training.context import Context
from pfl.training.gradients import carried

_PRIVATE = "Privacy in loop.uplink, with level: sample and noise: system"
# With less noise epsilon is large and takes minutes to compute; with more it takes hours.
_LEAST_SIGMA, _MOST_SIGMA, _MOST_STEPS = 0.3, 1000.0, 10**6
# Kinds of steps in an account: a server must not fill it with a kind for each round.
_MOST_KINDS = 1000
# The sigmas that are accounted for; a run's counts as the next lower one. Usual ones are exact.
_SIGMAS = [
    *(number / 20 for number in range(6, 20)),  # 0.3, 0.35, ... 0.95
    *(number / 10 for number in range(10, 30)),  # 1, 1.1, ... 2.9
    *(number / 4 for number in range(12, 40)),  # 3, 3.25, ... 9.75
    *map(float, [*range(10, 30), *range(30, 100, 10), 100, 150, *range(200, 1001, 100)]),
]
# Seconds to wait for another site of the same data to charge its steps.
_PATIENCE = 60.0


@dataclass(frozen=True, config=STRICT)
class Spent:
    """Steps already taken.

    Attributes:
        batches: Steps of an epoch, m: a step includes a sample with rate 1 / m.
        sigma: Deviation of their noise, in units of a sample's largest contribution.
        steps: Number of steps.
    """

    batches: Annotated[int, Field(ge=1, lt=2**31)]
    sigma: Annotated[float, Field(ge=_LEAST_SIGMA, le=_MOST_SIGMA)]
    steps: Annotated[int, Field(ge=1, le=_MOST_STEPS)]


@dataclass(frozen=True, config=STRICT)
class _Account:
    spent: Annotated[list[Spent], Field(max_length=_MOST_KINDS)]


def _unseen(data: FederatedData, client: int) -> DataView:
    """Return a view of a site's data with sizes and shapes only; ``client`` has samples."""

    def blank(count: int) -> Inputs:
        first = data.split(client, "train").batch(torch.zeros(1).long())
        return each(lambda value: value.new_zeros(count, *value.shape[1:]), first.x)

    return replace(DataView.of(data), stands_for="data of a site", blank=blank)


class Budget:
    """A limit on a client's training: only sample-private steps, up to the owner's epsilon.

    Steps are derived from the site's own data and plan, not from the server's claims. They are
    recorded before they are taken, and add up over all runs and all sites that share the file: a
    message that is sent again has new noise.

    Args:
        file: File in which steps are recorded.
        epsilon: Largest epsilon that is allowed.
        delta: Delta for this epsilon.
        clip: Clip that a run must have; ``None`` for any.
        sigma: Smallest sigma that a run may have; ``None`` for any.

    Raises:
        ValueError: A number is out of range, or the file is damaged.
        ModuleNotFoundError: The package ``dp-accounting`` is missing.
        OSError: The file cannot be written.
    """

    def __init__(
        self,
        file: Path,
        epsilon: float,
        delta: float,
        clip: float | None = None,
        sigma: float | None = None,
    ) -> None:
        positive(epsilon=epsilon)
        within("(0, 1)", delta=delta)
        within(f"[{LEAST_CLIP}, 1e12]", clip=clip)
        within(f"[{_LEAST_SIGMA}, {_MOST_SIGMA}]", sigma=sigma)
        accountant.epsilon(1.0, 1.0, 1, delta)  # Fail now, not in a run, if the package is missing.
        self._file, self._epsilon, self._delta = file, epsilon, delta
        self._clip, self._sigma = clip, sigma
        self._examined: Context | None = None
        # Report a damaged file or a folder that cannot be written now, not in a round.
        with self._held():
            self._read()

    def check(self, run: Mapping[str, Any]) -> None:
        """Reject a run that does not declare that it keeps single samples private.

        Raises:
            Refusal: There is no such declaration.
        """
        declared = [step.get("init_args") for step in _steps(run) if _class(step) == "Privacy"]
        if not any(_protects(options) for options in declared):
            raise Refusal(f"the owner requires {_PRIVATE}, but the run has {declared or 'none'}")

    def charge(self, context: Context, job: Job) -> None:
        """Record the steps of a job before it trains.

        Raises:
            Refusal: Its steps do not keep samples private, or exceed the owner's epsilon.
        """
        number = job.info.round
        level = carried(job.steps)
        if not isinstance(level, PrivateSamples) or not level.system:
            raise Refusal(f"the owner requires {_PRIVATE}, but round {number} has {level}")
        least = _LEAST_SIGMA if self._sigma is None else self._sigma
        if not least <= level.sigma <= _MOST_SIGMA:
            raise Refusal(
                f"sigma must be at least {least:g} and at most {_MOST_SIGMA:g} here, got "
                f"{level.sigma:g}"
            )
        if self._clip not in (None, level.clip):
            raise Refusal(
                f"the owner requires clip={self._clip:g}, but round {number} has {level.clip:g}"
            )
        if context is not self._examined:
            # Without the owner's samples, on which a refusal must not depend.
            apart = context.replica(context.fabric, _unseen(context.data, job.info.client))
            if (why := separable.unsupported_reason(apart, job)) is not None:
                raise Refusal(f"samples cannot be kept private: {why}")
        self._examined = context
        # A sample adds at most the clip to a step, so that sigma protects it. Less noise than there
        # is gives a larger epsilon, never a smaller one.
        sigma = _SIGMAS[bisect_right(_SIGMAS, level.sigma) - 1]
        taken = Counter[tuple[int, float]]()
        for batches, steps in steps_of(context, job.info):
            taken[batches, sigma] += steps
        while True:
            before = self._read()
            # This may take seconds, in which other sites of the same data need not wait.
            self._check(before + taken, number)
            with self._held():
                if self._read() == before:
                    self._write(before + taken)
                    return

    def _check(self, spent: Mapping[tuple[int, float], int], number: int) -> None:
        """Refuse a round after which an account could not be read, or exceed the epsilon.

        Raises:
            Refusal: It has too many kinds of steps, too many of a kind, or too large an epsilon.
        """
        if len(spent) > _MOST_KINDS:
            raise Refusal(
                f"a site accounts for {_MOST_KINDS} kinds of steps, by sigma and by the batches of "
                "an epoch: use those of earlier rounds"
            )
        if (most := max(spent.values(), default=0)) > _MOST_STEPS:
            raise Refusal(f"a site accounts for {_MOST_STEPS} steps of a kind, got {most}")
        parts = ((1 / batches, sigma, steps) for (batches, sigma), steps in sorted(spent.items()))
        epsilon = accountant.of_parts(tuple(parts), self._delta)
        # Written like this because comparisons with NaN are false.
        if not epsilon <= self._epsilon:
            raise Refusal(
                f"the owner allows epsilon {self._epsilon:g} at delta {self._delta:g}, but "
                f"round {number} would need {epsilon:.4g}"
            )

    def _held(self) -> AbstractContextManager[object]:
        return FileLock(f"{self._file}.lock", _PATIENCE)

    def _read(self) -> Counter[tuple[int, float]]:
        spent = Counter[tuple[int, float]]()
        if (content := text(self._file)) is not None:
            try:
                account = parsed(content, _Account)
            except FormError as error:
                raise FileError(f"{self._file} is damaged ({error})") from error
            for kind in account.spent:
                spent[kind.batches, kind.sigma] += kind.steps
        return spent

    def _write(self, spent: Mapping[tuple[int, float], int]) -> None:
        # The record that is read checks what is written.
        account = _Account([Spent(*kind, steps) for kind, steps in sorted(spent.items())])
        with written(self._file, synced=True) as file:
            file.write(json.dumps(asdict(account), indent=1).encode())


def _steps(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return those declared steps of a run's uplink that have a class."""
    uplink = run["loop"].get("uplink")
    steps = uplink if isinstance(uplink, list) else []
    return [step for step in steps if isinstance(step, Mapping)]


def _class(step: Mapping[str, Any]) -> str:
    return str(step.get("class_path")).rpartition(".")[2]


def _protects(options: object) -> bool:
    given = options if isinstance(options, Mapping) else {}
    return given.get("level") == "sample" and given.get("noise") == "system"


def of_owner(
    data: FederatedData,
    local: int,
    file: Path,
    epsilon: float,
    delta: float,
    clip: float | None,
    sigma: float | None,
) -> Budget:
    """Return the budget of an owner's data, for ``pfl site``.

    Args:
        data: The data.
        local: Index of the client in the data.
        file: As in :class:`Budget`.
        epsilon: As in :class:`Budget`.
        delta: As in :class:`Budget`; below one over the client's samples.
        clip: As in :class:`Budget`.
        sigma: As in :class:`Budget`.

    Raises:
        ValueError: A number is out of range, or the data's loss counts classes.
    """
    samples = len(data.split(local, "train"))
    check_delta("delta", delta, samples, "training samples", "one sample")
    check_loss(data)
    return Budget(file, epsilon, delta, clip, sigma)
