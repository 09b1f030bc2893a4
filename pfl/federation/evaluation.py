"""Evaluations: what is measured after a round, and how results show it.

Personal, global and pooled scores are evaluations of every run (``pfl.federation.models``).
Others are given in ``loop.evaluations``, or join where the data ask for them.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pfl.imports import plugins
from pfl.imports.plugins import Plugin

if TYPE_CHECKING:
    from pfl.core.data import FederatedData
    from pfl.core.server import ServerState
    from pfl.core.sheet import Sheet
    from pfl.core.types import Job
    from pfl.federation.evaluator import Evaluated, Evaluator
    from pfl.federation.run import Row

GROUP = "pfl.evaluations"


def _nothing(score: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Shown:
    """How results show the columns of an evaluation in ``metrics.csv``; they need no torch.

    Attributes:
        name: Of its numbers in the records of a comparison, ``<name>/<heading>``.
        title: Of its table in comparisons, and of its section in reports.
        columns: Returns the table's columns, by their headings, for the runs' main score.
        plain: The headings of columns that are plain numbers; others have the form of the main
            score, such as per cent.
        note: Below that table.
        facts: Columns that a report lists as they are, each with a sentence.
        models: Words for the models that scores are about, by the middle part of their names.
        drawn: Returns whether scores of such models are left to a picture.
    """

    name: str = ""
    title: str = ""
    columns: Callable[[str], Mapping[str, str]] = _nothing
    plain: Collection[str] = ()
    note: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    models: Callable[[str], str | None] = lambda name: None
    drawn: Callable[[str], bool] = lambda name: False


class Measurement:
    """Something that is measured after rounds of one run, and changes nothing in it."""

    def is_due(self, number: int, last: int, regular: bool) -> bool:
        """Return whether it takes place after a round, of a run that ends with the last.

        ``regular`` says whether the models are tested then; see ``loop.evaluate_every``.
        """
        return regular

    def measure(self, tested: Evaluated) -> Row:
        """Return columns of the round's row; numbers of clients are entered in ``tested.rows``."""
        raise NotImplementedError

    def job(self, state: ServerState, client: int) -> Job | None:
        """Return the job that makes a client's personalised model; ``None`` for other clients."""
        return None

    def described(self) -> dict[str, str]:
        """Return lines for the run's header, by topic."""
        return {}

    def sheets(self, row: Row, rows: Mapping[int, Row], names: Sequence[str]) -> list[Sheet]:
        """Return tables of what was measured, for a terminal; ``names`` are the clients'."""
        return []


class Evaluation(Measurement, ABC):
    """A measurement that runs can ask for (``loop.evaluations``), and how results show it.

    A subclass is a frozen dataclass of its options. The entry-point group ``pfl.evaluations`` makes
    it known by its name: to configurations, and with ``shown`` to tables, reports and pictures.

    Attributes:
        shown: How results show its columns.

    Example::

        @dataclass(frozen=True)
        class Spread(Evaluation):
            def measure(self, tested):
                scores = [row["test/personal/acc"] for row in tested.rows.values()]
                return {"spread/acc": max(scores) - min(scores)}
    """

    shown: ClassVar[Shown] = Shown()

    def suits(self, data: FederatedData) -> bool:
        """Return ``True`` if every run on such data has it, without being asked for it."""
        return False

    def bound(self, evaluator: Evaluator) -> Measurement:
        """Return what is measured in one run, before its first round.

        Raises:
            ValueError: It does not suit the run.
        """
        return self


def installed() -> Iterator[type[Evaluation]]:
    """Yield the evaluations of the project's rooms and of plug-ins."""
    yield from (kind for _, kind in _brought().values())


def tables() -> dict[str, Any]:
    """Return the modules of tables that are written on demand, by the names of their flags.

    ``pfl test --<name>`` writes the table ``FILE`` of the group ``pfl.tables`` into a run's folder;
    ``rows(evaluator)`` yields its rows.
    """
    found = ((one.name, one, made) for one, made in plugins.loaded("pfl.tables"))
    return plugins.settle("table", found)


def find(name: str) -> Any:  # noqa: ANN401
    """Return the class of an evaluation by the name of its entry point.

    Raises:
        ValueError: There is none of that name.
    """
    if name not in _brought():
        raise ValueError(f"there is no evaluation {name!r} here")
    return _brought()[name][1]


def of_run(asked: Sequence[Evaluation], data: FederatedData) -> list[Evaluation]:
    """Return the evaluations that are asked for, and others that suit the data."""
    kinds = {type(one) for one in asked}
    unasked = []
    for plugin, kind in _brought().values():
        with plugin.noted():
            if kind not in kinds and (one := kind()).suits(data):
                unasked.append(one)
    return [*asked, *unasked]


def _brought() -> dict[str, tuple[Plugin, type[Evaluation]]]:
    found = []
    for plugin, kind in plugins.loaded(GROUP, Evaluation):
        with plugin.noted():
            plugin.check(isinstance(kind.shown, Shown), "a class whose shown is a Shown")
            found.append((plugin.name, plugin, (plugin, kind)))
    return plugins.settle("evaluation", found)
