"""A run's identity: the settings in its configuration that its numbers depend on.

An identity is flat: a class has its key, and its options have keys below it, as in
``{"model": "FedPer", "model.net": "MLP", "model.net.hidden": 64}``. It contains every setting
except

- where and how a run is executed (:func:`executing`, :data:`_PLACES`, :data:`_LISTENERS`), unless a
  class from outside this project and its libraries does it, such as a user's engine;
- settings that are null: an option that is off by null changes no run that was made without it.

A class of this project is identified by its name alone, wherever its file is; any other class by
its import path. Nothing is imported. For a class from outside this project and its libraries, its
source, recorded at the start of the run (:func:`beside`), counts too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from pfl.core.execution import Execution
from pfl.engines.named import GROUP as ENGINES
from pfl.engines.named import OWN
from pfl.imports import hints, plugins, signatures, sources, stubs
from pfl.imports.plugins import PACKAGES, Plugin

Identity: TypeAlias = dict[str, Any]

# Key of a configuration that was made from the objects of a run started from Python.
STARTED = "started"

# Settings of where data lie; and the loop's seed, which repeats the run's.
_PLACES = {
    *("data.root", "data.cache_dir", "data.download", "data.client", "data.memory", "loop.seed"),
}
# Of these, only a class from outside this project and its libraries counts: it may change numbers.
# The task follows from the data; metrics do not influence training.
_CLASSES = {"loop.engine", "loop.loggers", "model.task", "data.metrics"}
# Callbacks that do not count for the identity.
_LISTENERS = {"Checkpoint", "LightningLogger", "ProgressBar", "Records", "WandB"}
# Options for a file that defines a data set: only its own name counts, not its parents.
_FILES = {"path", "source"}
# Options for such a folder; that of any other data set is only where a known set lies.
_FOLDERS = {"ImageFolder.root", "DomainFolder.root"}
# Settings that name a plug-in by its entry point, with the groups of these.
_BY_NAME = {"loop.engine": ENGINES, "data.metrics": "pfl.metrics"}
# Keys in which the replicates of one setting differ.
_REPLICATES = {"seed", "data.split_seed"}


@cache
def executing() -> Mapping[str, Execution]:
    """Return the loop's settings of where and how a run is executed, as their source declares them.

    Nothing is imported.
    """
    found = signatures.parameters(stubs.resolved("pfl.federation.settings.Settings")) or {}
    several = {name: [*hints.beside(one.annotation, Execution)] for name, one in found.items()}
    return {f"loop.{name}": marks[0] for name, marks in several.items() if marks}


def beside(config: Mapping[str, Any], noise: str | None) -> dict[str, Any]:
    """Return what the numbers of a run that starts now depend on besides its configuration.

    Args:
        config: Its resolved configuration.
        noise: The generator of its noise; ``None`` if it draws none.
    """
    used = [*_named(config)]
    paths = {*_paths(config), *(plugin.path for plugin in used)}
    packages = {path.partition(".")[0] for path in paths}
    groups = (*plugins.GROUPS, *_BY_NAME.values(), "pfl.callbacks", "pfl.evaluations", "pfl.uplink")
    used += (one for one in plugins.installed(*groups) if one.module.partition(".")[0] in packages)
    recorded = sources.recorded(sorted(paths))
    return {"noise": noise, "sources": recorded, "plugins": plugins.versions(used)}


def _named(config: Mapping[str, Any]) -> Iterator[Plugin]:
    """Yield the plug-ins that a configuration names by entry points, if the names are theirs."""
    for key, group in _BY_NAME.items():
        points = ((one.name, one, one) for one in plugins.installed(group))
        own = {name: one.path for name, one in OWN.items()} if group == ENGINES else {}
        kind = group.removeprefix("pfl.").removesuffix("s")
        brought, words = plugins.settle(kind, points, own), _words(_at(config, key))
        yield from (plugin for name, plugin in brought.items() if name in words)


def of_run(config: Mapping[str, Any], recorded: Mapping[str, Any] | None = None) -> Identity:
    """Return the settings that a run's numbers depend on.

    Args:
        config: A resolved configuration.
        recorded: What was recorded beside it, by the names of :func:`beside`.
    """
    recorded = {} if recorded is None else recorded
    noise, files = recorded.get("noise"), recorded.get("sources") or {}
    found = _flat(config, "") | ({} if noise is None else {"model.noise": noise})
    found |= {f"source.{name}": value for name, value in files.items()}
    versions = recorded.get("plugins") or {}
    return found | {f"plugin.{name}": version for name, version in versions.items()}


def of_setting(config: Mapping[str, Any], recorded: Mapping[str, Any] | None = None) -> Identity:
    """Return the settings that replicates share: all but the seeds."""
    found = of_run(config, recorded)
    return {key: value for key, value in found.items() if key not in _REPLICATES}


def digest(identity: Identity) -> str:
    """Return a hash of 12 characters."""
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _flat(value: Any, key: str) -> Identity:  # noqa: ANN401
    """Flatten a part of a configuration to dotted keys."""
    if isinstance(value, Mapping):
        return _options(value, key)
    if isinstance(value, list):
        settings: Identity = {} if value else {key: []}
        for number, item in enumerate(value):
            settings |= _flat(item, f"{key}.{number}")
        return settings
    return {key: value}


def _options(value: Mapping[str, Any], key: str) -> Identity:
    """Return a class with its options, or a plain mapping."""
    owner = class_name(str(value["class_path"])) if "class_path" in value else None
    settings: Identity = {} if owner is None else {key: owner}
    options = dict(value)
    for name in ("init_args", "dict_kwargs"):
        options |= value[name] if isinstance(value.get(name), Mapping) else {}
    for name, item in options.items():
        if name not in ("class_path", "init_args", "dict_kwargs"):
            inner = f"{key}.{name}" if key else str(name)
            counted = _counted(item, inner, owner or "", name)
            settings |= {} if counted is None else _flat(counted, inner)
    return settings


def _counted(value: Any, key: str, owner: str, name: str) -> Any:  # noqa: ANN401
    """Return the part of an option of a class that numbers depend on, or ``None``."""
    of_ours = name in _FILES and owner.isidentifier()
    if isinstance(value, str) and (of_ours or f"{owner}.{name}" in _FOLDERS):
        return Path(value).name
    if key in _CLASSES:
        return _foreign(value)
    if key == "loop.callbacks" and isinstance(value, list):
        return [one for one in value if not _listens(one)] or None
    return None if key in _PLACES or key in executing() else value


def class_name(path: str) -> str:
    """Return the name of a class of this project, and the full path of any other class."""
    return path.rpartition(".")[2] if path.startswith(PACKAGES) else path


def _listens(callback: Any) -> bool:  # noqa: ANN401
    path = callback.get("class_path", "") if isinstance(callback, Mapping) else callback
    return class_name(str(path)) in _LISTENERS


def _foreign(value: Any) -> Any:  # noqa: ANN401
    """Return the classes in a value that are from outside this project and its libraries."""
    if isinstance(value, list):
        return [one for item in value if (one := _foreign(item)) is not None] or None
    path = value.get("class_path") if isinstance(value, Mapping) else value
    return value if isinstance(path, str) and sources.is_foreign(path) else None


def _at(config: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401
    """Return the setting at a dotted key; ``None`` if there is none."""
    value: Any = config
    for name in key.split("."):
        inner = value.get("init_args", value) if isinstance(value, Mapping) else {}
        value = inner.get(name) if isinstance(inner, Mapping) else None
    return value


def _words(value: Any) -> set[str]:  # noqa: ANN401
    """Return all texts in a part of a configuration."""
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list):
        return set[str]().union(*map(_words, items))
    return {value} if isinstance(value, str) else set()


def _paths(value: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield all import paths in a part of a configuration; a text may look like one."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from [str(item)] if key == "class_path" else _paths(item)
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item)
    elif isinstance(value, str) and sources.names_object(value):
        yield value
