"""Names of metrics in words, for tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from pfl.disk.yaml_text import shipped
from pfl.federation import summary
from pfl.federation.evaluation import Shown, installed

# Words for tables, pictures and reports.
WORDS: Mapping[str, Mapping[str, str]] = shipped("pfl.results", "words.yaml")

# The mean over the tenth of the clients with the fewest training samples; not a column of
# metrics.csv, but computed from clients.csv.
SMALLEST = "_smallest10"
# Endings of a score's summaries over clients in metrics.csv.
SUMMARIES = (*summary.MEANS, "_std")
# Scores by which runs are judged if they have one, rather than by the first of their own: the share
# of right answers says little where one of two classes is rare.
FIRST = ("auroc",)
# The splits of scores, in words.
_SPLITS = {"train": "training", "val": "validation", "test": "test"}
# Models by which runs are judged, in order of preference.
JUDGED_BY = ("personal", "pooled", "global")


@cache
def shown() -> Sequence[Shown]:
    """Return how the evaluations of the project's rooms and of plug-ins are shown."""
    return [kind.shown for kind in installed()]


def score(metric: str) -> str:
    """Describe a score: ``test/personal/acc`` is ``test accuracy``; other names stay as they are.

    A score that the project does not know has its own name, ``test dice``.
    """
    split, _, name = metric.split("/") if metric.count("/") == 2 else ("", "", "")
    name, _, group = name.partition("@")
    own, ending = parted(name)
    if own not in WORDS["scores"]:
        headings = (pair for one in shown() for pair in one.columns("").items())
        if heading := next((heading for heading, column in headings if column == metric), None):
            return heading
        if split not in _SPLITS:
            return metric
    words = WORDS["summaries"].get(ending, "{}").format(WORDS["scores"].get(own, own))
    return f"{_SPLITS.get(split, split)} {words}" + (f" of the group {group}" if group else "")


def model(metric: str) -> str:
    """Name the models that a metric is about; empty for an unknown metric."""
    parts = metric.split("/")
    if len(parts) != 3:
        return ""
    told = (WORDS["models"].get(parts[1]), *(one.models(parts[1]) for one in shown()))
    return next(filter(None, told), parts[1])


def has_form_of_score(metric: str) -> bool:
    """Return ``True`` for a number of an evaluation that is shown as the main score is."""
    columns = ((one.plain, *pair) for one in shown() for pair in one.columns("").items())
    return any(name == metric and heading not in plain for plain, heading, name in columns)


def is_drawn(metric: str) -> bool:
    """Return ``True`` if a score is left to a picture, as that of one of many stages."""
    return any(one.drawn(metric.split("/")[1]) for one in shown())


def described(metric: str) -> str:
    """Describe a metric with its models, such as ``test accuracy, global model``."""
    return ", ".join(filter(None, (score(metric), model(metric))))


def point(metric: str, first: str) -> str:
    """Return the point at which personal models were tested; empty for other models.

    Args:
        metric: For instance ``test/personal_post_local/acc``.
        first: The point of ``test/personal/...``.
    """
    group = metric.split("/")[1:2]
    return first if group == ["personal"] else "".join(group).partition("personal_")[2]


def is_pooled(metric: str) -> bool:
    """Return ``True`` if a metric is about the common test set."""
    return metric.split("/")[1:2] == ["pooled"]


def of_client(metric: str) -> str:
    """Return the score of a client that a metric summarises: ``.../acc`` for ``.../acc_std``."""
    return parted(metric.partition("@")[0])[0]


def parted(metric: str) -> tuple[str, str]:
    """Split a metric into the score of a client and the ending of its summary, if it has one."""
    ending = next((one for one in (*SUMMARIES, SMALLEST) if metric.endswith(one)), "")
    return metric.removesuffix(ending), ending


def rounds(at: str) -> str:
    """Describe the rounds that a number is taken from."""
    return WORDS["rounds"][at]


def heading(metric: str, at: str) -> str:
    """Return a title, such as ``Test accuracy (personal models, last round)``."""
    about = ", ".join(filter(None, (model(metric), rounds(at))))
    first = score(metric)
    return f"{first[0].upper()}{first[1:]} ({about})"


def is_score(metric: str, name: str) -> bool:
    """Return ``True`` if a metric is a score, or its mean over some clients."""
    return summary.is_score(metric.replace(SMALLEST, ""), name)


def in_per_cent(metric: str) -> bool:
    """Return ``True`` if a metric is shown in per cent."""
    return is_score(metric, "acc") or metric.rpartition("/")[2] in ("acc_std", "ece")


def scale(metric: str) -> tuple[int, int]:
    """Return the factor by which a metric is shown, and its decimals."""
    return (100, 2) if in_per_cent(metric) else (1, 4)
