"""The commands on trained runs: ``test``, ``validate``, ``predict`` and ``export``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml
from jsonargparse import Namespace
from torch import Tensor

from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import UsageError, explained
from pfl.cli.reading import Reading
from pfl.cli.runs import checkpoint_of
from pfl.core.data import FederatedData
from pfl.core.data_view import DataView
from pfl.core.export import INSTANTIATORS, untrusted
from pfl.core.export import write as write_export
from pfl.core.origins import KnowsOrigins, client_names, warn_of_name
from pfl.core.per_client import Variants, variants
from pfl.core.sheet import Sheet
from pfl.core.types import Split
from pfl.disk.writing import csv_text, no_link, write
from pfl.federation import resume
from pfl.federation.evaluation import tables
from pfl.results.sheets import show


class Change(Protocol):
    """What a room does with the experiment of a command on a run, if its flags are given."""

    def apply(self, experiment: Experiment) -> None:
        """Change the experiment.

        Raises:
            UsageError: It cannot be changed so.
        """

    def sheets(self, experiment: Experiment, source: str) -> list[Sheet]:
        """Return the tables of pfl test in the place of scores; ``source`` is the checkpoint."""


def test(reading: Reading) -> None:
    """Test the models of a checkpoint or of clients that join its run."""
    experiment, change = _experiment(reading)
    values = experiment.values
    asked = [table for name, table in tables().items() if getattr(values, name, False)]
    if change is not None and asked:
        flags = " and ".join(f"--{name}" for name in tables())
        raise UsageError(f"--join tests the clients that join: leave out {flags}")
    loop, data, module = experiment.loop, experiment.data, experiment.module
    with explained(experiment.settings, *REFUSALS):
        source = checkpoint_of(experiment)
        if change is not None:
            show(change.sheets(experiment, source))
            return
        row = loop.test(module, data, source, experiment.text)
        for table in asked:
            print(f"wrote {loop.tabulate(table, module, data, source, experiment.text)}")
    _show_scores(experiment, row)


def validate(reading: Reading) -> None:
    """Test the models of a checkpoint on the clients' validation data.

    Raises:
        UsageError: No client has validation data.
    """
    experiment, _ = _experiment(reading)
    loop, data, module = experiment.loop, experiment.data, experiment.module
    with explained(experiment.settings, *REFUSALS):
        row = loop.test(module, data, checkpoint_of(experiment), experiment.text)
    scores = {name: value for name, value in row.items() if name.startswith("val/")}
    if not scores:
        raise UsageError("no client has validation data: train with data.val_fraction above 0")
    _show_scores(experiment, scores)


def _show_scores(experiment: Experiment, row: Mapping[str, float]) -> None:
    names = (type(experiment.module).__name__, type(experiment.data).__name__)
    rows = [(name, f"{value:.4f}") for name, value in row.items()]
    show([Sheet(" on ".join(names), ("", ""), rows)])


def predict(reading: Reading) -> None:
    """Write the predictions of each client's personalised model to a CSV file.

    Raises:
        UsageError: ``--out`` is required, or no client has data of the chosen split.
    """
    experiment, _ = _experiment(reading)
    loop, data, module = experiment.loop, experiment.data, experiment.module
    values, count = experiment.values, 0
    with explained(experiment.settings, *REFUSALS):
        source = checkpoint_of(experiment)
        run = resume.folder_of(Path(source))
        if values.out is None and run is None:
            raise UsageError(f"{source} is not in a run folder: give the folder to write as --out")
        joined = data.stands_for if isinstance(data, DataView) else ""
        usual = no_link(no_link(Path(run or "", "predictions")) / values.split)
        folder = Path(values.out or usual, joined)
        folder.mkdir(parents=True, exist_ok=True)
        predictions = loop.predict(module, data, source, values.split, experiment.text)
        for client, predicted, targets in predictions:
            about = _about(data, client, values.split)
            _write_predictions(folder / f"client_{client}.csv", about, predicted, targets)
            count += 1
    if not count:
        raise UsageError(f"no client has {values.split} data")
    print(f"wrote {folder}/client_*.csv, {count} files with targets and predictions")


def _about(data: FederatedData, client: int, split: Split) -> dict[str, Sequence[Any]]:
    """Return columns with the origin of a client's samples, if the data have any."""
    rows = data.rows(client, split) if isinstance(data, KnowsOrigins) else ()
    if not rows:
        return {}
    names = client_names(data)
    return {"row": rows, **({"name": [names[client]] * len(rows)} if names else {})}


