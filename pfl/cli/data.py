"""``pfl data inspect``: show how the data are divided among the clients."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from pfl.cli import catalogue
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import explained
from pfl.cli.reading import Reading
from pfl.results.sheets import show


def inspect(reading: Reading) -> None:
    """Show how the data are divided among the clients, as tables and a picture."""
    experiment = Experiment.of(reading)
    data = experiment.data
    picture: Any = import_module(catalogue.INSPECT)
    loop = experiment.loop
    name = loop.name or type(data).__name__.lower()
    file = Path(experiment.values.out or Path(loop.default_root_dir or "", name, "partition.png"))
    with explained(experiment.settings, *REFUSALS):
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.figure(data, file)
        show(picture.sheets(data))
    print(f"wrote {file}")
