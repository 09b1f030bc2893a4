"""Verbs that make or use a run: ``pfl fit``, ``pfl test`` and ``pfl export``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import yaml
from jsonargparse import Namespace
from rich.console import Console
from rich.table import Table

from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import explained
from pfl.cli.parser import make_parser
from pfl.core import tensor_file
from pfl.core.trust import untrusted
from pfl.federation import reliability, resume
from pfl.federation.rounds import NonFiniteError
from pfl.federation.run import Callback, Run
from pfl.training.declaration import MethodError

CKPT_PATH = "last (of the newest run with these settings), a run's folder, or a checkpoint file"
# A TypeError of a running method is its author's, and shows where it comes from.
RUN_REFUSALS = (ValueError, OSError, ImportError, NonFiniteError, MethodError)
INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"


class _Watch(Callback):
    """Knows the run, for what is to be said at its end."""

    run: Run | None = None

    def on_fit_start(self, run: Run) -> None:
        """Remember the run."""
        self.run = run

    def advice(self) -> str:
        """Return the advice on how to resume an interrupted run."""
        run = self.run
        if run is None or run.round == 0:
            return "interrupted before the first round was done; there is nothing to go on from"
        if run.folder is None:
            return f"interrupted after round {run.round}; nothing is saved without default_root_dir"
        go_on = ["--config", str(run.folder / "config.yaml"), "--ckpt_path", str(run.folder)]
        return (
            f"interrupted after round {run.round} of {run.rounds}; to go on:\n"
            f"pfl fit {shlex.join(go_on)}"
        )


def fit_experiment(argv: Sequence[str]) -> Experiment:
    """Return the experiment that ``pfl fit`` with these words would run."""
    parser = make_parser("fit", own=["ckpt_path"])
    parser.add_argument("--ckpt_path", type=str | None, help=f"go on from there: {CKPT_PATH}")
    # Set by an agent of W&B: points of a search lie apart from other runs, unless told otherwise.
    if sweep := os.environ.get("WANDB_SWEEP_ID"):
        argv = [f"--loop.default_root_dir={Path('runs', 'sweeps', sweep)}", *argv]
    return Experiment.parse(parser, argv)


def fit(argv: Sequence[str], callbacks: Sequence[Callback] = ()) -> Run:
    """Train a federation; returns the finished run.

    Args:
        argv: The words after ``pfl fit``.
        callbacks: Called after those of the configuration.
    """
    watch = _Watch()
    try:
        experiment = fit_experiment(argv)
        loop, data, module = experiment.loop, experiment.data, experiment.module
        loop.callbacks += [*callbacks, watch]
        with explained(experiment.given, *RUN_REFUSALS):
            resumed = experiment.values.ckpt_path is not None
            source = _source(experiment, trains=True) if resumed else None
            run = loop.fit(module, data, source, experiment.text)
    except KeyboardInterrupt:
        print(watch.advice(), file=sys.stderr)
        raise
    if not experiment.values.loop.progress:
        print(f"fingerprint {run.fingerprint}")
    return run


def test(argv: Sequence[str]) -> None:
    """Test the models of a checkpoint."""
    parser = make_parser("test", own=["ckpt_path", "reliability"])
    parser.add_argument("--ckpt_path", type=str, required=True, help=CKPT_PATH)
    parser.add_argument(
        "--reliability",
        action="store_true",
        help="also write what the reliability diagram of pfl plot shows into the run's folder",
    )
    experiment = Experiment.parse(parser, argv)
    loop, data, module = experiment.loop, experiment.data, experiment.module
    with explained(experiment.given, *REFUSALS):
        source = _source(experiment)
        row = loop.test(module, data, source, experiment.text)
        if experiment.values.reliability:
            file = reliability.measure(loop, module, data, source, experiment.text)
            print(f"wrote {file}")
    table = Table(title=f"{type(module).__name__} on {type(data).__name__}", show_header=False)
    for name, value in row.items():
        table.add_row(name, f"{value:.4f}")
    Console().print(table)


def export(argv: Sequence[str]) -> None:
    """Write one client's personalised model as a Lightning checkpoint."""
    parser = make_parser("export", own=["ckpt_path", "client", "output"])
    parser.add_argument("--ckpt_path", type=str, required=True, help=CKPT_PATH)
    parser.add_argument("--client", type=int, required=True, help="number of the client")
    parser.add_argument("output", type=str, help="the file to write")
    experiment = Experiment.parse(parser, argv)
    loop, data, module = experiment.loop, experiment.data, experiment.module
    values = experiment.values
    with explained(experiment.given, *REFUSALS):
        loop.personal(module, data, _source(experiment), values.client, experiment.text)
        content = lightning_checkpoint(experiment)
        tensor_file.write(Path(values.output), content)
    kind = type(module)
    named = untrusted(content["hyper_parameters"])
    trust = f", trust={named}" if named else ""
    print(
        f"wrote {values.output}; to use it:\n"
        f"from {kind.__module__} import {kind.__name__}\n"
        f'module = {kind.__name__}.load_from_checkpoint("{values.output}"{trust})'
    )


def _source(experiment: Experiment, trains: bool = False) -> str:
    """Return the checkpoint file that a command's ``--ckpt_path`` means, and print it."""
    loop, module = experiment.loop, experiment.module
    wanted = resume.Wanted(loop, module, experiment.text, trains)
    root = resume.root_of(loop, module, experiment.data)
    file = resume.find(experiment.values.ckpt_path, root, wanted)
    if file.is_file():
        print(f"reads {file}")
    return str(file)


def lightning_checkpoint(experiment: Experiment) -> dict[str, Any]:
    """Return a module as ``load_from_checkpoint`` reads it, with how to build it in plain values.

    The instantiator is the one that Lightning trusts; it makes networks and optimisers of their
    class paths, so that nobody has to name them again.
    """
    built = Namespace(model=experiment.model)
    content = yaml.safe_load(experiment.parser.dump(built, skip_validation=True))
    arguments = content["model"]["init_args"]
    found: dict[str, Any] = {
        "pytorch-lightning_version": lightning.__version__,
        "state_dict": experiment.module.cpu().state_dict(),
        "hyper_parameters": {**arguments, "_instantiator": INSTANTIATOR},
    }
    experiment.module.on_save_checkpoint(found)
    return found
