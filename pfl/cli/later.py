"""Clients of another file that join the run of a command (``--join``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from pfl.cli import catalogue
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import UsageError
from pfl.cli.joining import FLAG, folder_of, separated
from pfl.core.checks import not_negative
from pfl.core.held_out import client_names
from pfl.core.types import DataSource
from pfl.engines.sequential import SequentialEngine
from pfl.federation.later import Adopts, LaterData, adopt
from pfl.federation.prepare import prepared
from pfl.federation.resume import Wanted


def let_join(experiment: Experiment, file: Path) -> None:
    """Replace the data of an experiment by those of clients that join its run.

    Raises:
        UsageError: The data cannot be read as those of the run were.
    """
    given, rounds = experiment.values.data.clone(), experiment.values.join
    kind = catalogue.find(given.class_path)
    source = getattr(kind, "source_argument", None)
    if source not in given.init_args:
        raise UsageError(
            f"{FLAG}: {kind.__name__} does not read the data of clients that join later; tables, "
            "time series, TensorData and folders of images do"
        )
    given.init_args[source] = str(file)
    run = folder_of(Path(experiment.values.ckpt_path))
    try:
        not_negative(join=rounds)
        data: DataSource = (made := experiment.make("data", given))
        if not isinstance(made, Adopts):
            raise TypeError(f"{kind.__name__} cannot adopt the transforms of a run")
        adopt(made, run)
        data.prepare_data()
        data.setup()
        experiment.data = LaterData(data, run, file.stem)
    except REFUSALS as error:
        raise UsageError(f"{FLAG}: {error}") from error
    experiment.loop.join_rounds = rounds
    # The run's own was chosen for its clients, whose data are not here.
    experiment.loop.engine = SequentialEngine()


def name(argv: Sequence[str]) -> str:
    """Return the name of a folder for what is written of the clients that join; empty for none."""
    _, file = separated(argv)
    return "" if file is None else file.stem


def tested(experiment: Experiment, source: str) -> tuple[Mapping[str, float], Table]:
    """Let the clients join; return a summary of their scores, and a table with a row for each."""
    data = experiment.data
    wanted = Wanted(experiment.loop, experiment.module, data, source, experiment.text)
    with prepared(wanted) as federation, federation.computing():
        main, columns = next(iter(federation.context.scorer.better)), federation.newcomers.curve
        row, rows = federation.newcomers.evaluate(federation.run.server, {})
    names = client_names(data)
    table = Table(title=f"{main} of clients that join, zero-shot (0) and after local rounds")
    for column in ("client", "name", "samples", "tested on", *map(str, range(len(columns)))):
        table.add_column(column)
    for one in rows:
        client = int(one["client"])
        about = (client, names[client], int(one["samples"]), int(one["test_samples"]))
        table.add_row(*map(str, about), *(f"{one[name]:.4f}" for name in columns))
    return row, table
