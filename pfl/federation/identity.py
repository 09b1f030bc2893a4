"""A run's identity: the settings in its configuration that its numbers depend on.

An identity is flat: a class has its key, and its options have keys below it, as in
``{"model": "FedPer", "model.net": "MLP", "model.net.hidden": 64}``. It contains every setting
except

- where and how a run is executed (:data:`_PLACES`, :data:`_LISTENERS`), unless a class from outside
  this project and its libraries does it, such as a user's engine;
- options that were added or removed since runs were first stored, at the value that makes no
  difference (:data:`_CAME_OR_WENT`), so that runs of earlier and later versions have the same
  identity;
- settings that are null and have always been null;
- ``loop.evaluate_clients: auto`` where it tests all clients.

A class of this project is identified by its name alone, wherever its file is; any other class by
its import path. Nothing is imported. For a class from outside this project and its libraries, its
source, recorded at the start of the run (:func:`beside`), counts too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pfl.imports import sources
from pfl.imports.plugins import PACKAGES

Identity: TypeAlias = dict[str, Any]

# Key of a configuration that was made from the objects of a run started from Python.
STARTED = "started"

# Options that stored runs may lack or have in addition: added options with the value that gives the
# former numbers, and removed options with the value that gave the present numbers (None: no value
# did). By dotted key ("data.shuffle", for any data module), or by class and option ("MLP.hidden").
_CAME_OR_WENT: dict[str, Any] = {
    **{"data.shuffle": True, "data.max_train_samples": None, "data.public": None},
    **{"data.max_length": None, "data.standardise": "none"},
    **{"data.loss": None, "TabularData.positive": None, "MLP.batch_norm": False},
    **{"model.supervisor_draw": "random", "VariationalLinear.init_mean_std": 1.0},
    **{"data.hierarchy": None, "data.classes_per_superclass": 50},
    **{"loop.evaluate_clients": None, "loop.evaluate_from": None},
    **{"data.unseen": None, "loop.unseen_every": None, "loop.join_rounds": 5},
    **{"loop.tune_epochs": 20, "loop.codec": None, "loop.cost": None, "loop.privacy": None},
    **{"loop.uplink": None},
    # For opaque images stored in display orientation, as in all earlier runs.
    **{"data.on_unreadable": "refuse", "data.over_white": True, "data.exif_orientation": True},
    **{"data.missing_values": None, "data.date_format": None, "data.decimal": "."},
    **{"data.thousands": None, "data.separator": ",", "data.negative": None},
    **{f"{name}.released": False for name in ("ConceptDrift", "FixedClasses", "QuantitySkew")},
    **{"CFL.stale": False, "CFL.newcomers": "mean", "FedEM.e_steps": 1},
    **{"PFedHN.order": "joint", "PFedSim.tested": "stored", "APPLE.first": "samples"},
    **{"APPLE.downloads": None, "APPLE.sharpness": 1.0, "FedMD.align_samples": None},
    **{"FedCP.gumbel_batch": None},
    # Options of methods that no configuration used.
    **{"Ditto.refresh_before_eval": False, "FedPer.fit_head_before_eval": 0},
    **{"FedProto.prediction": "nearest_prototype", "FedProto.candidates": "all"},
    **{"FedProxP.ft_prox": False, "FedRep.frozen_bn": "eval", "GPFL.stale_conditions": False},
    **{"GPFL.mag_reduction": "batch_norm", "IFCA.averaging": "model", "IFCA.share_body": False},
    **{"PFedBayes.eps_std": 1.0, "PFedBayes.eval_weights": "mean", "PFedBayes.eval_samples": 10},
    **{"PFedFDA.single_beta": False, "PFedFDA.local_beta": False, "PFedMe.inner_wd": 0.0},
    **{"PFedMe.adapt_untrained": True, "PerFedAvg.adapt_steps": 1},
    **{f"{name}.numpy_seed": None for name in ("BernoulliSampler", "UniformSampler")},
}
# Settings of where and how a run is executed; and the loop's seed, which repeats the run's.
_PLACES = {
    *("loop.engine", "loop.workers"),
    *("loop.accelerator", "loop.devices", "loop.loggers", "loop.progress"),
    *("loop.default_root_dir", "loop.name", "loop.checkpoint_every", "loop.kept_memory"),
    *("loop.seed", "data.root", "data.cache_dir", "data.download", "data.client", "data.memory"),
    # The task follows from the data; metrics do not influence training.
    *("model.task", "data.metrics"),
}
# Of these, a class from outside this project and its libraries counts: it may change numbers.
_CLASSES = {"loop.engine", "loop.loggers", "model.task", "data.metrics"}
# Callbacks that do not count for the identity.
_LISTENERS = {"Checkpoint", "LightningLogger", "ProgressBar", "Records", "WandB"}
# Largest number of clients that the default tests in full, as earlier versions always did.
FEW = 1_000
# Data sets that are defined by a folder or file: only its own name counts, not its parents.
_NAMED = {
    *("ImageFolder.root", "DomainFolder.root", "TabularData.path", "HFDataset.path"),
    *("TensorData.source", "WISDM.path"),
}
# Keys in which the replicates of one setting differ.
_REPLICATES = {"seed", "data.split_seed"}


def beside(config: Mapping[str, Any], noise: str | None) -> dict[str, Any]:
    """Return what the numbers of a run that starts now depend on besides its configuration.

    Args:
        config: Its resolved configuration.
        noise: The generator of its noise; ``None`` if it draws none.
    """
    return {"noise": noise, "sources": sources.recorded(_paths(config))}


def of_run(config: Mapping[str, Any], recorded: Mapping[str, Any] | None = None) -> Identity:
    """Return the settings that a run's numbers depend on.

    Args:
        config: A resolved configuration, or one that any version stored with a run.
        recorded: What was recorded beside it, by the names of :func:`beside`; runs of earlier
            versions recorded less.
    """
    recorded = {} if recorded is None else recorded
    noise, files = recorded.get("noise"), recorded.get("sources") or {}
    found = _flat(config, "") | ({} if noise is None else {"model.noise": noise})
    count = found.get("data.num_clients")
    many = isinstance(count, int) and count > FEW
    if found.get("loop.evaluate_clients") == "auto" and not (
        many or "evaluated_clients" in recorded
    ):
        del found["loop.evaluate_clients"]
    return found | {f"source.{name}": value for name, value in files.items()}


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
        if name in ("class_path", "init_args", "dict_kwargs"):
            continue
        inner = f"{key}.{name}" if key else str(name)
        if inner == "loop.callbacks" and isinstance(item, list):
            item = [one for one in item if not _listens(one)] or None
        if inner in _CLASSES:
            item = _foreign(item)
        if f"{owner}.{name}" in _NAMED and isinstance(item, str):
            settings[inner] = Path(item).name
            continue
        neutral = _CAME_OR_WENT.get(inner, _CAME_OR_WENT.get(f"{owner}.{name}"))
        counts = inner in _CLASSES or inner not in _PLACES
        if counts and (part := _flat(item, inner)) != _flat(neutral, inner):
            settings |= part
    return settings


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
