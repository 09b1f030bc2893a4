"""Settings: groups of runs that differ only in their seeds, with distinct labels."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pandas as pd

from pfl.disk.nearest import nearest
from pfl.federation import identity
from pfl.federation.identity import STARTED, Identity
from pfl.results import names
from pfl.results.files import Floats, RunError
from pfl.results.runs import At, Replicate, RunFolder


@dataclass(frozen=True, eq=False)
class Setting:
    """One setting's runs.

    Attributes:
        label: A label that is unique among the settings.
        runs: One run for each replicate, ordered by seeds.
    """

    label: str
    runs: tuple[RunFolder, ...]

    def only(self, replicates: Container[Replicate]) -> Setting:
        """Return the setting with only the runs of some replicates."""
        return Setting(self.label, tuple(run for run in self.runs if run.replicate in replicates))

    def values(self, metric: str, at: At, by: str | None = None) -> Floats:
        """Return (runs,) values of a metric, in the rounds chosen by it or by ``by``."""
        return np.array([run.mean(metric, run.chosen(at, by or metric)) for run in self.runs])

    def per_client(self, metric: str, at: At) -> pd.DataFrame:
        """Return a metric of each tested client: ``value``, its mean over runs, and ``samples``.

        The index has partition and number of a client, as clients of different partitions differ.
        The metric may be a summary over clients, such as ``.../acc_weighted``.

        Raises:
            RunError: A run lacks the metric, or it is not a metric of single clients.
        """
        score = names.of_client(metric)
        if names.is_pooled(metric):
            raise RunError(f"{metric} is a score on the common test set, not of single clients")
        rows = []
        for run in self.runs:
            values = run.by_client(score, run.chosen(at, metric))
            table = pd.DataFrame({"value": values, "samples": run.samples}).rename_axis("client")
            rows.append(table.dropna(subset="value").assign(split=run.split_hash))
        found = pd.concat(rows).reset_index().groupby(["split", "client"], sort=False)
        return found.agg(value=("value", "mean"), samples=("samples", "first"))


def group(runs: Sequence[RunFolder]) -> tuple[list[Setting], list[RunFolder]]:
    """Group runs into settings, in order of first appearance; also return superseded runs.

    Of several runs of the same setting and replicate, only the newest (by the name of its folder)
    is used. A run without a configuration is a setting of its own.
    """
    keyed = [
        (identity.digest(content) if (content := _identity(run)) else run.path.resolve(), run)
        for run in runs
    ]
    members: dict[object, dict[Replicate, RunFolder]] = {key: {} for key, _ in keyed}
    # The newest run of a replicate comes last and stays.
    for key, run in sorted(keyed, key=lambda item: item[1].path.name):
        members[key][run.replicate] = run
    chosen = [tuple(one[replicate] for replicate in sorted(one)) for one in members.values()]
    labels = _labels([group[0] for group in chosen])
    used = {id(run) for group in chosen for run in group}
    repeated = [run for run in runs if id(run) not in used]
    return [Setting(*pair) for pair in zip(labels, chosen, strict=True)], repeated


def _identity(run: RunFolder) -> Identity:
    return identity.of_setting(run.config, run.environment)


def _labels(runs: Sequence[RunFolder]) -> list[str]:
    """Make labels from the method and the options in which settings differ.

    Options of the data are compared over all settings, other options over those of one method.
    """
    labels, identities = [], [_identity(run) for run in runs]
    for run, content in zip(runs, identities, strict=True):
        same = [i for r, i in zip(runs, identities, strict=True) if r.method == run.method]
        differing = [
            key
            for key in content
            if any(
                _differs(key, content, other)
                for other in (identities if key.startswith("data") else same)
            )
        ]
        short = short_names(differing)
        parts = [f"{short[key]}={_shown(content[key])}" for key in differing]
        labels.append(", ".join([run.method, *parts]))
    named = labels
    # Runs that were started in the same second have folders of the same name.
    for places in ([run.path.name for run in runs], [str(run.path) for run in runs]):
        if len(set(named)) < len(named):
            named = [
                label if labels.count(label) == 1 else f"{label} ({place})"
                for label, place in zip(labels, places, strict=True)
            ]
    return named


def differing(settings: Sequence[Setting]) -> dict[str, list[str | None]]:
    """Return the options in which settings differ, with each one's value; ``None`` without one."""
    identities = [_identity(setting.runs[0]) for setting in settings]
    keys = dict.fromkeys(key for content in identities for key in content)
    differ = [key for key in keys if len({repr(content.get(key)) for content in identities}) > 1]
    return {
        key: [_shown(content[key]) if key in content else None for content in identities]
        for key in differ
    }


def _differs(key: str, content: Identity, other: Identity) -> bool:
    """Return ``True`` if an option distinguishes a setting from another.

    An option that the other lacks does so (a codec, a limit of the samples), unless it belongs to a
    class that the other lacks too: then the class does. A run without a configuration has no
    options, and one that was started from Python has others.
    """
    if key in other:
        return bool(content[key] != other[key])
    if not other or (STARTED in content) != (STARTED in other):
        return False
    owners = accumulate(key.split(".")[:-1], "{}.{}".format)
    return not any(owner in content and content[owner] != other.get(owner) for owner in owners)


def _shown(value: object) -> str:
    """Shorten a dotted path to its last part."""
    text = str(value)
    is_path = all(part.isidentifier() for part in text.split("."))
    return text.rpartition(".")[2] if is_path else text


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Shorten dotted keys to their shortest unique endings; none starts with a list index.

    Example:
        >>> short_names(["model.net.lr", "model.lr", "data.size"])
        {'model.net.lr': 'net.lr', 'model.lr': 'model.lr', 'data.size': 'size'}
    """
    short = {}
    for key in keys:
        parts = key.split(".")
        ends = (
            ".".join(parts[-count:])
            for count in range(1, len(parts))
            if not parts[-count].isdigit()
        )
        alone = (end for end in ends if sum(f".{one}".endswith(f".{end}") for one in keys) == 1)
        short[key] = next(alone, key)
    return short


def labelled(settings: Sequence[Setting], label: str | None) -> Setting:
    """Return the setting of a label, by default the first.

    Raises:
        RunError: There is none.
    """
    by_label = {setting.label: setting for setting in settings}
    if label is not None and label not in by_label:
        near = nearest(label, by_label)
        raise RunError(f"there is no setting {label!r} among {', '.join(by_label)}{near}")
    return settings[0] if label is None else by_label[label]
