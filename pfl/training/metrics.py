"""Scores of one model on one split, and their summary over clients."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torchmetrics import Metric

from pfl.core.criteria import exact
from pfl.core.data import MetricSpec
from pfl.core.task import Task
from pfl.imports import plugins
from pfl.imports.trust import CONFIGURATION, TrustError, checked
from pfl.training.defined import PER_TARGET, Measure, UndefinedError


class Scorer:
    """Computes the task's scores of models, and metrics of torchmetrics that the user adds.

    Attributes:
        better: The names of the scores, the main score first; ``True`` if more is better.
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

    def __init__(self, task: Task, outputs: int, added: Sequence[MetricSpec] = ()) -> None:
        self.task = task
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

    def scores(self, models: Sequence[tuple[Tensor, Tensor]]) -> list[dict[str, float]]:
        """Return the scores of several models; a metric that is undefined for one is left out.

        All scores of a model are NaN if one of its outputs is.

        Args:
            models: (n, D) outputs and (n, ...) targets of each model; n is at least 1.
        """
        if not models:
            return []
        # Scored together, to synchronise with the device only once.
        with torch.inference_mode():
            values = self.task.scores_of(models).tolist()
        names = self.task.scores_better
        scores: list[dict[str, float]] = []
        for row, model in zip(values, models, strict=True):
            found = dict(zip(names, row, strict=True))
            if math.isfinite(row[0]):
                own = {name: value for name, value in found.items() if not math.isnan(value)}
                scores.append(own | self._added_scores(*model))
            else:
                scores.append(found | dict.fromkeys(self.added, math.nan))
        return scores

    def _added_scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        if not self._metrics:
            return {}
        predictions, targets = _compared(self.task, outputs, y)
        scores: dict[str, float] = {}
        for name, metric in self._metrics.items():
            try:
                scores[name] = metric.value(predictions, targets)
            except UndefinedError as error:
                self._reasons[name] = str(error)
        return scores

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
    options: dict[str, Any] = {"metric": spec} if isinstance(spec, str) else dict(spec)
    if "metric" not in options:
        raise ValueError(f"metrics: {options} has no key metric, which names a torchmetrics.Metric")
    path, name = str(options.pop("metric")), options.pop("name", None)
    metric_class = _metric_class(path)
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
        raise ValueError(
            f"metrics: {path!r} is not a metric: give the path of a torchmetrics.Metric, such as "
            "torchmetrics.AUROC"
        )
    return metric_class


def _snake(name: str) -> str:
    """Convert ``AUROC`` to ``auroc``, and ``MeanAbsoluteError`` to ``mean_absolute_error``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
