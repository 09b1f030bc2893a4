"""Copy finished runs of a table into the ledger."""

from __future__ import annotations

import gzip
import json
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import jpeg
from benchmarks.ledger.runs import Entry, scores
from pfl.cli import shipped
from pfl.cli.explain import UsageError
from pfl.disk.reading import read_yaml
from pfl.engines.cores import processor
from pfl.extras.papers.cells import Cell, expand
from pfl.extras.papers.plan import plan
from pfl.extras.papers.reader import read
from pfl.federation import identity
from pfl.results.runs import RunFolder

# Files of a run that the ledger stores, and those of them that are compressed if they are long.
PACKED = ("clients.csv", "partition.json")
FILES = ("config.yaml", "environment.json", "metrics.csv", "summary.json", *PACKED)
LONG = 50_000  # bytes
# Settings of where images are, in the form of an identity; and what reads a data set's own images.
_IMAGES = {
    *("data.root", "data.mean", "data.std", "data.grayscale"),
    *("data.exif_orientation", "data.over_white", "data.on_unreadable"),
}
_FOLDERS = {"ImageFolder", "CIFAR100Folder"}


def keep(options: Namespace, flags: Sequence[str]) -> Iterator[str]:
    """Copy the finished runs of a table into the ledger.

    Args:
        options: The options of the command.
        flags: Flags of ``pfl fit`` with which the runs were made.

    Yields:
        What became of each run.

    Raises:
        UsageError: The flags are other settings than the table's, and no departure says so.
    """
    table = read(options.keep)
    about: dict[str, Any] = {"table": table.path.stem, "paper": "", **(table.common.reported or {})}
    about = {key: about[key] for key in ("paper", "table")}
    chosen, seeds = expand(table, options.rows, options.columns), options.seeds or table.seeds
    given = {name: getattr(options, name) for name in ("commit", "note", "departure")}
    planned, as_printed = plan(table, chosen, seeds, overrides=flags), plan(table, chosen, seeds)
    runs = [(cell, seed, names[seed]) for cell, names in planned.names.items() for seed in names]
    for cell, seed, name in runs:
        theirs = as_printed.runs[as_printed.names[cell][seed]].identity
        changed = other_settings(about["paper"], planned.runs[name].identity, theirs)
        if changed and not options.departure:
            raise UsageError(
                f"--keep: {cell.label}: {', '.join(changed)}: not as in the table: say what differs"
                " as --departure, so that it is not judged as the paper's cell"
            )
    for cell, seed, name in runs:
        source = planned.runs[name].finished
        if source is not None:
            _copy(source, options.folder, _entry(cell, seed, source, {**about, **given}))
        yield f"{cell.label}, seed {seed}: {'kept' if source else 'not finished'}"


def other_settings(paper: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the settings in which a run is not as its table has it; both are identities.

    Where the images are may differ, also that they are a folder instead of torchvision's files, and
    what the paper's released code sets of clients, cohorts and tests.
    """
    overlay = identity.of_run(_overlay(paper))
    return sorted(
        key
        for key in ours.keys() | theirs.keys()
        if ours.get(key) != theirs.get(key)
        and key not in _IMAGES
        and not (key == "data" and ours[key] in _FOLDERS)
        and (key not in overlay or ours.get(key) != overlay[key])
    )


def _entry(cell: Cell, seed: int, source: Path, given: Mapping[str, str]) -> Entry:
    run, metric, reported = RunFolder.read(source), f"{cell.metric}/{cell.at}", cell.reported
    scores(run, metric)
    cores, threads = run.environment.get("cpus"), run.environment.get("op_threads")
    ended = datetime.fromtimestamp((source / "summary.json").stat().st_mtime, timezone.utc)
    return Entry(
        row=cell.row,
        column=dict(cell.column),
        seed=seed,
        metric=metric,
        reported=None if reported is None else reported.value,
        spread=None if reported is None else reported.error,
        partition=run.split_hash,
        hardware=f"{processor()}, {cores} cores, {threads} op thread{'s' * (threads != 1)}",
        released=is_released(given["paper"], run.partition),
        ended=ended.isoformat(timespec="minutes"),
        images=_images(**read_yaml(source / "config.yaml")["data"]),
        **given,
    )


def _images(class_path: str, init_args: Mapping[str, Any]) -> str:
    """Return the hash of the JPEG files that a run read; empty if its data are others."""
    folder = class_path.rpartition(".")[2] in _FOLDERS
    return _digest(Path(init_args["root"])) if folder else ""


@cache
def _digest(folder: Path) -> str:
    try:
        return jpeg.digest(folder)
    except FileNotFoundError:
        return ""


def _copy(source: Path, folder: Path, entry: Entry) -> None:
    """Copy a run to a temporary folder, then move it into the ledger, so none is half written."""
    target, made = folder / entry.key, folder / f".{entry.key}"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for name in FILES:
        content = (source / name).read_bytes()
        if name in PACKED and len(content) > LONG:
            # Without a time the same content is the same file.
            (made / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (made / name).write_bytes(content)
    text = json.dumps(entry.model_dump(), indent=1, ensure_ascii=False)
    (made / "cell.json").write_text(f"{text}\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    made.rename(target)


def is_released(paper: str, partition: Mapping[str, Any]) -> bool:
    """Return whether a partition was dealt as the shipped overlay of the paper's released code.

    Args:
        paper: The paper.
        partition: Content of ``partition.json``.
    """
    overlay = _overlay(paper)
    if not overlay or not partition:
        return False
    wanted = overlay["data"]["init_args"]
    dealt, recipe = wanted.pop("partition"), partition["partition"]
    kind = recipe["class_path"].rpartition(".")[2]
    return (
        dealt.get("class_path", kind) == kind
        and dealt["init_args"].items() <= recipe["init_args"].items()
        # What an overlay says of batches is no part of a partition.
        and all(partition[key] == value for key, value in wanted.items() if key in partition)
    )


def overlay_of(paper: str) -> str:
    """Return the name of the overlay with the clients of a paper's released code."""
    return f"{paper.lower()}_data_as_released.yaml"


def _overlay(paper: str) -> dict[str, Any]:
    return read_yaml(shipped.root() / "configs" / "overlays" / overlay_of(paper))
