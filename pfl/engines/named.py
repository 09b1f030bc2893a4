"""The engines, by their names in configurations: those of this package, and those of plug-ins.

A plug-in registers the class of an engine under its name in the group ``pfl.engines`` of entry
points. It is imported on use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from pfl.disk.nearest import nearest
from pfl.engines.auto import AutoEngine
from pfl.engines.base import Engine
from pfl.engines.processes import ProcessesEngine
from pfl.engines.ray import RayEngine
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.imports import plugins
from pfl.imports.hints import declared

OWN: Mapping[str, type[Engine]] = {
    "auto": AutoEngine,
    "sequential": SequentialEngine,
    "threads": ThreadsEngine,
    "vectorised": VectorisedEngine,
    "ray": RayEngine,
    "processes": ProcessesEngine,
}
_BROUGHT = {point.name: point for point in plugins.installed("pfl.engines")}
NAMES = (*OWN, *(name for name in _BROUGHT if name not in OWN))

# The names that are installed here, for the command line.
if TYPE_CHECKING:
    EngineName: TypeAlias = str
else:
    EngineName = Literal[NAMES]


def engine_class(name: str) -> type[Engine]:
    """Return the class of an engine.

    Raises:
        ValueError: There is no engine of this name.
    """
    if name not in NAMES:
        near = nearest(name, NAMES)
        raise ValueError(f"there is no engine {name!r}; choose from {', '.join(NAMES)}{near}")
    if name in OWN:
        return OWN[name]
    brought: type[Engine] = _BROUGHT[name].load()
    return brought


def make_engine(name: str, workers: int | None = None) -> Engine:
    """Make an engine with its default settings.

    Args:
        name: Name of the engine.
        workers: Largest number of cores, threads or actors; ``None`` uses all that are free.

    Raises:
        ValueError: There is no engine of this name, or the engine takes no ``workers``.
    """
    engine: Callable[..., Engine] = engine_class(name)
    if workers is None:
        return engine()
    if "workers" not in declared(engine):
        takers = ", ".join(one for one in OWN if "workers" in declared(OWN[one]))
        raise ValueError(f"the engine {name} has no workers; workers={workers} is for {takers}")
    return engine(workers=workers)
