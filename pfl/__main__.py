"""The entry point of ``pfl``: it finds the command, runs it and returns the exit code.

Heavy packages are imported only once a command needs them.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module, metadata
from types import FrameType
from typing import Any, TextIO

from pfl.cli.commands import commands, parsed, plugin_of
from pfl.core import waits

FIRST_STEPS = """\
pfl COMMAND [options]: personalised federated learning on PyTorch Lightning

First steps:

  pfl fit --config quickstart   train ten clients on digits (no download)
  pfl list methods              list the methods, for pfl fit --model METHOD
  pfl init                      copy all configurations here, to run and edit

pfl --help shows all commands."""
USAGE_ERROR = 2
# Lengths above which a word, and a whole message, are cut.
WORD, MESSAGE = 400, 3000


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: The words after ``pfl``; by default those of this process.
    """
    if argv is None and "--debug" not in sys.argv:
        warnings.showwarning = _warn
    try:
        try:
            with waits.of_command(is_process=argv is None):
                return _main(argv)
        finally:
            # Python would flush when it exits, where nothing can be caught.
            print(end="", flush=True)
    except BrokenPipeError:
        # The reader, such as head, has closed the output. The exit code is that of SIGPIPE.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _main(argv: Sequence[str] | None) -> int:
    # Print "?" rather than a traceback if the output cannot encode "±".
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Op threads that spin for long are tens of times slower on a busy machine; without spinning
    # they are half as fast on an idle one. GNU's OpenMP reads this when torch is loaded; results do
    # not change.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
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
    try:
        os.getcwd()
    except FileNotFoundError:
        print("pfl: error: the working folder was deleted: change to another one", file=sys.stderr)
        return USAGE_ERROR
    if other := _clash():
        print(f"pfl: error: {other}", file=sys.stderr)
        return USAGE_ERROR
    name = _command(words)
    if name is None:
        print(f"pfl: error: {_shown(_advice(words))}", file=sys.stderr)
        return USAGE_ERROR
    return _run(name, words[len(name.split()) :], debug)


def _clash() -> str | None:
    """Return what to do about another project's package of this name; ``None`` without one."""
    try:
        other = metadata.distribution("pfl")
    except metadata.PackageNotFoundError:
        return None
    if not any(file.as_posix() == "pfl/__init__.py" for file in other.files or ()):
        return None
    return (
        f"another project, pfl {other.version}, is installed into the folder of pfl-lightning, so "
        "that files of one have replaced files of the other: install them in two environments"
    )


def usage() -> str:
    """Return the text of ``pfl --help``."""
    lines = "\n".join(f"  {name:<14}{one.summary}" for name, one in commands().items())
    return (
        "usage: pfl COMMAND [options]\n\n"
        "Personalised federated learning on PyTorch Lightning.\n\n"
        f"commands:\n{lines}\n\n"
        "pfl COMMAND --help shows a command's options and two examples; --debug shows\n"
        "the traceback of an error."
    )


def _command(words: Sequence[str]) -> str | None:
    for count in (2, 1):
        if (name := " ".join(words[:count])) in commands():
            return name
    return None


def _advice(words: Sequence[str]) -> str:
    from difflib import get_close_matches

    first = words[0]
    if first.startswith("-"):
        name = next((word for word in words if word in commands()), "fit")
        return f"{first} must come after the command: pfl {name} {first} ..."
    near = get_close_matches(" ".join(words[:2]).lower(), commands(), n=1)
    near = near or get_close_matches(first.lower(), commands(), n=1)
    hint = f"did you mean 'pfl {near[0]}'?" if near else f"choose from {', '.join(commands())}"
    return f"there is no command {first!r}; {hint}"


def _run(name: str, words: Sequence[str], debug: bool) -> int:
    entry = commands()[name]
    configured = entry.configuration is not None
    if configured and {"--help", "-h"} & {*words}:
        from pfl.cli.overview import overview

        print(overview(name).format_help(), end="")
        return 0
    from pfl.cli.catalogue import BrokenError
    from pfl.cli.explain import UsageError, explained
    from pfl.disk.reading import is_memory
    from pfl.imports import plugins

    command: Callable[[Any], None]
    try:
        with _terminable():
            # Before torch is loaded, as a room may start the process anew.
            for plugin, start in plugins.loaded("pfl.starts"):
                with plugin.noted(), explained((), RuntimeError):
                    start(words)
            if configured:
                from pfl.cli.reading import read

                given: Any = read(name, words)
                given.check_objects()
            else:
                given = parsed(name, words)
            home, _, function = entry.function.rpartition(".")
            brought = plugin_of(name)
            with nullcontext() if brought is None else brought.checked():
                command = getattr(import_module(home), function)
            command(given)
    except (UsageError, BrokenError, plugins.PluginError) as error:
        if debug:
            raise
        print(f"pfl {name}: error: {_shown(str(error))}", file=sys.stderr)
        return error.code if isinstance(error, UsageError) else USAGE_ERROR
    except (MemoryError, RuntimeError) as error:
        if debug or not is_memory(error):
            raise
        reason = str(error).partition("\n")[0] or "none is left"
        print(f"pfl {name}: error: out of memory: {_shown(reason)}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt as interruption:
        terminated = isinstance(interruption, Terminated)
        return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
    return 0


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning in one line, without its place in the code."""
    text = warnings.formatwarning(message, category, filename, lineno, line)
    if issubclass(category, UserWarning):
        text = f"pfl: warning: {_shown(str(message))}\n"
    print(text, end="", file=file or sys.stderr)


def _shown(message: str) -> str:
    """Return a message without control characters and with long words cut."""
    from pfl.cli.explain import with_short_words

    plain = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in message)
    cut = with_short_words(plain, WORD)
    return cut if len(cut) <= MESSAGE else f"{cut[:MESSAGE]}..."


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does: files are closed and finished rounds saved."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave_working_folder() -> None:
    """Remove the working folder from the import path, to which ``python -m pfl`` adds it.

    Libraries would import modules from it by accident. It stays if the project itself was imported
    from there, as in a checkout, or if the user asked for it.
    """
    project = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    added = sys.path[0] in ("", os.getcwd()) and not getattr(sys.flags, "safe_path", False)
    if added and os.getcwd() != project:
        del sys.path[0]


if __name__ == "__main__":
    with suppress(FileNotFoundError):  # main refuses to work in a folder that was deleted
        _leave_working_folder()
    sys.exit(main())
