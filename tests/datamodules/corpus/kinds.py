"""What a case of the corpus is, and how an answer to it is judged."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Make = Callable[[Path, np.random.Generator], Any]


@dataclass(frozen=True)
class Case:
    """An input of a reader.

    Attributes:
        reader: Table, folder, pairs, series, tensors or saved.
        damage: What is wrong with it; empty for a sound one.
        make: Writes it into a folder, and returns the data module.
        words: What a helpful message or doubt has, as a regular expression; empty for a sound one.
        name: What it is like, if it is sound.
        right: What makes reading it right without a word, if anything does.
    """

    reader: str
    damage: str
    make: Make
    words: str = ""
    right: Callable[[Any], bool] | None = None
    name: str = ""

    def __str__(self) -> str:
        return f"{self.reader}: {self.damage or self.name or 'sound'}"


@dataclass(frozen=True)
class Answer:
    """What became of a case: ``well``, ``silent``, ``no help``, ``false doubt`` or ``refused``."""

    kind: str
    said: tuple[str, ...]


def judge(case: Case, folder: Path, seed: int) -> Answer:
    """Make an input from a seed, read it, and judge what is said."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, *case.damage.encode()])
    sound = not case.words
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            data = case.make(folder, rng)
            data.setup()
        except (ValueError, OSError, ImportError) as error:
            if isinstance(error, ImportError) and "pip install" not in str(error):
                raise
            said = (f"{type(error).__name__}: {error}",)
            if sound:
                return Answer("refused", said)
            return Answer("well" if _helps(case, said) else "no help", said)
    said = tuple(str(one.message) for one in told if issubclass(one.category, UserWarning))
    if sound:
        return Answer("false doubt" if said else "well", said)
    if case.right is not None and case.right(data):
        return Answer("well", said)
    if not said:
        return Answer("silent", said)
    return Answer("well" if _helps(case, said) else "no help", said)


def _helps(case: Case, said: tuple[str, ...]) -> bool:
    return any(re.search(case.words, line, re.DOTALL | re.IGNORECASE) for line in said)


Collector = Callable[..., Callable[[Make], Make]]


def collectors() -> tuple[list[Case], list[Case], Collector, Collector]:
    """Return lists of damaged and of sound cases, and decorators that append a function to each."""
    damages: list[Case] = []
    sounds: list[Case] = []

    def damaged(reader: str, damage: str, words: str) -> Callable[[Make], Make]:
        def keep(make: Make) -> Make:
            damages.append(Case(reader, damage, make, words))
            return make

        return keep

    def sound(reader: str) -> Callable[[Make], Make]:
        def keep(make: Make) -> Make:
            sounds.append(Case(reader, "", make, name=make.__name__.removeprefix("sound_")))
            return make

        return keep

    return damages, sounds, damaged, sound
