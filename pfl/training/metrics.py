"""Scores of one model on one split, and their summary over clients."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torchmetrics import Metric

from pfl.core.criteria import exact
from pfl.core.data import MetricSpec
from pfl.core.ranges import Range
from pfl.core.task import Task
from pfl.core.words import metric_of, not_a_metric
from pfl.imports import plugins
from pfl.imports.trust import CONFIGURATION, TrustError, checked
from pfl.training.defined import PER_TARGET, Measure, Running, UndefinedError, interval

# A score that is summed from many parts may miss its range by its last bits.
_ROUNDING = 1e-6
_SHOWN = 60  # characters of unknown names in a message
HELD_NUMBERS = 2**22
"""Largest number of outputs that are held before they are scored, or only their rows kept."""


class Rows(NamedTuple):
    """What is left of a model's answers on many samples: no outputs, and no targets.

    Attributes:
        rows: (n, K), of :meth:`Task.rows`; or (K,), of :meth:`Task.sums`.
        sound: Whether no output is NaN, as a scalar tensor.
        running: The metrics, which have seen predictions and targets, by name.
    """

    rows: Tensor
    sound: Tensor
    running: Mapping[str, Running]


# Of one model: (n, D, ...) outputs and (n, ...) targets, or what is left of them.
Answer: TypeAlias = tuple[Tensor, Tensor] | Rows


class Collector:
    """Gathers the answers of one model, batch by batch.

    If the task has rows, outputs are held up to :data:`HELD_NUMBERS`, and then only their rows, so
    that memory does not grow with the number of outputs of a sample, and scores have the same bits.
    If it has sums, only these are held, and scores are the same but for last bits.

    Args:
        scorer: Scores the model.
        targets: Returns all targets as they were read, where batches round them.
    """

    def __init__(self, scorer: Scorer, targets: Callable[[], Tensor] | None = None) -> None:
        self._scorer, self._as_read = scorer, targets
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._running: Mapping[str, Running] = {}
        self._numbers, self._seen = 0, 0

    def add(self, outputs: Tensor, y: Tensor) -> None:
        """Add the answers on a batch: (B, D, ...) outputs and (B, ...) targets."""
        self._parts.append((outputs, y))
        self._numbers += outputs.nelement()
        if self._numbers > HELD_NUMBERS and (self._scorer.has_rows or self._scorer.has_sums):
            self._condense()

    @cached_property
    def _targets(self) -> Tensor | None:
        return None if self._as_read is None else self._as_read()

    def answer(self) -> Answer:
        """Return the answers."""
        if self._rows:
            self._condense()
            rows, sound = zip(*self._rows, strict=True)
            left = torch.cat(rows) if self._scorer.has_rows else rows[0]
            return Rows(left, torch.stack(sound).all(), self._running)
        if len(self._parts) == 1:
            ((outputs, y),) = self._parts
        else:
            outputs, y = (torch.cat(parts) for parts in zip(*self._parts, strict=True))
        if y.is_floating_point() and self._targets is not None:
            y = self._targets
        return outputs, y

    def _condense(self) -> None:
        task = self._scorer.task
        if not self._rows:
            self._running = self._scorer.running()
        for outputs, y in self._parts:
            if y.is_floating_point() and self._targets is not None:
                y = self._targets[self._seen : self._seen + len(y)]
            self._seen += len(y)
            # As scores of outputs that are held, which are computed after the batches.
            sound = ~outputs.isnan().any()
            with torch.autocast(outputs.device.type, enabled=False):
                if self._scorer.has_rows:
                    self._rows.append((task.rows(outputs, y), sound))
                else:
                    self._join(task.sums(outputs, y), sound)
            if self._running:
                compared = _compared(task, outputs, y)
                for running in self._running.values():
                    running.add(*compared)
        self._parts, self._numbers = [], 0

    def _join(self, sums: Tensor, sound: Tensor) -> None:
        if self._rows:
            before, all_sound = self._rows[0]
            sums, sound = self._scorer.task.joined(before, sums), all_sound & sound
        self._rows = [(sums, sound)]


class Scorer:
    """Computes the task's scores of models, and metrics of torchmetrics that the user adds.

    Attributes:
        scores_all: Whether it scores each split that has samples.
        better: The names of the scores, the main score first; ``True`` if more is better.
        within: The range of each score; see :meth:`check`.
        added: The names of the metrics, those of the task and those that the user adds.

    Args:
        task: The task.
        outputs: D, the number of outputs of the network.
        added: Class paths of metrics, or mappings with ``metric``, ``name`` and options. One with
            the name of a metric of the task replaces it.

    Raises:
        ValueError: A path is not a metric, a metric does not suit the task, or two scores have the
            same name.
    """

    scores_all: ClassVar[bool] = True

    def __init__(self, task: Task, outputs: int, added: Sequence[MetricSpec] = ()) -> None:
        self.task = task
        self.has_rows = type(task).rows is not Task.rows
        self.has_sums = type(task).sums is not Task.sums
        self._metrics: dict[str, Measure] = {}
        self._asked: set[str] = set()
        # Why a metric was last undefined, by its name.
        self._reasons: dict[str, str] = {}
        for spec in task.metrics:
            self._metrics.update([_metric(spec, task, outputs)])
        for spec in added:
            name, metric = _metric(spec, task, outputs)
            if name in task.scores_better or name in self._asked:
                raise ValueError(
                    f"two scores are called {name!r}: give the metric another name "
                    f"(name: my_{name})"
                )
            self._metrics[name] = metric
            self._asked.add(name)
        self.added = tuple(self._metrics)
        self._partial = {*self.added, *task.may_lack}
        # Assume that more is better if a metric does not declare it.
        better = {
            name: one.metric.higher_is_better is not False for name, one in self._metrics.items()
        }
        self.better: Mapping[str, bool] = {**task.scores_better, **better}
        own = {name: task.scores_within.get(name, "(-inf, inf)") for name in task.scores_better}
        within = {name: interval(one.metric) for name, one in self._metrics.items()}
        self.within = {name: Range(one) for name, one in {**own, **within}.items()}

    def running(self) -> dict[str, Running]:
        """Return the metrics before they have seen a sample."""
        return {name: Running(measure) for name, measure in self._metrics.items()}

    def scores(self, models: Sequence[Answer]) -> list[dict[str, float]]:
        """Return the scores of several models; one that is undefined for a model is left out.

        All scores of a model are NaN if one of its outputs is.

        Args:
            models: The answers of each model, on at least one sample.
        """
        if not models:
            return []
        held = [one for one in models if not isinstance(one, Rows)]
        # Scored together, to synchronise with the device only once.
        with torch.inference_mode():
            values = iter(self.task.scores_of(held).tolist() if held else ())
            of_rows = self.task.scores_of_rows if self.has_rows else self.task.scores_of_sums
            rows = [
                of_rows(one.rows).tolist() if isinstance(one, Rows) else next(values)
                for one in models
            ]
        return [self._named(row, model) for row, model in zip(rows, models, strict=True)]

    def _named(self, row: Sequence[float], model: Answer) -> dict[str, float]:
        names = [*self.task.scores_better]
        if len(row) != len(names):
            raise ValueError(
                f"{self.task} gives {len(row)} scores, but scores_better names {len(names)}: "
                f"{', '.join(names)}"
            )
        found = dict(zip(names, row, strict=True))
        own = {name: value for name, value in found.items() if not math.isnan(value)}
        # A score may be undefined for all samples, but a model without numbers has none.
        lacks = {*names} <= {*self.task.may_lack} and _sound(model)
        if (not own and not lacks) or (isinstance(model, Rows) and not _sound(model)):
            return dict.fromkeys((*names, *self.added), math.nan)
        return own | self._added_scores(model) if self._metrics else own

    def _added_scores(self, model: Answer) -> dict[str, float]:
        if isinstance(model, Rows):
            values = {name: one.value for name, one in model.running.items()}
        else:
            compared = _compared(self.task, *model)
            values = {n: partial(one.value, *compared) for n, one in self._metrics.items()}
        scores: dict[str, float] = {}
        for name, value in values.items():
            try:
                scores[name] = value()
            except UndefinedError as error:
                self._reasons[name] = str(error)
        return scores

    def check(self, scores: Mapping[str, float]) -> None:
        """Refuse what cannot be the scores of one model on one split.

        They are all NaN, or finite and in their ranges; only such that may be undefined are
        missing.

        Raises:
            ValueError: A name is unknown or missing, or a number is out of its range.
        """
        needed = [name for name in self.better if name not in self._partial]
        if not {*needed} <= {*scores} <= {*self.better}:
            named = ", ".join(scores)[:_SHOWN] or "none"
            raise ValueError(f"the scores of a test are {', '.join(self.better)}, got {named}")
        if all(map(math.isnan, scores.values())):
            return
        for name, value in scores.items():
            # What an added metric gives for a bad model may not be finite.
            free = name in self.added and not self.better[name] and not math.isfinite(value)
            if not free and not self.within[name].holds(value, _ROUNDING):
                raise ValueError(f"the score {name} lies in {self.within[name]}, got {value:g}")

    def check_defined(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Refuse a metric that the user asked for, and that is undefined for every client.

        Args:
            rows: The scores of all clients; at least one.

        Raises:
            ValueError: There is such a metric; the message gives the reason.
        """
        for name in sorted(self._asked):
            if not any(name in row for row in rows):
                why = self._reasons.get(name, "torchmetrics gives no number")
                raise ValueError(
                    f"the metric {name} is undefined on each of the {len(rows)} clients: {why}"
                )

    def over_clients(
        self,
        rows: Sequence[Mapping[str, float]],
        sizes: Sequence[int],
        prefix: str,
        groups: Sequence[str] = (),
    ) -> dict[str, float]:
        """Return summaries over clients of each client's scores.

        Args:
            rows: The scores of each client.
            sizes: Number of samples behind each row; clients without samples are left out.
            prefix: Prefix of the names, for instance ``"test/personal"``.
            groups: The label of each client's group, if clients are grouped.

        Returns:
            The mean over clients of each score, such as ``<prefix>/acc``. For the main score and
            each added metric also ``acc_weighted`` (weighted by samples), ``acc_worst10`` (mean
            over the worst tenth of the clients, at least one), ``acc_std`` (population standard
            deviation over clients) and ``acc@<label>`` (mean over the clients of a group). For each
            score that may be undefined, such as an added metric, R2 and the F1 of labels, also
            ``<name>_clients``, the number of clients on which it is defined.
            Empty if no client has samples. The score of a client whose model gives NaN is NaN, and
            so is every mean that the client belongs to.
        """
        labels = groups or [""] * len(rows)
        clients = [one for one in zip(rows, sizes, labels, strict=True) if one[1] > 0]
        summary: dict[str, float] = {}
        details: dict[str, float] = {}
        for position, name in enumerate(self.better):
            defined = [(row[name], size, label) for row, size, label in clients if name in row]
            if clients and name in self._partial:
                details[f"{prefix}/{name}_clients"] = len(defined)
            if not defined:
                continue
            numbers, counts, named = zip(*defined, strict=True)
            values, weights = torch.tensor([numbers, counts], dtype=torch.float64)
            summary[f"{prefix}/{name}"] = float(values.mean())
            if position == 0 or name in self.added:
                ranked = values.sort(descending=not self.better[name]).values
                # A model without a score counts among the worst.
                worst = values if values.isnan().any() else ranked[: math.ceil(len(values) / 10)]
                details[f"{prefix}/{name}_weighted"] = float(
                    (values * weights).sum() / weights.sum()
                )
                details[f"{prefix}/{name}_worst10"] = float(worst.mean())
                details[f"{prefix}/{name}_std"] = float(values.std(correction=0))
                for label in filter(None, dict.fromkeys(named)):
                    members = torch.tensor([label == other for other in named])
                    details[f"{prefix}/{name}@{label}"] = float(values[members].mean())
        return summary | details


