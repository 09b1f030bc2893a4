"""The engines, by their names in configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from pfl.engines.auto import AutoEngine
from pfl.engines.base import Engine
from pfl.engines.processes import ProcessesEngine
from pfl.engines.ray import RayEngine
from pfl.engines.remote.flower import FlowerEngine
from pfl.engines.remote.loopback import LoopbackEngine
from pfl.engines.remote.nvflare import NVFlareEngine
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine

EngineName: TypeAlias = Literal[
    "auto",
    "sequential",
    "threads",
    "vectorised",
    "ray",
    "processes",
    "loopback",
    "nvflare",
    "flower",
]

ENGINES: Mapping[EngineName, type[Engine]] = {
    "auto": AutoEngine,
    "sequential": SequentialEngine,
    "threads": ThreadsEngine,
    "vectorised": VectorisedEngine,
    "ray": RayEngine,
    "processes": ProcessesEngine,
    "loopback": LoopbackEngine,
    "nvflare": NVFlareEngine,
    "flower": FlowerEngine,
}
_WITH_WORKERS = ("auto", "threads", "ray", "processes", "loopback")


def make_engine(name: EngineName, workers: int | None = None) -> Engine:
    """Make an engine with its default settings.

    Args:
        name: Name of the engine.
        workers: Largest number of cores, threads or actors; ``None`` uses all that are free.

    Raises:
        ValueError: There is no engine of this name, or the engine takes no ``workers``.
    """
    if name not in ENGINES:
        raise ValueError(f"there is no engine {name!r}; choose from {', '.join(ENGINES)}")
    if workers is None:
        return ENGINES[name]()
    if name not in _WITH_WORKERS:
        raise ValueError(
            f"the engine {name} has no workers; workers={workers} is for {', '.join(_WITH_WORKERS)}"
        )
    engine: Callable[..., Engine] = ENGINES[name]
    return engine(workers=workers)
