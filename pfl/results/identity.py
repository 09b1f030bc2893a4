"""A run's identity: the keys of its configuration that its numbers depend on.

An identity is flat: a class stands under the key that it was given for, its options below it, as in
``{"model": "FedPer", "model.net": "MLP", "model.net.hidden": 64}``. All that a configuration says
counts, but for

- where and how a run happens (:data:`_PLACES`, :data:`_LISTENERS`);
- options that came or went since runs were first kept, at the value that makes no difference
  (:data:`_CAME_OR_WENT`), so that a run from before has the identity of one from after;
- what is null and was never anything else.

A class of this project counts by its name alone, wherever its file lies; any other class by the
path that it is imported from. Nothing is imported to find out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Identity: TypeAlias = dict[str, Any]

# Where the project's own classes live.
PACKAGES = ("lightning_modules.", "datamodules.", "pfl.")

# Options that runs were kept without: those that came later, with the value that gives the numbers
# of before, and those that went, with the value that gave the numbers of now (None: none did).
# By dotted key ("data.shuffle": of whatever data module), or by class and option ("MLP.hidden").
_CAME_OR_WENT: dict[str, Any] = {
    **{"data.shuffle": True, "data.max_train_samples": None},
    "model.supervisor_draw": "random",
    **{"data.hierarchy": None, "data.classes_per_superclass": 50},
    "loop.evaluate_clients": None,
}
# Where and how a run happens, but not what comes out; and the loop's seed, which is the run's.
_PLACES = {
    *("loop.engine", "loop.workers"),
    *("loop.accelerator", "loop.devices", "loop.loggers", "loop.progress"),
    *("loop.default_root_dir", "loop.name", "loop.checkpoint_every", "loop.kept_memory"),
    *("loop.seed", "data.root", "data.cache_dir", "data.download", "data.client", "data.memory"),
    # The data say the task; metrics are only read.
    *("model.task", "data.metrics"),
}
# Callbacks that only listen.
_LISTENERS = {"Checkpoint", "LightningLogger", "ProgressBar", "Records", "WandB"}
# Data sets that are nothing but their folder or file: its own name counts.
_NAMED = {
    *("ImageFolder.root", "DomainFolder.root", "TabularData.path", "HFDataset.path"),
    "TensorData.source",
}
# What tells apart the replicates of one setting.
_REPLICATES = {"seed", "data.split_seed"}


def of_run(config: Mapping[str, Any], noise: str | None = None) -> Identity:
    """Return what a run's numbers depend on.

    Args:
        config: A resolved configuration, or one that was stored with a run, however old.
        noise: The generator of its noise; ``None`` if it draws none, or is from before runs named
            it in ``environment.json``.
    """
    return _flat(config, "") | ({} if noise is None else {"model.noise": noise})


def of_setting(config: Mapping[str, Any], noise: str | None = None) -> Identity:
    """Return what is equal for the replicates of one setting: all but the seeds."""
    return {key: value for key, value in of_run(config, noise).items() if key not in _REPLICATES}


def digest(identity: Identity) -> str:
    """Return 12 characters that are equal for equal identities."""
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _flat(value: Any, key: str) -> Identity:  # noqa: ANN401
    """Flatten a part of a configuration to dotted keys."""
    if isinstance(value, Mapping):
        return _options(value, key)
    if isinstance(value, list):
        found: Identity = {} if value else {key: []}
        for number, item in enumerate(value):
            found |= _flat(item, f"{key}.{number}")
        return found
    return {key: value}


def _options(value: Mapping[str, Any], key: str) -> Identity:
    """Return a class with its options, or a plain mapping."""
    kind = class_name(value["class_path"]) if "class_path" in value else None
    found: Identity = {} if kind is None else {key: kind}
    given = {**value, **(value.get("init_args") or {}), **(value.get("dict_kwargs") or {})}
    for name, item in given.items():
        if name in ("class_path", "init_args", "dict_kwargs"):
            continue
        inner = f"{key}.{name}" if key else str(name)
        if inner == "loop.callbacks":
            item = [one for one in item or [] if not _listens(one)] or None
        if f"{kind}.{name}" in _NAMED and isinstance(item, str):
            found[inner] = Path(item).name
            continue
        neutral = _CAME_OR_WENT.get(inner, _CAME_OR_WENT.get(f"{kind}.{name}"))
        if inner not in _PLACES and (part := _flat(item, inner)) != _flat(neutral, inner):
            found |= part
    return found


def class_name(path: str) -> str:
    """Return the name of a class of this project; of any other its path, which is its name."""
    return path.rpartition(".")[2] if path.startswith(PACKAGES) else path


def _listens(callback: Any) -> bool:  # noqa: ANN401
    path = callback.get("class_path", "") if isinstance(callback, Mapping) else str(callback)
    return class_name(path) in _LISTENERS
