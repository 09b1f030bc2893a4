"""The interface of a federation's settings; :class:`pfl.loop.FederatedLoop` implements it."""

from __future__ import annotations

from typing import Literal, Protocol

from lightning.fabric import Fabric

from pfl.core.types import EvaluationPoint
from pfl.engines.base import Engine
from pfl.federation.cost import Cost
from pfl.federation.run import Callback
from pfl.federation.sampling import Sampler
from pfl.passage.coding import Codecs
from pfl.passage.privacy import Privacy


class Settings(Protocol):
    """The settings of a run; :class:`pfl.loop.FederatedLoop` explains each."""

    rounds: int
    sampler: Sampler
    engine: Engine
    evaluate_every: int
    evaluate_from: int | None
    evaluate_clients: int | None
    evaluate_at: list[EvaluationPoint] | None
    unseen_every: int | None
    join_rounds: int
    tune_epochs: int
    fabric: Fabric
    gradient_clip_val: float | None
    codec: Codecs | None
    cost: Cost | None
    privacy: Privacy | None
    on_nonfinite: Literal["stop", "skip"]
    callbacks: list[Callback]
    default_root_dir: str | None
    name: str | None
    kept_memory: float | None
    seed: int


def is_tested(settings: Settings, number: int, last: int) -> bool:
    """Return ``True`` if models are tested after a round, of a run that ends with the last."""
    every = settings.evaluate_every
    first = every if settings.evaluate_from is None else settings.evaluate_from
    regular = number >= first and (number - first) % every == 0
    return regular or number == last
