"""The evaluation of clients that join later, as a run is given it; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pfl.core.checks import at_least_one, not_negative
from pfl.extras.newcomers.shown import SHOWN, UNSEEN
from pfl.federation.evaluation import Evaluation, Shown

if TYPE_CHECKING:
    from pfl.core.data import FederatedData
    from pfl.federation.evaluation import Measurement
    from pfl.federation.evaluator import Evaluator


@dataclass(frozen=True)
class Newcomers(Evaluation):
    """Lets clients that are held out (``data.unseen``) join as the method defines, and tests them.

    They join after the planned last round, and before that as often as asked. Every run on data
    that hold clients out has this evaluation.

    Args:
        every: Rounds from one test of these clients to the next; ``None`` tests them at the end.
        join_rounds: Local rounds of a client that joins, K, by the method's own plan.
        tune_epochs: Largest number of epochs of the baseline that tunes all entries by SGD.

    Raises:
        ValueError: A number is out of its range.
    """

    every: int | None = None
    join_rounds: int = 5
    tune_epochs: int = 20

    shown: ClassVar[Shown] = SHOWN

    def __post_init__(self) -> None:
        at_least_one(every=self.every)
        not_negative(join_rounds=self.join_rounds, tune_epochs=self.tune_epochs)

    def suits(self, data: FederatedData) -> bool:
        """Return ``True`` if the data hold clients out."""
        from pfl.core.data import others

        return bool(others(data).get(UNSEEN))

    def bound(self, evaluator: Evaluator) -> Measurement:
        """Return what is measured in one run.

        Raises:
            ValueError: The data hold no client out.
            MethodError: The server has a model for each member, and none for others.
        """
        from pfl.extras.newcomers.joining import Joining

        return Joining(evaluator, self.every, self.join_rounds, self.tune_epochs)