def _sound(model: Answer) -> bool:
    """Return whether no output is NaN."""
    return bool(model.sound if isinstance(model, Rows) else ~model[0].isnan().any())


def _compared(task: Task, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a metric compares: predictions and targets on the CPU, in double precision."""
    targets = task.targets(exact(y) if y.is_floating_point() else y.cpu())
    return task.predictions(exact(outputs)), targets


def _metric(spec: MetricSpec, task: Task, outputs: int) -> tuple[str, Measure]:
    """Build a metric, with arguments that the task provides; return its name and the metric.

    Raises:
        ValueError: The path is not a metric, or the metric cannot be built or does not fit the
            task's targets.
    """
    try:
        path = metric_of(spec)
        metric_class = _metric_class(path)
    except ValueError as error:
        raise ValueError(f"metrics: {error}") from error
    options: dict[str, Any] = {} if isinstance(spec, str) else dict(spec)
    options.pop("metric", None)
    name = options.pop("name", None)
    takes = inspect.signature(metric_class).parameters
    known = task.metric_arguments(outputs)
    options = {**{name: known[name] for name in known if name in takes}, **options}
    if issubclass(metric_class, PER_TARGET):
        options.pop("num_outputs", None)
    try:
        metric = metric_class(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the metric {path} cannot be built with {options}: {error}; {_fitting(task)}"
        ) from error
    metric.set_dtype(torch.float64)
    try:
        measure = Measure(metric, own_zeros="zero_division" in options)
        _try(measure, task, outputs)
    except ValueError as error:
        raise ValueError(
            f"the metric {path} does not fit the task {type(task).__name__}: {error}; "
            f"{_fitting(task)}"
        ) from error
    return str(name or _snake(metric_class.__name__)), measure


def _fitting(task: Task) -> str:
    return f"metrics such as {' or '.join(task.fitting)} do"


def _try(measure: Measure, task: Task, outputs: int) -> None:
    """Compute a metric of made-up samples.

    Raises:
        ValueError: It fails, or gives something else than a number.
    """
    samples = task.example(outputs)
    if samples is None:
        return
    try:
        predictions, targets = _compared(task, *samples)
    except Exception:
        # A task that is derived from one of the project's may have outputs of another shape.
        return
    # What torchmetrics says of so few samples is not about the user's.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            measure.value(predictions, targets)
        except UndefinedError as error:
            if error.__cause__ is not None:
                raise


def _metric_class(path: str) -> type[Metric]:
    points = plugins.installed("pfl.metrics")
    brought = plugins.settle("metric", ((one.name, one, one) for one in points))
    if path in brought:
        return cast(type[Metric], brought[path].load_class(Metric))
    try:
        metric_class = checked(path, Metric, (), CONFIGURATION)
    except (ImportError, AttributeError, TrustError):
        metric_class = None
    if not (inspect.isclass(metric_class) and issubclass(metric_class, Metric)):
        raise ValueError(not_a_metric(path))
    return metric_class


def _snake(name: str) -> str:
    """Convert ``AUROC`` to ``auroc``, and ``MeanAbsoluteError`` to ``mean_absolute_error``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
