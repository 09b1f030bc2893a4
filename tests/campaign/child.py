"""Commands in processes of their own, which fork from one that has imported everything."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from datamodules.base import FederatedDataModule
from pfl.__main__ import main
from pfl.callbacks.records import Records
from pfl.cli import catalogue
from pfl.federation import checkpoint, prepare, resume
from pfl.federation.models import Personal
from pfl.federation.rounds import Federation
from pfl.loop import FederatedLoop

catalogue.load()

PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
# After which a command hangs: a sweep takes one minute where four programs share a core.
SECONDS = 300
# Memory that a command of the campaign may take beyond what its libraries take.
MEMORY = 4 * 2**30

# Moments at which a run may be cut: from the beginning of one of these on.
STAGES = {
    "fit": (FederatedLoop, "fit"),
    "data": (FederatedDataModule, "setup"),
    "setup": (prepare, "prepare"),
    "opening": (resume, "clear"),
    "loading": (checkpoint, "load"),
    "restoring": (resume, "restore"),
    "start": (Records, "on_fit_start"),
    "training": (Federation, "_train"),
    "tests": (Personal, "measure"),
    "rows": (Records, "on_round_end"),
    "checkpoint": (checkpoint, "save"),
    "interruption": (Records, "on_interrupt"),
    "summary": (Records, "on_fit_end"),
}


def start(target, *arguments):
    """Start a process; return it with this end of the pipe that it gets as its last argument."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=target, args=(*arguments, there), daemon=True)
    process.start()
    there.close()
    return process, here


def once(words, folder, events):
    """Run a command in a folder, tell of each stage, and end with the command's exit code."""
    _enter(folder)
    _announce(events)
    sys.exit(main(words))


def serve(pipe):
    """Run commands one after the other in this one process, each in a folder of its own.

    Of each, code, output and the trace of an error that nobody caught are answered. No run is
    longer than two rounds.
    """
    size = resource.getrlimit(resource.RLIMIT_AS)[1]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, size))
    rounds = Federation.rounds
    Federation.rounds = lambda self, done: islice(rounds(self, done), 2)
    _announce(pipe)
    while True:
        words, folder = pipe.recv()
        output = _enter(folder)
        trace = code = None
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
        except BaseException:
            trace = traceback.format_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        pipe.send(("done", (code, *(file.read_text(errors="replace") for file in output), trace)))


def _enter(folder):
    """Make a folder the working one; what is printed goes to two files there."""
    os.chdir(folder)
    files = Path(folder, "out.txt"), Path(folder, "err.txt")
    for number, file in enumerate(files, 1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    return files


def _announce(events: Connection):
    """Send ``(stage, True)`` when one begins and ``(stage, False)`` when it is over."""

    def announced(name, function):
        def run(*arguments, **options):
            events.send((name, True))
            try:
                return function(*arguments, **options)
            finally:
                events.send((name, False))

        return run

    for name, (owner, function) in STAGES.items():
        setattr(owner, function, announced(name, getattr(owner, function)))
