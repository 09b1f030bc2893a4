"""Comparison of settings: scores, costs, and paired tests against one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from pfl.results import names
from pfl.results.files import RunError
from pfl.results.find import common_score
from pfl.results.paired import Paired, adjusted, paired
from pfl.results.runs import At, RunFolder
from pfl.results.settings import Setting, labelled
from pfl.results.statistics import Estimate

Pairs: TypeAlias = Literal["clients", "replicates"]
PAIRS: Sequence[Pairs] = ("clients", "replicates")


@dataclass(frozen=True)
class Comparison:
    """Scores and costs of settings, and tests against one of them.

    Attributes:
        metric: The score that is compared.
        at: The rounds that the score is taken from.
        less: Whether less of it is better.
        estimates: For each setting, by its label, the means over runs: scores by metric, ``bytes``
            moved both ways, ``seconds`` of training and aggregation, and what further evaluations
            measured after the last round, ``<name>/<heading>`` as they are shown.
        records: One mapping for each setting with all numbers, unrounded: ``setting``, ``at``,
            ``tested`` (the point at which personal models were tested), ``runs``, ``rounds`` (of
            the longest run), each mean and its standard error (``<name>/stderr``).
        tests: The tests over clients and over seeds of each setting that has pairs.
        reference: Label of the setting that the others are tested against.
        warnings: Differences between the settings that make scores hard to compare.
    """

    metric: str
    at: At
    less: bool
    estimates: Mapping[str, Mapping[str, Estimate]]
    records: Sequence[Mapping[str, str | float | int | None]]
    tests: Mapping[Pairs, Mapping[str, Paired]]
    reference: str
    warnings: Sequence[str]


def compare(
    settings: Sequence[Setting],
    metric: str | None = None,
    at: At = "last",
    reference: str | None = None,
) -> Comparison:
    """Compare settings by their scores and costs, and test them against one of them.

    Args:
        settings: The settings.
        metric: A column of ``metrics.csv`` and of ``clients.csv``; ``None`` uses the runs' main
            score.
        at: The rounds to take the score from; see :mod:`pfl.federation.summary`.
        reference: Label of the setting that the others are tested against; the first by default.

    Raises:
        RunError: A run is unfinished or lacks the metric, or no setting has that label.
    """
    runs = [run for setting in settings for run in setting.runs]
    _check_finished(runs)
    metric = common_score(runs) if metric is None else metric
    base = labelled(settings, reference)
    others = [setting for setting in settings if setting is not base]
    tests = _tests(others, base, metric, at)
    estimates = {setting.label: _estimates(setting, metric, at) for setting in settings}
    return Comparison(
        metric=metric,
        at=at,
        less=runs[0].scores.get(names.of_client(metric).rpartition("/")[2]) is False,
        estimates=estimates,
        records=[_record(one, metric, at, estimates[one.label], tests) for one in settings],
        tests=tests,
        reference=base.label,
        warnings=[line for other in others for line in differences(other, base, metric)],
    )


def _check_finished(runs: Sequence[RunFolder]) -> None:
    for run in runs:
        if not run.finished:
            planned = run.environment.get("rounds", "more")
            raise RunError(f"the run {run.path} is not finished (round {run.round} of {planned})")


def _record(
    setting: Setting,
    metric: str,
    at: At,
    estimates: Mapping[str, Estimate],
    tests: Mapping[Pairs, Mapping[str, Paired]],
) -> dict[str, str | float | int | None]:
    """Return all numbers of a setting, unrounded."""
    record: dict[str, str | float | int | None] = {
        "setting": setting.label,
        "at": at,
        "tested": setting.runs[0].tested_at(metric),
        "runs": len(setting.runs),
        "rounds": max(run.round for run in setting.runs),
    }
    for name, estimate in estimates.items():
        record |= {name: estimate.mean, f"{name}/stderr": estimate.error}
    for pairs, by_label in tests.items():
        if test := by_label.get(setting.label):
            record |= {f"{pairs}/{key}": value for key, value in vars(test).items()}
    return record


def _estimates(setting: Setting, metric: str, at: At) -> dict[str, Estimate]:
    group, score = metric.rpartition("/")[0], names.of_client(metric)
    wanted = dict.fromkeys((metric, f"{score}_worst10", f"{score}_std", f"{group}/ece"))
    runs = setting.runs
    measured = {
        f"{one.name}/{heading}": name
        for one in names.shown()
        for heading, name in one.columns(runs[0].main).items()
    }
    values: dict[str, Any] = {
        **{name: setting.values(name, at, by=metric) for name in wanted if _have(setting, name)},
        **{name: [getattr(run, name)[-1] for run in runs] for name in ("bytes", "seconds")},
        **{
            key: [run.column(name)[-1] for run in runs]
            for key, name in measured.items()
            if _have(setting, name)
        },
    }
    return {name: Estimate.of(of_runs) for name, of_runs in values.items()}


def _have(setting: Setting, name: str) -> bool:
    return all(name in run.metrics for run in setting.runs)


def _tests(
    others: Sequence[Setting], base: Setting, metric: str, at: At
) -> dict[Pairs, dict[str, Paired]]:
    """Test each setting on the replicates that both have; over clients, even without any."""
    found = {}
    for pairs in PAIRS:
        tests = adjusted([_test(other, base, metric, at, pairs) for other in others])
        labelled = zip(others, tests, strict=True)
        found[pairs] = {other.label: test for other, test in labelled if test is not None}
    return found


def _test(setting: Setting, base: Setting, metric: str, at: At, pairs: Pairs) -> Paired | None:
    common = {run.replicate for run in setting.runs} & {run.replicate for run in base.runs}
    both = [one.only(common) if common else one for one in (setting, base)]
    ours, theirs = (_scores(one, metric, at, pairs) for one in both)
    if ours is None or theirs is None:
        return None
    return paired(*(scores.to_numpy() for scores in ours.align(theirs, join="inner")))


def _scores(setting: Setting, metric: str, at: At, pairs: Pairs) -> pd.Series[float] | None:
    """Return scores by client or by replicate; ``None`` if clients have no individual scores.

    That is the case on a common test set. It is also ``None`` if one client's score is NaN, as the
    rest would be compared without that client.
    """
    values = setting.values(metric, at)
    if pairs == "replicates":
        replicates = [run.replicate for run in setting.runs]
        return pd.Series(values, pd.MultiIndex.from_tuples(replicates))
    if names.is_pooled(metric) or np.isnan(values).any():
        return None
    return setting.per_client(metric, at)["value"]


def differences(setting: Setting, base: Setting, metric: str) -> list[str]:
    """Describe what makes two settings hard to compare.

    These are data, partition, point of testing and seeds; for different methods also budget,
    network and optimiser. (For one method, the labels show the options that differ.) Data and
    partitions are compared between runs with the same split seed, if there are any.
    """
    both = f"{setting.label} and {base.label}"
    lines = []
    if _differ(setting, base, "content_hash"):
        lines.append(f"{both} were run on different data")
    elif _differ(setting, base, "hash") or _have_no_split_in_common(setting, base):
        lines.append(f"{both} were run on different partitions")
    points = [s.runs[0].tested_at(metric) for s in (setting, base)]
    if None not in points and points[0] != points[1]:
        lines.append(
            f"{both} were tested at different points ({points[0]}, {points[1]}); run both with "
            "the same loop.evaluate_at"
        )
    ours, theirs = _conditions(setting), _conditions(base)
    if setting.runs[0].method == base.runs[0].method:
        ours = {"seeds": ours["seeds"]}
    unlike = [
        f"{name} {value} instead of {theirs[name]}"
        for name, value in ours.items()
        if None not in (value, theirs[name]) and value != theirs[name]
    ]
    if unlike:
        lines.append(f"{setting.label} has other settings than {base.label}: {'; '.join(unlike)}")
    return lines


def _conditions(setting: Setting) -> dict[str, str | None]:
    """Return seeds, budget, network and optimiser as text; ``None`` for what is not stored."""
    config, key = setting.runs[0].config, "train/samples"
    samples = [run.metrics[key].sum() for run in setting.runs if key in run.metrics]
    return {
        "seeds": ", ".join(
            str(seed) for seed in sorted({run.replicate[0] for run in setting.runs})
        ),
        "rounds": str(max(run.round for run in setting.runs)),
        "epochs": _option(config, "epochs"),
        "samples processed": _rounded(float(np.mean(samples))) if samples else None,
        "network": _option(config, "net"),
        "optimizer": _option(config, "optimizer"),
    }


def _rounded(count: float) -> str:
    """Round to two digits, as other seeds draw other cohorts and splits."""
    return f"about {float(f'{count:.2g}'):,.0f}"


def _option(config: Mapping[str, Any], name: str) -> str | None:
    """Write an option of the method: a class with the arguments that are set."""
    option = _inside(_inside(config.get("model"), "init_args"), name)
    if not isinstance(option, Mapping):
        return None if option is None else str(option)
    init_args = option.get("init_args")
    arguments = init_args.items() if isinstance(init_args, Mapping) else ()
    written = ", ".join(f"{key}={value}" for key, value in arguments if value not in (None, False))
    return f"{str(option.get('class_path')).rpartition('.')[2]}({written})"


def _inside(value: object, key: str) -> object:
    """Return an entry; ``None`` if it is missing or the value is not a mapping (an edited file)."""
    return value.get(key) if isinstance(value, Mapping) else None


def _differ(setting: Setting, base: Setting, key: str) -> bool:
    """Return ``True`` if an entry of ``partition.json`` differs for the same split seed."""
    ours, theirs = (
        {run.replicate[1]: run.partition[key] for run in s.runs if key in run.partition}
        for s in (setting, base)
    )
    return any(ours[seed] != theirs[seed] for seed in ours.keys() & theirs.keys())


def _have_no_split_in_common(setting: Setting, base: Setting) -> bool:
    """Return ``True`` if no run of one has the partition of a run of the other."""
    ours, theirs = (
        {run.partition["hash"] for run in s.runs if "hash" in run.partition}
        for s in (setting, base)
    )
    return bool(ours and theirs) and not ours & theirs
