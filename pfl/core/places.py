"""Places of data, which stand beside the annotation of an argument.

A data module that declares ``path: Annotated[str, Place("the file is in https://...")]`` says that
the file or folder must be there before a run starts, unless its argument ``download`` is true.
Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pfl.disk.nearest import nearest_file


@dataclass(frozen=True)
class Place:
    """A file or folder that must exist.

    Attributes:
        hint: Where it can be had, or what is expected there; if empty, the class says so by its
            attribute ``layout``, if it has one.
    """

    hint: str = ""

    def check(self, path: str, layout: str | None = None) -> None:
        """Refuse a path at which there is nothing.

        Args:
            path: The path.
            layout: What is expected there, unless a hint says so.

        Raises:
            FileNotFoundError: There is no such file or folder.

        Example:
            >>> Place("see example.org").check("nowhere.csv")
            Traceback (most recent call last):
            FileNotFoundError: there is no file or folder nowhere.csv; see example.org
        """
        place = Path(path).expanduser()
        if not place.exists():
            near, hint = nearest_file(place), self.hint or layout
            what = f"there is no file or folder {place}{near}{f'; {hint}' if hint else ''}"
            raise FileNotFoundError(what)
