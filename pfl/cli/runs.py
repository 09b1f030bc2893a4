"""The command ``fit``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

from pfl import federation
from pfl.cli.config import Experiment
from pfl.cli.explain import explained
from pfl.cli.reading import Reading
from pfl.core.failure import ExplainedError
from pfl.federation.run import Callback, Run

RUN_REFUSALS = (ValueError, OSError, ImportError, ExplainedError)


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


def fit(reading: Reading, callbacks: Sequence[Callback] = ()) -> Run:
    """Train a federation, and return the finished run.

    ``callbacks`` run after those of the configuration.
    """
    paths = [item.text for item in reading.settings if item.keys == ("ckpt_path",)]
    watch = _RunHolder(resumes=bool(paths) and paths[-1] != "null")
    try:
        experiment = Experiment.of(reading)
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
        from pfl.callbacks.progress import last_scores

        last = last_scores(run).items()
        print(", ".join(f"{name} {value:.4f}" for name, value in last))
        print(f"fingerprint {run.fingerprint}")
    return run


def checkpoint_of(experiment: Experiment, trains: bool = False) -> str:
    """Return the checkpoint file that ``--ckpt_path`` selects, and print its path."""
    loop, module = experiment.loop, experiment.module
    path, text = experiment.values.ckpt_path, experiment.text
    file = federation.find_checkpoint(
        path, federation.Wanted(loop, module, experiment.data, path, text, trains=trains)
    )
    if file.is_file():
        print(f"reads {file}")
    return str(file)
