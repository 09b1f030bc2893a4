"""The runs behind a table's cells, which share equal runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

import yaml

from pfl.campaign.campaign import Planned
from pfl.campaign.names import name_of
from pfl.cli import catalogue
from pfl.cli.config import Experiment
from pfl.cli.explain import UsageError, short_keys, sources
from pfl.cli.shipped import with_config_files
from pfl.core.client import ClientModule
from pfl.extras.papers.cells import Cell
from pfl.extras.papers.planned import PlannedRun
from pfl.extras.papers.shorten import shorten
from pfl.extras.papers.spec import TableFile
from pfl.federation import identity

ROOT = "runs/tables"


@dataclass(frozen=True, eq=False)
class TablePlan:
    """The runs of a table.

    Attributes:
        names: Name of the run of each cell and seed, except of skipped cells.
        runs: Runs by name, in the order of the cells.
        seeds: Seeds of each cell.
        scale: Share of rounds and data.
    """

    names: Mapping[Cell, Mapping[int, str]]
    runs: Mapping[str, PlannedRun]
    seeds: Sequence[int]
    scale: float

    def missing(self) -> Sequence[Planned]:
        """Return the runs that are not finished."""
        return [run.planned for run in self.runs.values() if not run.is_finished]


def plan(
    table: TableFile,
    cells: Iterable[Cell],
    seeds: Sequence[int],
    scale: float = 1,
    overrides: Sequence[str] = (),
) -> TablePlan:
    """Plan the runs of cells.

    The flags in ``overrides`` take precedence over the table's settings. A configuration file among
    them may fix the value of a seed key other than ``seed``: a paper's released code has the same
    clients for all seeds.

    Raises:
        UsageError: A configuration is wrong.
    """
    fixed = {setting.keys for setting in sources(with_config_files(overrides))}
    keys = [key for key in table.seed_keys if short_keys(key.split(".")) not in fixed - {("seed",)}]
    names: dict[Cell, dict[int, str]] = {}
    runs: dict[str, PlannedRun] = {}
    for cell in cells:
        if cell.skip is not None:
            continue
        first = _prepared(table, cell, parse(table, cell, overrides), scale)
        # Serialisation is slow, and only the seeds differ.
        config = yaml.safe_load(first.text)
        for seed in seeds:
            run = _planned(keys, cell, first, config, seed, scale)
            runs.setdefault(run.name, run)
            names.setdefault(cell, {})[seed] = run.name
    return TablePlan(names, runs, seeds, scale)


def parse(table: TableFile, cell: Cell, overrides: Sequence[str] = ()) -> Experiment:
    """Return a cell's configuration without seeds and scale.

    Raises:
        UsageError: The configuration is wrong.
    """
    words = [*cell.words, f"--loop.default_root_dir={ROOT}", *overrides]
    try:
        return Experiment.parse("fit", words)
    except UsageError as error:
        raise UsageError(f"{table.path}: {cell.label}: {error}") from error


def _prepared(table: TableFile, cell: Cell, parsed: Experiment, scale: float) -> Experiment:
    """Apply the settings that all seeds of a cell share."""
    values = parsed.values
    if values.loop.default_root_dir is None:
        raise UsageError(f"{table.path}: {cell.label}: a table needs loop.default_root_dir")
    for key in table.seed_keys:
        if key not in values:
            raise UsageError(f"{table.path}: seed_keys: {cell.label} has no key {key!r}")
    values["loop.progress"] = False
    if scale < 1:
        shorten(values, scale, table.scaling)
    # At most a tenth of a run is lost, even of a short one.
    often = max(1, values.loop.rounds // 10)
    values["loop.checkpoint_every"] = min(values.loop.checkpoint_every, often)
    return parsed


def _planned(
    keys: Sequence[str],
    cell: Cell,
    first: Experiment,
    config: dict[str, Any],
    seed: int,
    scale: float,
) -> PlannedRun:
    """Plan the run of one seed, named by the content of its configuration."""
    values, config = first.values.clone(), deepcopy(config)
    for key in keys:
        values[key] = seed
        *parents, last = key.split(".")
        reduce(getitem, parents, config)[last] = seed
    whole = scale == 1 or values.get("data.init_args.max_samples")
    method: type[ClientModule] = catalogue.find(config["model"]["class_path"])
    noise = method.noise_generator(config["model"].get("init_args") or {})
    content = identity.of_run(config, identity.beside(config, noise))
    name = name_of(content, 1 if whole else scale)
    values["loop.name"] = name
    experiment = Experiment(first.parser, values, first.settings)
    return PlannedRun(name, f"{cell.label}, seed {seed}", experiment, content, scale)
