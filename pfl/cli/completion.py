"""``pfl completion``: a script with which bash or zsh completes commands, options and names."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import resources

from pfl.cli import catalogue, known, shipped

# Flags whose values are the names of classes.
_NAMES = {"--model": "methods", "--model.net": "nets", "--data": "data"}
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
    names = {flag: [item.name for item in catalogue.listed(kind)] for flag, kind in _NAMES.items()}
    options: dict[str, list[str]] = {}
    for command, words in known.options().items():
        first, _, second = command.partition(" ")
        options.setdefault(first, []).extend([second, *words] if second else words)
    template = resources.files("pfl.cli") / "templates" / "completion.txt"
    return template.read_text(encoding="utf-8").format(
        commands=" ".join(options),
        values=_cases({**names, "--config": shipped.names()}, 8),
        options=_cases(options, 12),
    )


def _cases(words: Mapping[str, Sequence[str]], indent: int) -> str:
    lines = [f'{key}) words="{" ".join(dict.fromkeys(found))}" ;;' for key, found in words.items()]
    return "\n".join(" " * indent + line for line in lines)
