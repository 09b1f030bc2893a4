"""Expansion of a sweep file's ``command`` into the arguments of ``pfl fit`` for one point."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl.cli.explain import UsageError
from pfl.disk.writing import write
from pfl.sweeps.file import Sweep
from pfl.tables.cells import flags

_PYTHON = ("python", "python3")
_MACROS = ("env", "interpreter", "program", "args", "args_no_equals", "args_json_file")


def fit_words(sweep: Sweep, point: Mapping[str, Any], file: Path) -> list[str]:
    """Return the arguments of ``pfl fit`` for a point; write the point to a file if needed.

    Args:
        sweep: The sweep with the command.
        point: Values by the names of parameters.
        file: The file for ``${args_json_file}``.

    Raises:
        UsageError: The command does not run ``pfl fit``, or uses an unsupported macro.
    """
    if "${args_json_file}" in sweep.command:
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, json.dumps(point, indent=1))
    return _fit(sweep, point, ["${args_json_file}"], [str(file)])


def flag_words(sweep: Sweep, point: Mapping[str, Any]) -> list[str]:
    """Return what :func:`fit_words` does, but with flags instead of the file, for users to copy."""
    return _fit(sweep, point, ["--config", "${args_json_file}"], flags(point))


def _fit(
    sweep: Sweep, point: Mapping[str, Any], pattern: Sequence[str], replacement: Sequence[str]
) -> list[str]:
    command, words = list(map(str, sweep.command)), list[str]()
    while command:
        if command[: len(pattern)] == pattern:
            words += replacement
            del command[: len(pattern)]
        else:
            words += _expand(sweep, command.pop(0), point)
    if words[:1] and words[0] in _PYTHON and words[1:2] == ["-m"]:
        words = words[2:]
    if words[:2] != ["pfl", "fit"]:
        raise UsageError(
            f"{sweep.path}: command: expected `pfl fit ...` or `python -m pfl fit ...`, after "
            f"${{env}} or alone; got {' '.join(words) or 'nothing'}"
        )
    return words[2:]


def _expand(sweep: Sweep, word: str, point: Mapping[str, Any]) -> list[str]:
    word = re.sub(r"\$\{envvar:(\w+)\}", lambda name: os.environ.get(name[1], name[1]), word)
    match re.findall(r"\$\{([^}]*)\}", word):
        case []:
            return [word]
        case [macro] if macro in _MACROS and word == f"${{{macro}}}":
            return {
                "env": list[str](),
                "interpreter": ["python"],
                "program": [str(sweep.program)],
                "args": flags(point),
                "args_no_equals": [word for flag in flags(point) for word in flag.split("=", 1)],
            }.get(macro, [word])
    known = ", ".join(f"${{{macro}}}" for macro in (*_MACROS, "envvar:NAME"))
    raise UsageError(f"{sweep.path}: command: {word} is not supported; choose from {known}")
