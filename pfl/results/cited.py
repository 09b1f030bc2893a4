"""The methods of runs: what sets each apart, and the papers to cite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata

from pfl.core.sheet import Sheet
from pfl.results.page import Part, Text, rows
from pfl.results.runs import RunFolder


def methods(runs: Sequence[RunFolder]) -> dict[str, Sequence[Part]]:
    """Return the section on methods; none if no run has a method with a record of its own."""
    known = told(runs)
    return section(known) if known else {}


def section(known: Mapping[str, Mapping[str, str]]) -> dict[str, Sequence[Part]]:
    """Return the section on methods, of what is known of each by name."""
    words = {name: one["apart"].replace("`", "") for name, one in known.items()}
    cells = [[name, f"{said[0].upper()}{said[1:]}."] for name, said in words.items()]
    cited = Text(_entries(known), "BibTeX")
    return {"Methods": [rows(Sheet("", ["", ""], cells), words=True), cited]}


def told(runs: Sequence[RunFolder]) -> dict[str, Mapping[str, str]]:
    """Return what runs recorded of their methods, by name, in order of first appearance."""
    found = (run.environment.get("method") or {} for run in runs)
    return {one["name"]: one for one in found if one.get("name") and one.get("apart")}


def bibliography(runs: Sequence[RunFolder]) -> str:
    """Return the BibTeX entries of the papers of the runs' methods, and of the project."""
    return _entries(told(runs))


def _entries(known: Mapping[str, Mapping[str, str]]) -> str:
    entries = [one["bibtex"] for one in known.values() if "bibtex" in one]
    return "\n\n".join([*entries, _of_project()])


def _of_project() -> str:
    """Return the entry of the project itself, as in CITATION.cff."""
    return (
        "@software{pfl,\n"
        "  title   = {pfl: personalised federated learning on {PyTorch Lightning}},\n"
        "  author  = {{The pfl developers}},\n"
        f"  version = {{{metadata.version('pfl-lightning')}}}\n"
        "}"
    )
