"""Command lines of the verbs that read runs: ``pfl plot``, ``pfl compare`` and ``pfl report``.

The modules that do the work are imported only after the command line has been parsed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pfl.federation.summary import KINDS
from pfl.results import captions, names, sheets

RUNS = "a run folder, or a folder that stands for all runs below it"
METRIC_HELP = (
    "a column of metrics.csv (default: the main score, which is the first of "
    f"{', '.join(f'test/{model}/acc' for model in names.JUDGED_BY)} that all runs have)"
)
AT_HELP = "the rounds to take the numbers from (default: last)"


def plot(argv: Sequence[str]) -> None:
    """Plot runs."""
    parser = argparse.ArgumentParser(prog="pfl plot", description="Plot runs.", allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUNS)
    parser.add_argument(
        "--out", type=Path, help="the folder to write (default: plots, beside the runs)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PICTURE",
        help=f"{', '.join(captions.NAMES)}, or a value that the server reports for each client, "
        "such as weight",
    )
    parser.add_argument(
        "--format",
        nargs="+",
        choices=("png", "svg"),
        default=["png", "svg"],
        help="file formats (default: both)",
    )
    _add_metric(parser)
    options = parser.parse_args(argv)
    from pfl.cli import reading

    reading.plot(options)


def compare(argv: Sequence[str]) -> None:
    """Compare runs."""
    parser = argparse.ArgumentParser(
        prog="pfl compare",
        description="Compare runs: scores, costs and paired tests. Runs that differ only in their "
        "seeds form one setting.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUNS)
    parser.add_argument(
        "--reference",
        help="label of the setting that the others are tested against (default: the first)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help=f"also write the tables to files ({', '.join(sheets.FORMATS)})",
    )
    _add_metric(parser)
    options = parser.parse_args(argv)
    from pfl.cli import reading

    reading.compare(options)


def report(argv: Sequence[str]) -> None:
    """Write an HTML report of one run."""
    parser = argparse.ArgumentParser(
        prog="pfl report",
        description="Write one run as a self-contained HTML page.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run", metavar="RUN", help="a run folder, or a folder of runs, which means the newest"
    )
    parser.add_argument("--out", type=Path, help="the file to write (default: RUN/report.html)")
    options = parser.parse_args(argv)
    from pfl.cli import reading

    reading.report(options)


def _add_metric(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metric", help=METRIC_HELP)
    parser.add_argument("--at", choices=KINDS, default="last", help=AT_HELP)
