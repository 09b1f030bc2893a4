"""The report of several runs: scores and tests, curves, worst clients, costs, differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from rich.filesize import decimal

from pfl.core.sheet import Sheet
from pfl.disk.reading import text
from pfl.results import names
from pfl.results.cited import methods
from pfl.results.compare import compare
from pfl.results.compare_sheets import sheets
from pfl.results.find import common_score
from pfl.results.page import Part, Text, pictures, rows
from pfl.results.report_one import COSTS
from pfl.results.settings import Setting, differing
from pfl.results.statistics import NONE

# As many clients are listed.
_WORST = 10
# Rows beyond these are folded.
_SHOWN = 12


def content(settings: Sequence[Setting]) -> tuple[str, str, dict[str, Sequence[Part]]]:
    """Return the title, the line below it and the sections of the report of several runs.

    Raises:
        RunError: The runs have no score in common, one of them is not finished, or files are
            damaged.
    """
    runs = [run for setting in settings for run in setting.runs]
    judged_by = common_score(runs)
    tables = sheets(compare(settings, judged_by))
    sections: dict[str, Sequence[Part]] = {sheet.title: [rows(sheet)] for sheet in tables}
    sections["Pictures"] = [pictures(settings, judged_by)]
    if not names.is_pooled(judged_by):
        sections["Clients with the worst scores"] = [rows(_worst(settings, judged_by))]
    sections["Cost"] = [rows(_costs(settings))]
    if differs := differing(settings):
        sections["What differs in the settings"] = [_differences(settings, differs)]
    sections |= methods(runs)
    sections["To repeat it"] = [part for setting in settings for part in _repeated(setting)]
    data = {str(run.partition.get("data", "")) for run in runs} - {""}
    title = f"{', '.join(dict.fromkeys(run.method for run in runs))}"
    title += f" on {' and '.join(sorted(data))}" if data else ""
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    about = [f"{len(settings)} settings" if len(settings) > 1 else "1 setting", f"{len(runs)} runs"]
    about += [f"seeds {', '.join(map(str, seeds))}"] if seeds else []
    about += [f"judged by {names.described(judged_by)}"]
    return title, ", ".join(about), sections


def _worst(settings: Sequence[Setting], metric: str) -> Sheet:
    """List the clients with the worst means over settings, and their score in each."""
    score, run = names.of_client(metric), settings[0].runs[0]
    tables = {setting.label: setting.per_client(metric, "last") for setting in settings}
    values = pd.DataFrame({label: table["value"] for label, table in tables.items()})
    samples = pd.concat([table["samples"] for table in tables.values()])
    samples = samples[~samples.index.duplicated()]
    more = run.scores.get(score.rpartition("/")[2]) is not False
    order = values.mean(axis=1).sort_values(ascending=more, kind="stable").index[:_WORST]
    split_seeds = {one.split_hash: one.replicate[1] for setting in settings for one in setting.runs}
    scale, digits = names.scale(metric)
    cells = []
    for split, client in order:
        known = [one for s in settings for one in s.runs if one.split_hash == split]
        name = f"{known[0].client_names[int(client)]}"
        name += f" (split seed {split_seeds[split]})" * (len(split_seeds) > 1)
        own = values.loc[(split, client)]
        shown = [NONE if np.isnan(v) else f"{scale * v:.{digits}f}" for v in own]
        cells.append([name, f"{samples[(split, client)]:,.0f}", *shown])
    unit = " (%)" * (scale == 100)
    return Sheet(
        "",
        ["client", "training samples", *(f"{label}{unit}" for label in values)],
        cells,
        notes=[f"The worst by the mean over settings, of {len(values)}, after the last round."],
    )


def _costs(settings: Sequence[Setting]) -> Sheet:
    """Make a row for each setting, with means over its runs."""
    simulated = all(run.simulated is not None for one in settings for run in one.runs)
    shown = [cost for cost in COSTS if simulated or cost[1] != "comm/seconds"]
    cells = []
    for setting in settings:
        totals = [np.mean([run.column(name).sum() for run in setting.runs]) for _, name, _ in shown]
        cells.append(
            [setting.label]
            + [
                decimal(int(total)) if written is None else written[0].format(total)
                for total, (_, _, written) in zip(totals, shown, strict=True)
            ]
        )
    note = "In all rounds; the mean over runs."
    return Sheet("", ["setting", *(what for what, _, _ in shown)], cells, notes=[note])


def _differences(settings: Sequence[Setting], found: Mapping[str, Sequence[str | None]]) -> Part:
    cells = [[key, *(NONE if one is None else one for one in own)] for key, own in found.items()]
    heads = ["option", *(setting.label for setting in settings)]
    folded = f"{len(cells)} options" * (len(cells) > _SHOWN)
    return rows(Sheet("", heads, cells), folded, words=True)


def _repeated(setting: Setting) -> list[Part]:
    """Return the configuration of a setting, and the command that runs it with each seed."""
    config = text(setting.runs[0].path / "config.yaml")
    if config is None:
        return []
    seeds = " ".join(str(run.seed) for run in setting.runs)
    file = "".join(letter if letter.isalnum() else "_" for letter in setting.label).strip("_")
    command = f"for seed in {seeds}; do pfl fit --config {file}.yaml --seed=$seed; done"
    return [Text(f"# {file}.yaml\n# {command}\n{config}", setting.label)]
