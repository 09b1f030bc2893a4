"""Several settings side by side: scores, costs, and paired tests against one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import EngFormatter

from pfl.results import names
from pfl.results.paired import Paired, holm, over_clients, over_replicates
from pfl.results.runs import METRIC, At, Floats, RunError
from pfl.results.settings import Setting
from pfl.results.sheets import Record, Sheet

NONE = "-"


@dataclass(frozen=True)
class Estimate:
    """Mean over runs and its standard error, which one run does not tell."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Floats) -> Estimate:
        """From one value a run."""
        count = len(values)
        error = float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else None
        return cls(float(values.mean()), error)

    def text(self, scale: float = 1, digits: int = 2) -> str:
        """For instance ``81.20 ± 0.35``."""
        if np.isnan(self.mean):
            return NONE
        mean = f"{scale * self.mean:.{digits}f}"
        return mean if self.error is None else f"{mean} ± {scale * self.error:.{digits}f}"


@dataclass(frozen=True)
class Row:
    """One setting's scores and costs.

    Attributes:
        label: Of the setting.
        runs: Their number.
        rounds: Of the longest run.
        scores: By metric.
        bytes: Moved both ways in all rounds.
        seconds: Of training and aggregation.
    """

    label: str
    runs: int
    rounds: int
    scores: dict[str, Estimate]
    bytes: Estimate
    seconds: Estimate


@dataclass(frozen=True)
class Contrast:
    """One setting against the reference."""

    label: str
    clients: Paired | None
    replicates: Paired | None


@dataclass(frozen=True)
class Comparison:
    """What ``pfl compare`` found.

    Attributes:
        metric: That is tested.
        at: After which rounds.
        rows: One a setting.
        reference: Label of the setting that the others are tested against.
        contrasts: One for each other setting.
    """

    metric: str
    at: At
    rows: Sequence[Row]
    reference: str
    contrasts: Sequence[Contrast]


def compare(
    settings: Sequence[Setting],
    metric: str = METRIC,
    at: At = "last",
    reference: str | None = None,
) -> Comparison:
    """Scores, costs and tests.

    Args:
        settings: What is compared.
        metric: A column of ``metrics.csv`` and of ``clients.csv``.
        at: After which rounds; see :mod:`pfl.results.summary`.
        reference: Label of the setting that the others are tested against; the first by default.

    Raises:
        RunError: A run is unfinished or lacks what is asked for, or no setting has that label.
    """
    for run in (run for setting in settings for run in setting.runs):
        if not run.finished:
            planned = run.environment.get("rounds", "more")
            raise RunError(f"the run {run.path} is not finished (round {run.round} of {planned})")
    labels = [setting.label for setting in settings]
    reference = labels[0] if reference is None else reference
    if reference not in labels:
        raise RunError(f"there is no setting {reference!r} among {', '.join(labels)}")
    base = settings[labels.index(reference)]
    return Comparison(
        metric=metric,
        at=at,
        rows=[_row(setting, metric, at) for setting in settings],
        reference=reference,
        contrasts=[_contrast(s, base, metric, at) for s in settings if s is not base],
    )


def _row(setting: Setting, metric: str, at: At) -> Row:
    group = metric.rpartition("/")[0]
    wanted = dict.fromkeys((metric, *(f"{group}/{n}" for n in ("acc_worst10", "acc_std", "ece"))))
    present = [name for name in wanted if all(name in run.metrics for run in setting.runs)]
    runs = [(run, run.chosen(at, metric)) for run in setting.runs]
    return Row(
        label=setting.label,
        runs=len(runs),
        rounds=max(run.round for run in setting.runs),
        scores={
            name: Estimate.of(np.array([run.score(name, rounds) for run, rounds in runs]))
            for name in present
        },
        bytes=Estimate.of(np.array([run.bytes[-1] for run in setting.runs])),
        seconds=Estimate.of(np.array([run.seconds[-1] for run in setting.runs])),
    )


def _contrast(setting: Setting, base: Setting, metric: str, at: At) -> Contrast:
    """On the replicates that both have; clients are also compared if there are none."""
    common = {run.replicate for run in setting.runs} & {run.replicate for run in base.runs}
    pair = [s.only(common) if common else s for s in (setting, base)]
    return Contrast(
        setting.label,
        clients=over_clients(*_matched(*(_client_scores(s, metric, at) for s in pair))),
        replicates=over_replicates(*_matched(*(_run_scores(s, metric, at) for s in pair))),
    )


def _client_scores(setting: Setting, metric: str, at: At) -> dict[object, float]:
    """By client; of the common test set none."""
    if names.is_pooled(metric):
        return {}
    found = setting.per_client(metric, at)
    return dict(zip(found.clients, found.values.tolist(), strict=True))


