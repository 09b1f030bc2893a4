"""Shakespeare's roles: prediction of the next character of each role's text, as in LEAF."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np

from datamodules.checks import existing, require
from datamodules.encoding import decode
from datamodules.tensors import TensorData
from pfl.core.places import Place
from pfl.core.ranges import AtLeastOne

_PLACE = Place("one is in https://github.com/karpathy/char-rnn (data/tinyshakespeare/input.txt)")
# A speech: a line with a name and a colon, then lines until an empty one.
_SPEECH = re.compile(r"^([A-Z][^\n:]{0,40}):\n(.+?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class Shakespeare(TensorData):
    """A client is a role; the task is the next character after ``length`` characters.

    LEAF (Caldas et al., 2018) builds this task from the complete works. A role's speeches are
    concatenated in order, and a sample starts every ``stride`` characters. With ``test_protocol:
    future``, a role is tested on its last speeches: no predicted character occurs in training.

    Source: a file of speeches, each a line ``ROLE:`` and the text, separated by empty lines.
        Shakespeare's works are in the public domain.

    Args:
        path: The file.
        length: Number of input characters; 80 in LEAF.
        stride: Number of characters between the starts of samples.
        least: Minimum number of characters of a role.
        roles: Maximum number of roles, by amount of text; ``None`` for all.
        test_protocol: As in :class:`FederatedDataModule`.
        options: As in :class:`TensorData`.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: No role has enough text, or a number is out of range.
    """

    def __init__(
        self,
        path: Annotated[str, _PLACE] = "data/tinyshakespeare.txt",
        *,
        length: AtLeastOne = 80,
        stride: AtLeastOne = 5,
        least: AtLeastOne = 2000,
        roles: AtLeastOne | None = None,
        test_protocol: Literal["pooled", "future"] = "future",
        **options: Any,
    ) -> None:
        super().__init__(path, test_protocol=test_protocol, **options)
        self.path = path
        self.length = length
        self.stride = stride
        self.least = least
        self.roles = roles

    def read(self) -> Mapping[str, Any]:
        """Read the samples of all roles by name."""
        spoken = self._spoken()
        letters = sorted({letter for text in spoken.values() for letter in text})
        number = {letter: place for place, letter in enumerate(letters)}
        parts = []
        for role, text in spoken.items():
            codes = np.array([number[letter] for letter in text], np.int64)
            starts = np.arange(0, len(codes) - self.length, self.stride)
            x = codes[starts[:, None] + np.arange(self.length)]
            parts.append((x, codes[starts + self.length], [role] * len(starts), starts))
        x, y, client, time = (np.concatenate(part) for part in zip(*parts, strict=True))
        names = [repr(letter) for letter in letters]
        return {"x": x, "y": y, "client": client, "column.time": time, "class_names": names}

    def _spoken(self) -> dict[str, str]:
        """Return the text of each role, by name."""
        file = existing(self.path, hint=_PLACE.hint)
        text = decode(file, "input.txt").replace("\r\n", "\n").replace("\r", "\n")
        said: dict[str, list[str]] = defaultdict(list)
        for role, speech in _SPEECH.findall(text):
            said[role].append(speech)
        texts = {role: "\n".join(speeches) for role, speeches in said.items()}
        needed = max(self.least, self.length + 2)
        long = {role: text for role, text in texts.items() if len(text) >= needed}
        require(
            len(long) > 0,
            f"{file}: no role has {needed:,} characters; a speech is a line ROLE: and its text",
        )
        ranked = sorted(long, key=lambda role: (-len(long[role]), role))[: self.roles]
        return {role: long[role] for role in sorted(ranked)}
