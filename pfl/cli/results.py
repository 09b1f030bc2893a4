"""The commands that read runs: ``pfl plot``, ``pfl compare`` and ``pfl report``.

Plotting and statistics are imported only once the runs are found.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from pfl.cli.explain import UsageError, explained
from pfl.disk.writing import no_link, write
from pfl.results import names, sheets
from pfl.results.analyses import no_picture, told
from pfl.results.find import PLOTS, common_score, find_runs
from pfl.results.runs import RunFolder
from pfl.results.settings import Setting, group, labelled


def plot(options: argparse.Namespace) -> None:
    """Plot runs."""
    with explained((), ValueError, OSError):
        runs = _find_runs(options.runs)
        folder = options.out or no_link(_beside(runs) / PLOTS)
        _check_metric(runs, options.metric)
        _check_pictures(runs, options.only or ())
        metric = options.metric or common_score(runs)
        from pfl.results import pictures

        drawn = pictures.draw(_settings(runs), options.only, metric, options.at)
        missing = [f"{picture.name}: {picture.refusal}" for picture in drawn if picture.refusal]
        if options.only and missing:
            raise UsageError("; ".join(missing))
        files = pictures.write(drawn, folder, options.format)
    print(f"{metric}: {names.described(metric)}")
    for file in files:
        print(file)


def compare(options: argparse.Namespace) -> None:
    """Print tables that compare runs, and write them to files.

    Raises:
        UsageError: A file would be written into a run's folder, or runs cannot be compared.
    """
    for file in options.out:
        if file.suffix == ".csv" and (file.parent / "environment.json").is_file():
            raise UsageError(f"--out {file}: the CSV files of this folder are a run's own records")
    with explained((), ValueError, OSError):
        runs = _find_runs(options.runs)
        settings = _settings(runs)
        _check_metric(runs, options.metric)
        labelled(settings, options.reference)
        from pfl.results.compare import compare as compare_settings
        from pfl.results.compare_sheets import sheets as comparison_sheets

        comparison = compare_settings(settings, options.metric, options.at, options.reference)
        tables = comparison_sheets(comparison)
        for file in options.out:
            sheets.write(tables, file)
    sheets.show(tables)
    for file in options.out:
        print(f"wrote {file}")


def report(options: argparse.Namespace) -> None:
    """Write a self-contained HTML report of one run, or of several beside each other.

    Raises:
        UsageError: The file does not end in ``.html``, or a run does not exist.
    """
    if options.out is not None and options.out.suffix != ".html":
        raise UsageError(f"--out {options.out}: a report is an .html file")
    with explained((), ValueError, OSError):
        settings = _settings(_find_runs(options.runs))
        from pfl.results.report import report as report_of

        runs = [run for setting in settings for run in setting.runs]
        file = options.out or _beside(runs) / "report.html"
        judged_by = names.described(common_score(runs))
        write(file, report_of(settings))
    print(f"wrote {file} ({judged_by})")


def cite(options: argparse.Namespace) -> None:
    """Print the BibTeX entries of the papers of runs' methods, and of the project."""
    with explained((), ValueError, OSError):
        runs = find_runs(options.runs)
        from pfl.results.cited import bibliography

        print(bibliography(runs))


def _check_metric(runs: Sequence[RunFolder], metric: str | None) -> None:
    """Check that all runs have the score that is asked for."""
    for run in runs if metric is not None else ():
        run.evaluated(metric)


def _check_pictures(runs: Sequence[RunFolder], only: Sequence[str]) -> None:
    """Check the names of pictures as far as sources tell them.

    Raises:
        UsageError: There is no such picture.
    """
    others = told() if only else None
    known = {*names.WORDS["pictures"], *(others or ()), *(n for run in runs for n in run.reported)}
    for name in only if others is not None else ():
        if name not in known:
            raise UsageError(f"{name}: {no_picture(name, known)}")


def _find_runs(paths: Sequence[str]) -> list[RunFolder]:
    """Find the runs below the given paths and print their folders."""
    runs = find_runs(paths)
    for run in runs:
        print(f"reads {run.path}")
    return runs


def _beside(runs: Sequence[RunFolder]) -> Path:
    """Return the folder of a single run, or the common parent folder of several."""
    if len(runs) == 1:
        return runs[0].path
    return Path(os.path.commonpath([run.path.resolve() for run in runs]))


def _settings(runs: Sequence[RunFolder]) -> list[Setting]:
    settings, repeated = group(runs)
    for run in repeated:
        print(f"skips {run.path}: there is a newer run with the same setting and seed")
    return settings
