"""Drawing the pictures of runs by name, and writing them to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from pfl.disk.writing import written
from pfl.results import matrices, plots
from pfl.results.analyses import Kind, brought, no_picture
from pfl.results.files import RunError
from pfl.results.find import common_score
from pfl.results.names import WORDS
from pfl.results.runs import At
from pfl.results.settings import Setting
from pfl.results.style import WIDTH, save, styled


@dataclass(frozen=True)
class Picture:
    """A picture, or the reason why it could not be drawn.

    Attributes:
        name: One of :func:`kinds`, or a value that servers report for clients.
        figure: The picture.
        refusal: The reason.
        caption: A sentence that describes it.
    """

    name: str
    figure: Figure | None = None
    refusal: str = ""
    caption: str = ""


def kinds() -> dict[str, Kind]:
    """Return the kinds of pictures by name, those of extras and plug-ins last."""
    caption = WORDS["pictures"]
    own = {
        "curves": Kind(caption["curves"], lambda settings, by, at: plots.curves(settings, by)),
        "clients": Kind(caption["clients"], plots.clients),
        "data_size": Kind(caption["data_size"], plots.data_size),
        "similarity": Kind(caption["similarity"], lambda s, by, at: matrices.similarity(s)),
    }
    return {**own, **brought(dict.fromkeys(own, "pfl.results.pictures"))}


def draw(
    settings: Sequence[Setting],
    names: Sequence[str] | None = None,
    metric: str | None = None,
    at: At = "last",
    width: float = WIDTH,
) -> list[Picture]:
    """Draw pictures.

    Args:
        settings: The runs.
        names: Names of pictures; ``None`` draws all that suit these runs.
        metric: A column of ``metrics.csv``; ``None`` uses the runs' main score.
        at: The rounds to take numbers from, unless a picture shows all rounds.
        width: Width of the page in inches; panels are below each other on a narrow one.

    Raises:
        RunError: A run was never tested, or the runs have no score in common.
    """
    metric = metric or common_score([run for setting in settings for run in setting.runs])
    known = kinds()
    for name, what in [item for one in settings for item in one.runs[0].reported.items()]:
        caption = (
            f"{what[0].upper()}{what[1:]} of each client over rounds; grey: did not take part."
        )
        known[name] = Kind(caption, partial(_reported, name))
    if names is None:
        first = [setting.runs[0] for setting in settings]
        names = [name for name, kind in known.items() if any(map(kind.suits, first))]
    drawn = []
    with styled(width):
        for name in names:
            try:
                if name not in known:
                    raise RunError(no_picture(name, known))
                figure = known[name].draw(settings, metric, at)
                drawn.append(Picture(name, figure, caption=known[name].caption))
            except RunError as error:
                drawn.append(Picture(name, refusal=str(error)))
    return drawn


def _reported(column: str, settings: Sequence[Setting], metric: str, at: At) -> Figure:
    return matrices.reported(settings, column)


def write(
    pictures: Sequence[Picture], folder: Path, formats: Sequence[str] = ("png",)
) -> list[Path]:
    """Write the pictures in each format; return the files."""
    files = []
    for picture in pictures:
        if picture.figure is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for ending in formats:
            files.append(folder / f"{picture.name}.{ending}")
            with written(files[-1]) as file:
                save(picture.figure, file, ending)
    return files
