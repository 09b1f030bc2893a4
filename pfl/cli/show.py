"""``pfl list``: list the known methods, nets, data, partitions or metrics."""

from __future__ import annotations

import argparse

from pfl.cli.catalogue import KINDS, METRICS, listed
from pfl.core.sheet import Sheet
from pfl.results.sheets import show as show_sheets


def show(options: argparse.Namespace) -> None:
    """List everything of one kind with the first line of its description, or list the kinds."""
    kind = options.kind
    if kind is None:
        print("\n".join(f"pfl list {kind}" for kind in (*KINDS, METRICS)))
        return
    rows = [(item.name, item.sentence) for item in listed(kind)]
    show_sheets([Sheet("", (kind, "what it is"), rows)])
    if kind == "methods":
        print("which one to choose: see the page 'Choose a method' of the documentation")
    if kind == METRICS:
        print("and every metric of torchmetrics by its path, such as torchmetrics.AUROC")
