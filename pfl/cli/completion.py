"""``pfl completion``: a script with which bash or zsh completes commands, options and names."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from io import StringIO

from pfl.cli import shipped
from pfl.cli.configured import VERBS
from pfl.cli.outline import Sources
from pfl.cli.overview import overview

# Flags whose values are the names of classes.
_NAMES = {"--model": "methods", "--model.net": "nets", "--data": "data"}

_SCRIPT = """\
_pfl() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" words=""
    if [ "$word" = "=" ]; then word=""; fi
    if [ "$before" = "=" ]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "$before" in
{values}
        *) case "$command" in
{options}
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -o bashdefault -F _pfl pfl
"""
_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"


def completion(argv: Sequence[str]) -> None:
    """Print the script."""
    parser = argparse.ArgumentParser(
        prog="pfl completion",
        description="Print a shell script that completes commands, options, shipped configurations "
        "and class names. To use it in the current shell: source <(pfl completion bash). To keep "
        "it, save it to a file that the shell's start-up file sources, and save it again after "
        "each update of pfl.",
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    shell = parser.parse_args(argv).shell
    print((_ZSH if shell == "zsh" else "") + script(), end="")


def script() -> str:
    """Return a bash script, which zsh can read too."""
    sources = Sources()
    names = {flag: [item.name for item in sources.of_kind(kind)] for flag, kind in _NAMES.items()}
    values = {**names, "--config": shipped.names()}
    options: dict[str, list[str]] = {}
    for command in import_module("pfl.__main__").COMMANDS:
        first, _, second = command.partition(" ")
        options.setdefault(first, []).extend([second] if second else [])
        options[first] += _options(command)
    return _SCRIPT.format(
        commands=" ".join(options),
        values=_cases(values, 8),
        options=_cases(options, 12),
    )


def _cases(words: dict[str, list[str]], indent: int) -> str:
    lines = [f'{key}) words="{" ".join(dict.fromkeys(found))}" ;;' for key, found in words.items()]
    return "\n".join(" " * indent + line for line in lines)


def _options(command: str) -> list[str]:
    """Return the flags and choices that a command's help shows."""
    said = overview(command) if command in VERBS else _help(command)
    flags = re.findall(r"^  (--[\w.-]+)", said, re.MULTILINE)
    choices = re.findall(r"^  \{([\w,]+)\}", said, re.MULTILINE)
    return [*(word for group in choices for word in group.split(",")), *flags]


def _help(command: str) -> str:
    home, _, function = import_module("pfl.__main__").COMMANDS[command][0].rpartition(".")
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(StringIO()), suppress(SystemExit):
        getattr(import_module(f"pfl.{home}"), function)(["--help"])
    return said.getvalue()
