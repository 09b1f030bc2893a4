"""Expansion of a sweep file's ``command`` into the arguments of ``pfl fit`` for one point."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl.cli.explain import UsageError, as_flags
from pfl.disk.writing import write
from pfl.extras.sweeps.file import Sweep

_PYTHON = ("python", "python3")
_FILE = "${args_json_file}"


def fit_words(sweep: Sweep, point: Mapping[str, Any], file: Path | None) -> list[str]:
    """Return the arguments of ``pfl fit`` for a point; write the point to a file if needed.

    ``file`` is that of ``${args_json_file}``; ``None`` puts flags in the place of ``--config`` and
    the file, for users to copy.

    Raises:
        UsageError: The command does not run ``pfl fit``, or uses an unsupported macro.
    """
    words = list[str]()
    for word in map(str, sweep.command):
        if word != _FILE:
            words += _expand(sweep, word, point)
        elif file is None:
            words[-1:] = as_flags(point)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file, json.dumps(point, indent=1))
            words.append(str(file))
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
    macros = {
        "${env}": list[str](),
        "${interpreter}": ["python"],
        "${program}": [str(sweep.program)],
        "${args}": as_flags(point),
        "${args_no_equals}": [part for flag in as_flags(point) for part in flag.split("=", 1)],
    }
    if re.search(r"\$\{[^}]*\}", word) and word not in macros:
        known = ", ".join([*macros, _FILE, "${envvar:NAME}"])
        raise UsageError(f"{sweep.path}: command: {word} is not supported; choose from {known}")
    return macros.get(word, [word])
