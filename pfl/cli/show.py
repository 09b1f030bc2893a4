"""Verbs that show what there is: ``pfl list`` and ``pfl data inspect``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from pfl.cli import catalogue
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import explained
from pfl.cli.parser import make_parser


def show(argv: Sequence[str]) -> None:
    """Show what there is of one kind."""
    parser = argparse.ArgumentParser(prog="pfl list", description="Show what there is.")
    parser.add_argument("kind", type=str.lower, choices=tuple(catalogue.KINDS))
    kind = parser.parse_args(argv).kind
    catalogue.load()
    catalogue.show(kind)


def inspect(argv: Sequence[str]) -> None:
    """Show who holds what, as tables and as a picture."""
    told = "the picture to write (default: partition.png, beside the runs of this name)"
    own = {"--out": {"type": str | None, "help": told}}
    experiment = Experiment.parse(make_parser("data inspect", own, model=False), argv)
    data = experiment.data
    picture = import_module("datamodules.inspect")
    loop = experiment.loop
    name = loop.name or type(data).__name__.lower()
    file = Path(experiment.values.out or Path(loop.default_root_dir or "", name, "partition.png"))
    with explained(experiment.given, *REFUSALS):
        Console().print(picture.table(data))
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.figure(data, file)
    print(f"wrote {file}")