def _write_predictions(
    path: Path, about: Mapping[str, Sequence[Any]], predicted: Tensor, targets: Tensor
) -> None:
    """Write one row for each sample: origin, target and prediction."""
    columns: dict[str, Any] = {**about}
    for name, values in (("target", targets), ("prediction", predicted)):
        if values.dim() == 1:
            columns[name] = values.tolist()
        else:
            columns |= {f"{name}_{n}": one.tolist() for n, one in enumerate(values.unbind(1))}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    write(path, csv_text(rows, columns))


def export(reading: Reading) -> None:
    """Write one client's personalised model as a Lightning checkpoint."""
    experiment, change = _experiment(reading)
    loop, data, module = experiment.loop, experiment.data, experiment.module
    values = experiment.values
    with explained(experiment.settings, *REFUSALS):
        client = _client(data, values.client, joins=change is not None)
        source = checkpoint_of(experiment)
        output = resume.beside(Path(values.output), Path(source))
        loop.personal(module, data, source, client, experiment.text)
        arguments = recipe_of(experiment)
        write_export(output, module, arguments)
    method = type(module)
    named = untrusted(arguments)
    trust = f", trust={named}" if named else ""
    print(
        f"wrote {values.output}; to use it:\n"
        f"from {method.__module__} import {method.__name__}\n"
        f'module = {method.__name__}.load_from_checkpoint("{values.output}"{trust})'
    )


def _experiment(reading: Reading) -> tuple[Experiment, Change | None]:
    """Return the experiment of a command on a run, and the change that a room has made of it."""
    experiment = Experiment.of(reading)
    if reading.change is not None:
        reading.change.apply(experiment)
    return experiment, reading.change


def _client(data: FederatedData, name: int | str, joins: bool) -> int:
    """Return the number of a client given by number or name.

    If a client of the run and one that joins it have the same name, the latter is returned.

    Raises:
        UsageError: There is no such client.
    """
    names = client_names(data)
    if isinstance(name, str) and name not in names:
        known = ", ".join(names[-20:]) or "numbers"
        raise UsageError(f"there is no client {name!r}, only {known}")
    if isinstance(name, int):
        warn_of_name(name, names)
        number = name
    else:
        number = len(names) - 1 - names[::-1].index(name)
    if joins and 0 <= number < data.num_clients and not len(data.split(number, "train")):
        raise UsageError(f"client {name} is a client of the run: leave out --join and --data")
    return number


def recipe_of(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of a method as plain values for an exported file.

    They name Lightning's instantiator, which builds networks and optimisers from their class paths,
    so that ``load_from_checkpoint`` needs no arguments. If clients have different networks, the
    method's current one is stored.
    """
    built = Namespace(model=experiment.model)
    content = yaml.safe_load(experiment.parser.dump(built, skip_validation=True))
    networks = variants(experiment.module)
    arguments = _own_network(content["model"]["init_args"], networks[0] if networks else None)
    return {**arguments, "_instantiator": INSTANTIATORS[0]}


def _own_network(value: Any, networks: Variants | None) -> Any:  # noqa: ANN401
    """Return a part of a configuration with the method's network in place of the variants."""
    if networks is None or not isinstance(value, dict):
        return value
    name = type(networks).__name__
    if str(value.get("class_path")).rpartition(".")[2] == name:
        return value["init_args"]["nets"][networks.number]
    return {key: _own_network(item, networks) for key, item in value.items()}