def _run_scores(setting: Setting, metric: str, at: At) -> dict[object, float]:
    scores = setting.values(metric, at).tolist()
    return {run.replicate: score for run, score in zip(setting.runs, scores, strict=True)}


def _matched(ours: dict[object, float], theirs: dict[object, float]) -> tuple[Floats, Floats]:
    """The values of what both have, in one order."""
    common = [key for key in ours if key in theirs]
    return np.array([ours[key] for key in common]), np.array([theirs[key] for key in common])


# As tables.

_SCORES_NOTE = (
    "Mean over runs ± standard error. Worst tenth: mean over the clients of least accuracy. "
    "Spread: standard deviation over clients. ECE: expected calibration error. "
    "Moved: both ways, all rounds. Seconds: training and aggregation."
)

_HEADINGS = {"acc": "accuracy", "acc_worst10": "worst tenth", "acc_std": "spread", "ece": "ECE"}


def sheets(comparison: Comparison) -> list[Sheet]:
    """The scores and costs, and each kind of test for which there are pairs."""
    found = [_scores(comparison)]
    for what in ("clients", "replicates"):
        if any(getattr(contrast, what) is not None for contrast in comparison.contrasts):
            found.append(_tests(comparison, what))
    return found


def _scores(comparison: Comparison) -> Sheet:
    rows = comparison.rows
    columns = list(dict.fromkeys(name for row in rows for name in row.scores))
    moved = EngFormatter("B", places=1)
    heads = [
        _HEADINGS.get(name.rpartition("/")[2], names.score(name)) + " (%)" * names.in_per_cent(name)
        for name in columns
    ]
    cells = [
        [
            row.label,
            str(row.runs),
            str(row.rounds),
            *(_score_text(row.scores.get(name), name) for name in columns),
            moved(row.bytes.mean),
            row.seconds.text(digits=1),
        ]
        for row in rows
    ]
    return Sheet(
        title=names.heading(comparison.metric, comparison.at),
        columns=[
            *("setting", "runs", "rounds"),
            *heads,
            *("moved", "seconds"),
        ],
        rows=cells,
        notes=[_SCORES_NOTE],
        records=_records(comparison),
    )


def _score_text(estimate: Estimate | None, metric: str) -> str:
    if estimate is None:
        return NONE
    return estimate.text(100) if names.in_per_cent(metric) else estimate.text(digits=4)


_TESTS = {
    "clients": (
        "Paired over clients",
        "rank-biserial",
        "Clients for whom the difference is positive, negative, or none. Wilcoxon's signed-rank "
        "test on each client's mean over runs. The clients of a federation learn together: this "
        "tells whether its clients gain, not what other seeds would give.",
    ),
    "replicates": (
        "Paired over seeds",
        "Cohen's d",
        "Student's paired t test on the means over clients.",
    ),
}


def _tests(comparison: Comparison, what: str) -> Sheet:
    title, effect, note = _TESTS[what]
    pairs: dict[str, Paired] = {
        contrast.label: found
        for contrast in comparison.contrasts
        if (found := getattr(contrast, what)) is not None
    }
    adjusted = holm([paired.p for paired in pairs.values()])
    scale = 100 if names.in_per_cent(comparison.metric) else 1
    rows = [
        [
            label,
            f"{paired.better}/{paired.worse}/{paired.pairs - paired.better - paired.worse}",
            f"{scale * paired.difference:+.2f}",
            f"{scale * paired.low:+.2f} to {scale * paired.high:+.2f}",
            f"{paired.effect:+.2f}",
            _p_text(paired.p),
            _p_text(p),
        ]
        for (label, paired), p in zip(pairs.items(), adjusted, strict=True)
    ]
    unit = " (points)" if scale == 100 else ""
    return Sheet(
        title=f"{title}, against {comparison.reference}",
        columns=[
            *("setting", "+/-/=", f"difference{unit}", "95% interval"),
            *(effect, "p", "p (Holm)"),
        ],
        rows=rows,
        notes=[note],
    )


def _p_text(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _records(comparison: Comparison) -> list[Record]:
    """One row a setting, with all numbers unrounded."""
    contrasts = {contrast.label: contrast for contrast in comparison.contrasts}
    found: list[Record] = []
    for row in comparison.rows:
        record: dict[str, str | float | int | None] = {
            "setting": row.label,
            "at": comparison.at,
            "runs": row.runs,
            "rounds": row.rounds,
        }
        costs = {"bytes": row.bytes, "seconds": row.seconds}
        for name, estimate in {**row.scores, **costs}.items():
            record |= {name: estimate.mean, f"{name}/stderr": estimate.error}
        for what in _TESTS:
            paired = getattr(contrasts.get(row.label), what, None)
            if paired is not None:
                record |= {f"{what}/{key}": value for key, value in vars(paired).items()}
        found.append(record)
    return found
