"""The measured cost of a run, in processed training samples.

One processed sample is one forward and backward pass of a sample through the task's network.
Operations are counted in matrix products and convolutions: a second network or an inner loop costs
what it computes, a frozen part only its forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from pfl.core.types import Job, Result, Scores
from pfl.engines.sequential import SequentialEngine
from pfl.training import client_round

# Rounds that are measured; all rounds after the first are assumed to cost the same.
ROUNDS = 2


@dataclass(frozen=True)
class RunCost:
    """The cost of a run, in floating-point operations or in processed samples.

    Attributes:
        first: Cost of the first round.
        later: Cost of each later round.
        adapting: Cost of adapting all clients' models once, before a test.
    """

    first: float
    later: float
    adapting: float

    def of(self, rounds: int) -> float:
        """Return the cost of a run of ``rounds`` rounds with a test after the last."""
        return self.first + (rounds - 1) * self.later + self.adapting

    def rounds(self, budget: float) -> int:
        """Return the number of rounds within a budget.

        Example:
            >>> RunCost(first=2, later=3, adapting=1).rounds(10)
            3
        """
        # Rounding must not cost a round.
        left = budget * (1 + 1e-9) - self.first - self.adapting
        return 0 if left < 0 else 1 + int(left // self.later)

    def in_units(self, one: float) -> RunCost:
        """Return the cost in multiples of ``one``."""
        return RunCost(self.first / one, self.later / one, self.adapting / one)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of the floating-point operations of matrix products and convolutions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.operations += count(*args, **(kwargs or {}), out_val=out)
        return out


@dataclass
class CountingEngine(SequentialEngine):
    """A sequential engine that counts the operations of rounds and adaptations.

    Attributes:
        trained: Operations of each call of :meth:`train`, one for each round.
        adapted: Operations of all adaptations in each call of :meth:`test` that adapts.
    """

    trained: list[int] = field(default_factory=list)
    adapted: list[int] = field(default_factory=list)

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""
        self.trained.append(0)
        for job in jobs:
            with _Counting() as counting:
                result = client_round.train(self._contexts.of(job.info.client), job)
            self.trained[-1] += counting.operations
            yield result

    def test(self, jobs: Sequence[Job]) -> Iterator[Scores]:
        """Test each job's model."""
        if any(job.adapts for job in jobs):
            with _Counting() as counting:
                for job in jobs:
                    client_round.become_tested(self._contexts.of(job.info.client), job)
            self.adapted.append(counting.operations)
        return super().test(jobs)

    @property
    def cost(self) -> RunCost:
        """The cost in operations, after a run of :data:`ROUNDS` rounds with a test at the end."""
        first, later = self.trained
        return RunCost(first, later, max(self.adapted, default=0))
