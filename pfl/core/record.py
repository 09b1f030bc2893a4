"""What a method's class tells of itself, from which lists, tables and citations are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Family: TypeAlias = Literal[
    "One model for all, and where to tune it",
    "A part of the network stays with the client",
    "A separate network for each client or group",
    "Prototypes and distributions",
    "Adapters on a frozen network",
]
# Venues whose entries are articles; any other is the title of proceedings.
_JOURNALS = ("arXiv", "IEEE Transactions")


@dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes:
        title: The title; a part in braces keeps its capitals in BibTeX.
        authors: The authors as BibTeX has them, ``Family, Given and Family, Given``; empty if they
            are not known.
        venue: Short name of the conference or journal; ``arXiv`` for a preprint.
        year: The year.
        url: Where it can be read.
        full_venue: The venue's name in a bibliography, where it is another.
        pages: First and last page.
    """

    title: str
    authors: str
    venue: str
    year: int
    url: str = ""
    full_venue: str = ""
    pages: str = ""

    @property
    def appeared(self) -> str:
        """Return venue and year in short; of a preprint only the year."""
        return f"{self.year}" if self.venue == "arXiv" else f"{self.venue} {self.year}"

    def bibtex(self, key: str) -> str:
        """Return the entry of a bibliography.

        Example::

            >>> print(Paper("A Title", "Doe, Jane", "ICML", 2021).bibtex("doe"))
            @inproceedings{doe,
              title     = {A Title},
              author    = {Doe, Jane},
              booktitle = {ICML},
              year      = {2021}
            }
        """
        venue = self.full_venue or self.venue
        journal = venue.startswith(_JOURNALS)
        if self.venue == "arXiv" and (number := re.search(r"\d+\.\d+$", self.url)):
            venue = f"arXiv preprint arXiv:{number[0]}"
        fields = {
            "title": self.title,
            "author": self.authors,
            "journal" if journal else "booktitle": venue,
            "pages": self.pages.replace("-", "--"),
            "year": f"{self.year}",
            "url": self.url,
        }
        width = max(map(len, fields))
        lines = [f"  {name:{width}} = {{{text}}}" for name, text in fields.items() if text]
        kind = "article" if journal else "inproceedings"
        return f"@{kind}{{{key},\n" + ",\n".join(lines) + "\n}"


@dataclass(frozen=True, kw_only=True)
class MethodRecord:
    """What is told of a method: its paper, what travels, what stays, and what sets it apart.

    Attributes:
        name: The method's name in the paper's spelling.
        family: The group of methods in which it is listed.
        travels: What moves between clients and server, in a few words.
        stays: What a client keeps; ``-`` if nothing.
        apart: What sets it apart, in half a sentence.
        paper: The paper; ``None`` for a baseline without one.
        shown: Settings under which it runs on the quickstart's digits, beyond the quickstart's own;
            ``None`` if it cannot.
    """

    name: str
    family: Family
    travels: str
    stays: str = "-"
    apart: str
    paper: Paper | None = None
    shown: Mapping[str, object] | None = field(default_factory=dict)
