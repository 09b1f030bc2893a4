"""``pfl list``: the known methods, nets, data, partitions or metrics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from pfl.cli.outline import KINDS, Sources

METRICS = "metrics"


def show(argv: Sequence[str]) -> None:
    """List everything of one kind, with the first line of each description, or the kinds."""
    parser = argparse.ArgumentParser(
        prog="pfl list", description="List the known methods, nets, data, partitions or metrics."
    )
    parser.add_argument("kind", nargs="?", type=str.lower, choices=(*KINDS, METRICS))
    kind = parser.parse_args(argv).kind
    if kind is None:
        print("\n".join(f"pfl list {kind}" for kind in (*KINDS, METRICS)))
        return
    sources = Sources()
    found = sources.metrics() if kind == METRICS else sources.of_kind(kind)
    for file, fault in sources.faults.items():
        print(f"pfl: {file} is left out because it cannot be imported: {fault}", file=sys.stderr)
    table = Table(box=None, pad_edge=False)
    for column in (kind, "what it is"):
        table.add_column(column)
    for item in found:
        table.add_row(item.shown, item.sentence)
    Console().print(table)
    if kind == METRICS:
        print("and every metric of torchmetrics by its path, such as torchmetrics.AUROC")
