"""The name of a run: a hash of all that its numbers depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl import catalogue

# Where and how a run happens, but not what comes out.
_LOOP = (
    *("engine", "accelerator", "devices", "loggers", "default_root_dir", "name"),
    *("checkpoint_every", "kept_memory", "progress"),
)
_DATA = ("root", "cache_dir", "download", "client")
# Callbacks that only listen.
_LISTENERS = ("pfl.loggers.WandB", "pfl.progress.ProgressBar")
# Data sets that are nothing but their folder.
_FOLDERS = ("datamodules.ImageFolder", "datamodules.DomainFolder")


def name(config: Mapping[str, Any], scale: float = 1) -> str:
    """Method, data and the key of a run, as the name of its folder.

    Args:
        config: The resolved configuration.
        scale: Of the data, where it is not yet a number of samples.
    """
    model, data = (config[part]["class_path"].rpartition(".")[2] for part in ("model", "data"))
    return f"{model}_{data}_{key(config, scale)}".lower()


def key(config: Mapping[str, Any], scale: float = 1) -> str:
    """Equal for configurations that give the same numbers.

    The folder of a known data set counts for nothing; of an :class:`ImageFolder`, which may be any
    set, the folder's own name counts.
    """
    content = {**relevant(config), **({} if scale == 1 else {"scale": scale})}
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that numbers depend on."""
    config = _as_kept(config)
    loop = {k: v for k, v in config["loop"].items() if k not in _LOOP and v is not None}
    callbacks = [c for c in loop.pop("callbacks", []) if c.get("class_path") not in _LISTENERS]
    data = config["data"]
    arguments = data.get("init_args", {})
    kept = {k: v for k, v in arguments.items() if k not in _DATA and v is not None}
    if data["class_path"] in _FOLDERS:
        kept["root"] = Path(arguments["root"]).name
    return {
        "seed": config["seed"],
        "loop": {**loop, **({"callbacks": callbacks} if callbacks else {})},
        "model": config["model"],
        "data": {"class_path": data["class_path"], "init_args": kept},
    }


def _as_kept(value: Any) -> Any:  # noqa: ANN401
    """Return a configuration with class paths as the keys of kept runs spell them."""
    if isinstance(value, list):
        return [_as_kept(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {key: _as_kept(item) for key, item in value.items()}
    if isinstance(path := found.get("class_path"), str):
        found["class_path"] = catalogue.kept_path(path)
    return found
