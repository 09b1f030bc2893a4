"""The command ``fit``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pfl.callbacks.progress import last_scores
from pfl.cli.config import Experiment
from pfl.cli.explain import explained, flags
from pfl.cli.parser import make_parser
from pfl.federation import resume
from pfl.federation.run import Callback, Run
from pfl.training.declaration import MethodError

RUN_REFUSALS = (ValueError, OSError, ImportError, MethodError)


class _RunHolder(Callback):
    """Keeps the run for the advice after an interruption."""

    run: Run | None = None

    def __init__(self, resumes: bool) -> None:
        self.resumes = resumes

    def on_fit_start(self, run: Run) -> None:
        """Store the run."""
        self.run = run

    def advice(self) -> str:
        """Return the advice on how to resume an interrupted run."""
        run = self.run
        if run is None and self.resumes:
            return "interrupted before the next round; the run is unchanged: resume it as before"
        if run is None or run.round == 0:
            return "interrupted during the first round; there is nothing to resume"
        if run.folder is None:
            return f"interrupted after round {run.round}; nothing is saved without default_root_dir"
        go_on = ["--config", str(run.folder / "config.yaml"), "--ckpt_path", str(run.folder)]
        return (
            f"interrupted after round {run.round} of {run.rounds}; to resume:\n"
            f"pfl fit {shlex.join(go_on)}"
        )


def fit_experiment(argv: Sequence[str]) -> Experiment:
    """Return the experiment that ``pfl fit`` runs with these arguments."""
    # Set by a W&B agent. The runs of a sweep share a folder, unless the user gives one.
    sweep = os.environ.get("WANDB_SWEEP_ID")
    usual = [f"--loop.default_root_dir={Path('runs', 'sweeps', sweep)}"] if sweep else []
    return Experiment.parse(make_parser("fit"), argv, usual=usual)


def fit(argv: Sequence[str], callbacks: Sequence[Callback] = ()) -> Run:
    """Train a federation, and return the finished run.

    ``callbacks`` run after those of the configuration.
    """
    watch = _RunHolder(resumes=dict(flags(argv)).get("--ckpt_path") not in (None, "null"))
    try:
        experiment = fit_experiment(argv)
        loop, data, module = experiment.loop, experiment.data, experiment.module
        loop = replace(loop, callbacks=[*(loop.callbacks or ()), *callbacks, watch])
        with explained(experiment.settings, *RUN_REFUSALS):
            resumed = experiment.values.ckpt_path is not None
            source = checkpoint_of(experiment, trains=True) if resumed else None
            run = loop.fit(module, data, source, experiment.text)
    except KeyboardInterrupt:
        print(watch.advice(), file=sys.stderr)
        raise
    if not experiment.values.loop.progress:
        last = last_scores(run).items()
        print(", ".join(f"{name} {value:.4f}" for name, value in last))
        print(f"fingerprint {run.fingerprint}")
    return run


def checkpoint_of(experiment: Experiment, trains: bool = False) -> str:
    """Return the checkpoint file that ``--ckpt_path`` selects, and print its path."""
    loop, module = experiment.loop, experiment.module
    path, text = experiment.values.ckpt_path, experiment.text
    file = resume.find_checkpoint(
        path, resume.Wanted(loop, module, experiment.data, path, text, trains=trains)
    )
    if file.is_file():
        print(f"reads {file}")
    return str(file)
