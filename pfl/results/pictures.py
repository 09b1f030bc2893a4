"""All pictures of some runs: which there are, what they show, and writing them to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from pfl.results import matrices, plots, reliability
from pfl.results.runs import METRIC, At, RunError
from pfl.results.settings import Setting
from pfl.results.style import save, styled

CAPTIONS = {
    "curves": "Against communication rounds, bytes moved both ways, and seconds of training and "
    "aggregation.",
    "clients": "Over clients: quartiles, extremes, mean, and mean of the worst tenth.",
    "data_size": "Against the size of a client's training data. Lines: means of clients of similar "
    "size.",
    **{
        name: f"{what[0].upper()}{what[1:]} of each client over rounds; grey: it took no part."
        for name, what in matrices.REPORTED.items()
    },
    "similarity": "How alike the clients' labels are.",
    "reliability": "How often the personal models are right when they are so sure; on the diagonal "
    "they are as right as they are sure.",
}


@dataclass(frozen=True)
class Picture:
    """One picture, or why there is none.

    Attributes:
        name: One of :data:`CAPTIONS`.
        figure: The picture.
        refusal: What it lacks.
    """

    name: str
    figure: Figure | None = None
    refusal: str = ""


def draw(
    settings: Sequence[Setting],
    names: Sequence[str] = tuple(CAPTIONS),
    metric: str = METRIC,
    at: At = "last",
) -> list[Picture]:
    """Draw pictures.

    Args:
        settings: Of which runs.
        names: Which pictures.
        metric: A column of ``metrics.csv``: whose curves, distribution and dependence on size.
        at: After which rounds, where a picture shows no course over rounds.
    """
    found = []
    with styled():
        for name in names:
            try:
                found.append(Picture(name, _figure(name, settings, metric, at)))
            except RunError as error:
                found.append(Picture(name, refusal=str(error)))
    return found


def _figure(name: str, settings: Sequence[Setting], metric: str, at: At) -> Figure:
    match name:
        case "curves":
            return plots.curves(settings, metric)
        case "clients":
            return plots.clients(settings, metric, at)
        case "data_size":
            return plots.data_size(settings, metric, at)
        case "similarity":
            return matrices.similarity(settings)
        case "reliability":
            return reliability.diagram(settings)
    return matrices.reported(settings, name)


def write(
    pictures: Sequence[Picture], folder: Path, formats: Sequence[str] = ("png",)
) -> list[Path]:
    """Write every picture that there is, in each format; returns the files."""
    files = []
    for picture in pictures:
        if picture.figure is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for ending in formats:
            files.append(folder / f"{picture.name}.{ending}")
            save(picture.figure, files[-1], ending)
    return files
