"""``pfl list``: the known methods, nets, data, partitions or metrics."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from pfl.cli.catalogue import METRICS, listed
from pfl.cli.known import KINDS


def show(options: argparse.Namespace) -> None:
    """List everything of one kind, with the first line of each description, or the kinds."""
    kind = options.kind
    if kind is None:
        print("\n".join(f"pfl list {kind}" for kind in (*KINDS, METRICS)))
        return
    table = Table(kind, "what it is", box=None, pad_edge=False)
    for item in listed(kind):
        table.add_row(item.name, item.sentence)
    Console().print(table)
    if kind == "methods":
        print("which one to choose: see the page 'Choose a method' of the documentation")
    if kind == METRICS:
        print("and every metric of torchmetrics by its path, such as torchmetrics.AUROC")
