"""The callback that writes a run's tables and descriptions, in open formats."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import torch
import yaml

from pfl.callbacks.analysis import Analysis
from pfl.callbacks.row_file import RowFile
from pfl.core.client import ClientModule
from pfl.core.data import Adopts, FederatedData, ReportsReading, info_of
from pfl.core.devices import kernels
from pfl.core.origins import client_names
from pfl.core.record import MethodRecord
from pfl.core.types import RoundResult
from pfl.disk.reading import read_json
from pfl.disk.writing import no_link, write
from pfl.engines.cores import processor
from pfl.federation import identity
from pfl.federation.run import PARTITION, TRANSFORMS, Run
from pfl.imports import plugins
from pfl.imports.plugins import Plugin

READING = "reading.json"


class Records(Analysis):
    """Writes the run's configuration, environment, partition, metrics and summary.

    ``metrics.csv`` has one row for each round, ``clients.csv`` one row for each tested client of
    an evaluated round, and for each client that failed in a round; ``summary.json`` is written at
    the end. After an interruption, and on a resume, both tables have exactly the finished rounds.
    """

    file = "clients.csv"
    files = (
        *("config.yaml", "environment.json", PARTITION, READING, TRANSFORMS, "summary.json"),
        *("metrics.csv", "clients.csv"),
    )
    _metrics: RowFile | None = None

    def on_fit_start(self, run: Run) -> None:
        """Write what is available before the first round.

        Raises:
            CheckpointError: The rows in ``clients.csv`` are not those of the run.
        """
        super().on_fit_start(run)
        folder = cast(Path, run.folder)
        self._metrics = RowFile(folder / "metrics.csv")
        if run.round > 0:
            self._metrics.write(run.history)
        if not run.ends:
            # It may be from a finished run to which rounds are added.
            no_link(folder / "summary.json").unlink(missing_ok=True)
        if run.config is not None:
            write(folder / "config.yaml", run.config)
        planned = {
            "seed": run.seed,
            "rounds": run.rounds,
            "header": run.header,
            "decided": run.decided,
            "method": about(type(run.module)),
            **identity.beside(yaml.safe_load(run.config or "{}"), run.noise),
        }
        here = environment()
        brought = _brought({*here, *planned})
        if run.round > 0:
            before = read_json(no_link(folder / "environment.json"))
            for key in ("sources", "plugins"):
                planned[key] = _mixed(before.get(key) or {}, planned[key])
            brought = {name: now and before.get(name) is True for name, now in brought.items()}
        tested = {} if run.tested is None else {"evaluated_clients": list(run.tested)}
        columns = {"reports": dict(run.reports), "scores": dict(run.scores)}
        _write_json(folder / "environment.json", here | brought | planned | tested | columns)
        known = label_counts(run.data)
        more: dict[str, Any] = {} if known is None else {"label_counts": known}
        if names := client_names(run.data):
            more["names"] = [*names]
        # Not indented, because it lists every sample.
        _write_json(folder / PARTITION, run.data.description() | more, indent=None)
        if isinstance(run.data, ReportsReading):
            _write_json(folder / READING, run.data.reading.plain())
        if isinstance(run.data, Adopts):
            _write_json(folder / TRANSFORMS, run.data.transforms())

    def writes(self, result: RoundResult) -> bool:
        """Return ``True`` if a client was tested or failed, or its upload was withheld."""
        return result.evaluated or bool(result.failed or result.withheld)

    def rows(self, run: Run, result: RoundResult) -> Sequence[Mapping[str, Any]]:
        """Return the rows of clients that were tested, failed or sent nothing, with reasons."""
        rows: list[dict[str, Any]] = [*map(dict, result.clients)] if result.evaluated else []
        words = {"failed": result.failed, "withheld": result.withheld}
        apart = set[int]().union(*words.values()) - {row["client"] for row in rows}
        rows += ({"round": result.round, "client": client} for client in sorted(apart))
        names = client_names(run.data)
        for row in rows:
            client = int(row["client"])
            if names:
                row["name"] = names[client]
            row |= {what: told[client] for what, told in words.items() if client in told}
        return rows

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Append this round's rows; the one in ``metrics.csv`` is last and marks them complete."""
        super().on_round_end(run, result)
        if self._metrics is not None:
            self._metrics.append([result.metrics])

    def on_interrupt(self, run: Run) -> None:
        """Complete both tables up to the last finished round, whose rows may be missing."""
        if self._rows is None or self._metrics is None:
            return
        if run.history:
            self._metrics.write(run.history)
        if run.latest is None:
            self._rows.replace(run.round, [])
        else:
            self._rows.replace(run.latest.round - 1, self.rows(run, run.latest))

    def on_fit_end(self, run: Run) -> None:
        """Write the summary."""
        content = {"rounds": run.round, "fingerprint": run.fingerprint, "summary": run.summary}
        failures = {"failures": run.failures} if run.failures else {}
        reasons = {"reasons": run.reasons} if run.reasons else {}
        shown = {"guaranteed": dict(run.guaranteed)} if run.guaranteed else {}
        _write_json(cast(Path, run.folder) / "summary.json", content | failures | reasons | shown)


def _brought(own: Collection[str]) -> dict[str, bool]:
    """Return what extras and plug-ins say of this process, by name.

    Args:
        own: The names of all else that is recorded.
    """
    found: list[tuple[str, Plugin, bool]] = []
    for plugin, holds in plugins.loaded("pfl.records"):
        with plugin.noted():
            said = holds()
            plugin.check(isinstance(said, bool), "a function that returns true or false")
            found.append((plugin.name, plugin, said))
    return plugins.settle("record", found, dict.fromkeys(own, "environment.json"))


def about(method: type[ClientModule]) -> dict[str, str]:
    """Return the name of a method, what sets it apart, and its paper; empty without a record."""
    record: MethodRecord | None = vars(method).get("record")
    if record is None:
        return {}
    key = re.sub(r"\W+", "_", record.name.lower())
    cited = {} if record.paper is None else {"bibtex": record.paper.bibtex(key)}
    return {"name": record.name, "apart": record.apart, **cited}


def environment() -> dict[str, Any]:
    """Describe the environment (versions, CPU, threads) that can change results."""
    packages = ("torch", "torchvision", "lightning", "torchmetrics", "numpy", "pfl-lightning")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        # The number of threads changes how sums are rounded.
        "op_threads": torch.get_num_threads(),
        **kernels(),
        "packages": {name: metadata.version(name) for name in packages},
    }


def _mixed(then: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the sources or the plug-ins of a resumed run; warn if any has changed.

    Such a run counts as one of neither source or version.
    """
    found = dict(now)
    for name in {**then, **now}:
        before, after = then.get(name, "none"), now.get(name, "none")
        found[name] = before if before.rpartition("+")[2] == after else f"{before}+{after}"
    if changed := sorted(name for name in found if found[name] != then.get(name, "none")):
        warnings.warn(
            f"{', '.join(changed)}: the source, value or version has changed since the run began: "
            "its rounds are of both, and it counts as a run of neither",
            stacklevel=2,
        )
    return found


def label_counts(data: FederatedData) -> list[list[int]] | None:
    """Return (N, C) training samples of each client and class; ``None`` where they are unknown."""
    infos = (info_of(data, client) for client in range(data.num_clients))
    known = [info.label_counts.tolist() for info in infos if info.label_counts is not None]
    return known if len(known) == data.num_clients else None


def _write_json(path: Path, content: Mapping[str, Any], indent: int | None = 1) -> None:
    write(path, json.dumps(content, indent=indent))
