"""The engines by the names under which configurations know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pfl.engines.auto import AutoEngine
from pfl.engines.base import Engine
from pfl.engines.ray import RayEngine
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine

EngineName: TypeAlias = Literal["auto", "sequential", "threads", "vectorised", "ray"]

ENGINES: Mapping[EngineName, type[Engine]] = {
    "auto": AutoEngine,
    "sequential": SequentialEngine,
    "threads": ThreadsEngine,
    "vectorised": VectorisedEngine,
    "ray": RayEngine,
}


def make_engine(name: EngineName) -> Engine:
    """Make an engine with its default settings.

    Raises:
        ValueError: There is no engine of this name.
    """
    if name not in ENGINES:
        raise ValueError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}")
    return ENGINES[name]()
