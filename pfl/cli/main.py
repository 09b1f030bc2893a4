"""The command line: which command, and how it ends.

Nothing heavy is imported before it is known that a command will need it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from types import FrameType

# The function of each command, by its path within pfl, and what it does.
COMMANDS = {
    "fit": ("cli.runs.fit", "train a federation"),
    "test": ("cli.runs.test", "test the models of a checkpoint"),
    "validate": ("cli.runs.validate", "scores of a checkpoint's models on validation data"),
    "predict": ("cli.runs.predict", "write what each client's model predicts, a CSV a client"),
    "export": (
        "cli.runs.export",
        "write one client's personalised model as a Lightning checkpoint",
    ),
    "list": ("cli.show.show", "show what there is: methods, nets, data, partitions, metrics"),
    "init": ("cli.shipped.init", "copy the configurations that come with pfl to here"),
    "new": ("cli.new.new", "write a method, data or a network to begin with"),
    "data inspect": ("cli.data.inspect", "show who holds what, as tables and as a picture"),
    "check": ("cli.check.check", "hold a method to the promises that all methods make"),
    "completion": ("cli.completion.completion", "print a script for tabs in bash or zsh"),
    "plot": ("cli.results.plot", "draw runs: curves, clients, weights, calibration"),
    "compare": ("cli.results.compare", "tables of runs: scores, costs, paired tests"),
    "report": ("cli.results.report", "one run as one HTML page"),
    "sweep": ("sweeps.verb.sweep", "run a W&B sweep file here, on Optuna"),
    "table": ("tables.verb.table", "run the grid behind a paper's table, and print it"),
    "ledger": ("ledger.verb.ledger", "compare runs at full length with the papers"),
}
FIRST_STEPS = """\
pfl COMMAND [options]: personalised federated learning on PyTorch Lightning. To begin with:

  pfl fit --config quickstart   train ten clients on handwritten digits (seconds, no download)
  pfl list methods              the methods; --model METHOD of pfl fit takes another
  pfl init                      copy all configurations to here, to run and to change

pfl --help shows all commands."""
USAGE_ERROR = 2


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the process's exit code.

    Args:
        argv: The words after ``pfl``; those of the process if not given.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words:
        print(FIRST_STEPS)
        return USAGE_ERROR
    if words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "--version":
        print(f"pfl {metadata.version('pfl-lightning')}")
        return 0
    name = _command(words)
    if name is None:
        print(f"pfl: error: {_advice(words)}", file=sys.stderr)
        return USAGE_ERROR
    return _run(name, words[len(name.split()) :], debug)


def usage() -> str:
    """Return the text of ``pfl --help``."""
    commands = "\n".join(f"  {name:<14}{what}" for name, (_, what) in COMMANDS.items())
    return (
        "usage: pfl COMMAND [options]\n\n"
        "Personalised federated learning on PyTorch Lightning.\n\n"
        f"commands:\n{commands}\n\n"
        "pfl COMMAND --help shows a command's options; --debug shows where an error comes from."
    )


def _command(words: Sequence[str]) -> str | None:
    for count in (2, 1):
        if (name := " ".join(words[:count])) in COMMANDS:
            return name
    return None


def _advice(words: Sequence[str]) -> str:
    from difflib import get_close_matches

    first = words[0]
    if first.startswith("-"):
        name = next((word for word in words if word in COMMANDS), "fit")
        return f"{first} comes after the command: pfl {name} {first} ..."
    near = get_close_matches(" ".join(words[:2]).lower(), COMMANDS, n=1)
    near = near or get_close_matches(first.lower(), COMMANDS, n=1)
    hint = f"did you mean 'pfl {near[0]}'?" if near else f"there are {', '.join(COMMANDS)}"
    return f"there is no command {first!r}; {hint}"


def _run(name: str, words: Sequence[str], debug: bool) -> int:
    if list(words) in (["--help"], ["-h"]) and name in import_module("pfl.cli.configured").VERBS:
        print(import_module("pfl.cli.overview").overview(name), end="")
        return 0
    explain, outline = import_module("pfl.cli.explain"), import_module("pfl.cli.outline")
    command: Callable[[Sequence[str]], None]
    try:
        with _terminable():
            home, _, function = COMMANDS[name][0].rpartition(".")
            command = getattr(import_module(f"pfl.{home}"), function)
            command(words)
    except (explain.UsageError, outline.BrokenError) as error:
        if debug:
            raise
        print(f"pfl {name}: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt as interruption:
        terminated = isinstance(interruption, Terminated)
        return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
    return 0


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: whatever is open gets closed, whatever is whole saved."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
