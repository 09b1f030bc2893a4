"""The pieces of a benchmark: each is one file, computed once by any free process.

A piece is named by everything that its numbers depend on: a killed benchmark resumes with the
missing pieces, a larger budget reuses those of a smaller one, and only methods whose source has
changed start anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pfl.cli.explain import UsageError
from pfl.disk import canonical, reading
from pfl.disk.writing import write
from pfl.extras.bench import forms
from pfl.extras.bench.contender import Contender


@dataclass(frozen=True)
class Piece:
    """One run of one method.

    Attributes:
        contender: The method.
        seed: Seed of training and partition.
        settings: Dotted keys and values.
        rounds: Number of rounds of a final run; ``None`` for a trial, which has a budget.
        task: Hash of the task.
    """

    contender: Contender
    seed: int
    settings: Mapping[str, Any]
    rounds: int | None
    task: str

    @property
    def kind(self) -> Literal["trial", "final"]:
        """Whether it is a trial or a final run with tests."""
        return "trial" if self.rounds is None else "final"

    @property
    def key(self) -> dict[str, Any]:
        """Everything that its numbers depend on, besides versions and processor."""
        return {
            "kind": self.kind,
            "task": self.task,
            "method": self.contender.identifier,
            "source": self.contender.source_hash,
            "seed": self.seed,
            "settings": {**self.contender.given, **self.settings},
            **({} if self.rounds is None else {"rounds": self.rounds}),
        }

    @cached_property
    def name(self) -> str:
        """Name of its file, without suffix."""
        method = re.sub(r"[^a-z0-9.]+", "-", self.contender.identifier.lower())
        return f"{self.kind}-{method}-{canonical.digest(self.key)[:16]}"


class PieceFolder:
    """The folder of a task's finished pieces, which processes and machines may share.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, dict[str, Any]] = {}

    def find(self, piece: Piece) -> dict[str, Any] | None:
        """Return the outcome of a piece, or ``None`` if it is not finished.

        Raises:
            UsageError: Its file is damaged.
        """
        if piece.name not in self._found:
            file = self._file(piece)
            try:
                content = reading.read_json(file)
                if content.get("key") == json.loads(canonical.text(piece.key)):
                    forms.check_stored(content, piece.kind, str(file))
                    self._found[piece.name] = content["outcome"]
            except reading.FileError as error:
                raise UsageError(f"{error}; remove it to repeat the run") from error
        return self._found.get(piece.name)

    def keep(self, piece: Piece, outcome: Mapping[str, Any]) -> None:
        """Store the outcome of a piece.

        Raises:
            OSError: The folder cannot be written.
        """
        file = self._file(piece)
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, canonical.text({"key": piece.key, "outcome": outcome}))

    def _file(self, piece: Piece) -> Path:
        return self.folder / f"{piece.kind}s" / f"{piece.name}.json"
