"""``pfl completion``: print a script that completes commands, options and names in bash or zsh."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import resources

from pfl.cli import catalogue, shipped
from pfl.cli.commands import commands, parser
from pfl.cli.overview import overview

# Flags whose values are the names of classes.
_NAMES = {"--model": "methods", "--model.net": "nets", "--data": "data"}
_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"


def completion(options: argparse.Namespace) -> None:
    """Print the script."""
    print((_ZSH if options.shell == "zsh" else "") + script(), end="")


def script() -> str:
    """Return a script for bash, which also works in zsh."""
    names = {flag: [item.name for item in catalogue.listed(kind)] for flag, kind in _NAMES.items()}
    options: dict[str, list[str]] = {}
    for name, command in commands().items():
        words = _words(parser(name) if command.configuration is None else overview(name))
        first, _, second = name.partition(" ")
        options.setdefault(first, []).extend([second, *words] if second else words)
    template = resources.files("pfl.cli") / "templates" / "completion.txt"
    return template.read_text(encoding="utf-8").format(
        commands=" ".join(options),
        values=_cases({**names, "--config": shipped.names()}, 8),
        options=_cases(options, 12),
    )


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Return the flags of a command and the choices for its first argument."""
    words = [word for one in parser._actions for word in one.option_strings or one.choices or ()]
    return [word for word in words if word != "-h"]


def _cases(words: Mapping[str, Sequence[str]], indent: int) -> str:
    lines = [
        f'{key}) words="{" ".join(dict.fromkeys(choices))}" ;;' for key, choices in words.items()
    ]
    return "\n".join(" " * indent + line for line in lines)
