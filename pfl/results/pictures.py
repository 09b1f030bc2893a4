"""All pictures of some runs: which there are, what they show, and writing them to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from matplotlib.figure import Figure

from pfl.results import matrices, plots, reliability
from pfl.results.runs import METRIC, At, RunError
from pfl.results.settings import Setting
from pfl.results.style import save, styled

# What can be drawn of any run, before and after what its server reported of the clients.
_FIRST = {
    "curves": "Against communication rounds, bytes moved both ways, and seconds of training and "
    "aggregation.",
    "clients": "Over clients: quartiles, extremes, mean, and mean of the worst tenth.",
    "data_size": "Against the size of a client's training data. Lines: means of clients of similar "
    "size.",
}
_LAST = {
    "similarity": "How alike the clients' labels are.",
    "reliability": "How often the personal models are right when they are so sure; on the diagonal "
    "they are as right as they are sure.",
}
# Pictures that there are whatever the method.
NAMES = (*_FIRST, *_LAST)


@dataclass(frozen=True)
class Picture:
    """One picture, or why there is none.

    Attributes:
        name: One of :data:`NAMES`, or of what servers report of clients.
        figure: The picture.
        refusal: What it lacks.
        caption: What it shows.
    """

    name: str
    figure: Figure | None = None
    refusal: str = ""
    caption: str = ""


def draw(
    settings: Sequence[Setting],
    names: Sequence[str] | None = None,
    metric: str = METRIC,
    at: At = "last",
) -> list[Picture]:
    """Draw pictures.

    Args:
        settings: Of which runs.
        names: Which pictures; ``None``: all that these runs may have.
        metric: A column of ``metrics.csv``: whose curves, distribution and dependence on size.
        at: After which rounds, where a picture shows no course over rounds.
    """
    reported = {
        name: f"{what[0].upper()}{what[1:]} of each client over rounds; grey: it took no part."
        for setting in settings
        for name, what in setting.runs[0].reported.items()
    }
    captions = {**_FIRST, **reported, **_LAST}
    found = []
    with styled():
        for name in captions if names is None else names:
            try:
                figure = _figure(name, settings, metric, at)
                found.append(Picture(name, figure, caption=captions[name]))
            except RunError as error:
                near = get_close_matches(name, captions, n=1)
                hint = f"; did you mean {near[0]!r}?" if near and name not in captions else ""
                found.append(Picture(name, refusal=f"{error}{hint}"))
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
