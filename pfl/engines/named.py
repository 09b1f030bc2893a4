"""The engines by their names in configurations, each of which is imported on use.

The engines of this machine's own process are named here. All others, such as those with clients in
other processes, are registered as those of plug-ins are: the class of an engine under its name in
the group ``pfl.engines`` of entry points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from pfl.disk.nearest import nearest
from pfl.imports import plugins
from pfl.imports.hints import declared
from pfl.imports.plugins import Plugin

if TYPE_CHECKING:
    from pfl.engines.base import Engine

GROUP = "pfl.engines"
OWN: Mapping[str, Plugin] = {
    name: Plugin(GROUP, name, f"pfl.engines.{name}", kind)
    for name, kind in {
        **{"auto": "AutoEngine", "sequential": "SequentialEngine"},
        **{"threads": "ThreadsEngine", "vectorised": "VectorisedEngine"},
    }.items()
}
_POINTS = {
    **plugins.settle(
        "engine",
        ((one.name, one, one) for one in plugins.installed(GROUP)),
        {name: one.path for name, one in OWN.items()},
    ),
    **OWN,
}
NAMES = (*OWN, *(name for name in _POINTS if name not in OWN))

# The names that are installed here, for the command line.
if TYPE_CHECKING:
    EngineName: TypeAlias = str
else:
    EngineName = Literal[NAMES]


def engine_class(name: str) -> type[Engine]:
    """Return the class of an engine.

    Raises:
        ValueError: There is no engine of this name, or a plug-in's cannot be used.
    """
    if name not in _POINTS:
        near = nearest(name, NAMES)
        raise ValueError(f"there is no engine {name!r}; choose from {', '.join(NAMES)}{near}")
    # Imported on use, as the engines are.
    from pfl.engines.base import Engine

    return cast("type[Engine]", _POINTS[name].load_class(Engine))


def path_of(name: str) -> str:
    """Return the path of the class of an engine that exists."""
    return _POINTS[name].path


def name_of(kind: str) -> str | None:
    """Return the name of the engine whose class is called so, or ``None``; nothing is imported."""
    return next((name for name, point in _POINTS.items() if point.attr == kind), None)


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
        others = (one for one in NAMES if _POINTS[one].module.startswith(f"{GROUP}."))
        takers = ", ".join(one for one in others if "workers" in declared(engine_class(one)))
        raise ValueError(f"the engine {name} has no workers; workers={workers} is for {takers}")
    return engine(workers=workers)
