"""Clients of another file that join a run (``--join``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from pfl.cli import catalogue
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import UsageError, run_folder
from pfl.core.checks import not_negative
from pfl.core.data import DataSource
from pfl.core.origins import client_names
from pfl.core.sheet import Sheet
from pfl.extras.joining import FLAG
from pfl.extras.joining.data import adopt, joining
from pfl.federation.evaluation import find
from pfl.federation.evaluator import Evaluated
from pfl.federation.prepare import prepared
from pfl.federation.resume import Wanted


def let_join(experiment: Experiment, file: Path) -> None:
    """Replace an experiment's data by those of clients that join its run.

    Raises:
        UsageError: The file cannot be read like the run's data.
    """
    config, rounds = experiment.values.data.clone(), experiment.values.join
    data_class = catalogue.find(config.class_path)
    source = getattr(data_class, "source_argument", None)
    if source not in config.init_args:
        raise UsageError(
            f"{FLAG}: {data_class.__name__} cannot read data of clients that join later; "
            "tables, time series, TensorData and folders of images do"
        )
    config.init_args[source] = str(file)
    run = run_folder(Path(experiment.values.ckpt_path))
    try:
        not_negative(join=rounds)
        data = experiment.make("data", config)
        adopt(data, run)
        data.prepare_data()
        data.setup()
        experiment.data = cast(DataSource, joining(data, run, file.stem))
    except REFUSALS as error:
        raise UsageError(f"{FLAG}: {error}") from error
    # The run's engine was chosen for its clients, whose data may not be here.
    joins = find("newcomers")(join_rounds=rounds)
    experiment.loop = replace(
        experiment.loop, evaluations=[joins], engine="sequential", workers=None
    )


def sheets_of_joining(experiment: Experiment, source: str) -> list[Sheet]:
    """Let the clients join, and return the tables of what is measured of them."""
    data = experiment.data
    wanted = Wanted(experiment.loop, experiment.module, data, source, experiment.text)
    with prepared(wanted) as federation, federation.computing():
        state, row = federation.run.server, dict[str, float]()
        tested = Evaluated(federation.evaluator, (), {}, state, state, row)
        for one in federation.evaluations:
            row |= one.measure(tested)
        measured = row, tested.rows, client_names(data)
        return [sheet for one in federation.evaluations for sheet in one.sheets(*measured)]
