"""Verbs that read runs: ``pfl plot``, ``pfl compare`` and ``pfl report``.

Their work is imported once their command line is known to be right.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pfl.results import captions, names, sheets
from pfl.results.summary import KINDS

RUNS = "a run's folder, or a folder, which means all runs below it"
METRIC_HELP = (
    "a column of metrics.csv (default: the score that the runs are judged by, the first that all "
    f"have of {', '.join(f'test/{model}/acc' for model in names.JUDGED_BY)})"
)
AT_HELP = "rounds that numbers are about (default: last)"


def plot(argv: Sequence[str]) -> None:
    """Draw runs."""
    parser = argparse.ArgumentParser(prog="pfl plot", description="Draw runs.", allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUNS)
    parser.add_argument(
        "--out", type=Path, help="folder of the pictures (default: plots, beside the runs)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PICTURE",
        help=f"{', '.join(captions.NAMES)}, or what the server reports of clients, such as weight",
    )
    parser.add_argument("--format", nargs="+", choices=("png", "svg"), default=["png", "svg"])
    _add_metric(parser)
    options = parser.parse_args(argv)
    from pfl.cli import reading

    reading.plot(options)


def compare(argv: Sequence[str]) -> None:
    """Put runs side by side."""
    parser = argparse.ArgumentParser(
        prog="pfl compare",
        description="Scores, costs and paired tests. Runs that differ in nothing but their seeds "
        "make one setting.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUNS)
    parser.add_argument(
        "--reference", help="label of the setting that others are tested against (default: first)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help=f"also write the tables ({', '.join(sheets.FORMATS)})",
    )
    _add_metric(parser)
    options = parser.parse_args(argv)
    from pfl.cli import reading

    reading.compare(options)


def report(argv: Sequence[str]) -> None:
    """Write one run as one HTML page."""
    parser = argparse.ArgumentParser(
        prog="pfl report",
        description="One run as one HTML page that needs nothing but itself.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run", metavar="RUN", help="a run's folder, or a folder of runs: the newest of them"
    )
    parser.add_argument("--out", type=Path, help="the file to write (default: RUN/report.html)")
    options = parser.parse_args(argv)
    from pfl.cli import reading

    reading.report(options)


def _add_metric(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metric", help=METRIC_HELP)
    parser.add_argument("--at", choices=KINDS, default="last", help=AT_HELP)
