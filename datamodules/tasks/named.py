"""A task by its name, by the import path of its class, or as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypedDict

from datamodules.tasks.segmentation import Segmentation, SegmentationLoss
from datamodules.tasks.survival import Survival, Ties
from pfl.core.task import Binary, Classification, MultiLabel, Regression, Task
from pfl.disk.nearest import hint
from pfl.imports.trust import CONFIGURATION, TrustError, checked, is_path

# The project's own, each by its class's name in lower case.
OWN = (Classification, Binary, MultiLabel, Regression, Segmentation, Survival)

# What an argument takes: a task, a name, or an import path.
AnyTask: TypeAlias = (
    Task
    | Literal["classification", "binary", "multilabel", "regression", "segmentation", "survival"]
    | str
)


class LossOptions(TypedDict, total=False):
    """Options of the tasks' losses, as a data module's argument ``loss`` takes them.

    Those of classification and binary tasks are ``class_weights`` (``balanced`` is n / (C n_c) for
    the n_c training samples of class c of all clients), ``label_smoothing`` and ``focal``; those of
    regression ``huber`` and ``quantiles``; those of segmentation ``loss`` and ``ignore``; that of
    survival ``ties``. A task of your own has its options beside its class (``init_args``).
    """

    class_weights: Literal["balanced"] | Sequence[float] | None
    label_smoothing: float
    focal: float
    huber: float | None
    quantiles: Sequence[float]
    loss: SegmentationLoss
    ignore: int | None
    ties: Ties


def task_of(given: AnyTask) -> Task:
    """Return a task.

    Args:
        given: The task; or a name such as ``regression``, or an import path of a class, for the
            task without options.

    Raises:
        ValueError: There is no such task, or it needs options.
    """
    if isinstance(given, Task):
        return given
    if not isinstance(given, str):
        raise ValueError(f"task must be a Task, its import path or a name, got {given!r}")
    kind = {one.__name__.lower(): one for one in OWN}.get(given.lower())
    if kind is None and is_path(given):
        try:
            kind = checked(given, Task, (), CONFIGURATION)
        except (ImportError, TrustError) as error:
            raise ValueError(f"task: {error}") from error
    if kind is None:
        names = [one.__name__.lower() for one in OWN]
        raise ValueError(f"task: there is no {given!r}{hint(given, names)}")
    try:
        return kind()
    except TypeError as error:
        raise ValueError(f"task: {given} needs options: {error}; give the task itself") from error
