"""Drawing the pictures of runs by name, and writing them to files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from pfl.disk.nearest import nearest
from pfl.disk.writing import written
from pfl.results import matrices, newcomers, plots
from pfl.results.analyses import brought, reliability
from pfl.results.files import RunError
from pfl.results.find import common_score
from pfl.results.runs import At
from pfl.results.settings import Setting
from pfl.results.style import save, styled
from pfl.results.words import ASKED, FIRST, LAST

_OF_METRIC: Mapping[str, Callable[[Sequence[Setting], str, At], Figure]] = {
    "clients": plots.clients,
    "data_size": plots.data_size,
    "differences": plots.differences,
}
_OF_RUNS: Mapping[str, Callable[[Sequence[Setting]], Figure]] = {
    **{"newcomers": newcomers.joining, "cross": newcomers.cross},
    **{"similarity": matrices.similarity, "reliability": reliability},
}


@dataclass(frozen=True)
class Picture:
    """A picture, or the reason why it could not be drawn.

    Attributes:
        name: One of :func:`known`, or a value that servers report for clients.
        figure: The picture.
        refusal: The reason.
        caption: A sentence that says what it shows.
    """

    name: str
    figure: Figure | None = None
    refusal: str = ""
    caption: str = ""


def draw(
    settings: Sequence[Setting],
    names: Sequence[str] | None = None,
    metric: str | None = None,
    at: At = "last",
) -> list[Picture]:
    """Draw pictures.

    Args:
        settings: The runs.
        names: Names of pictures; ``None`` draws all that suit these runs.
        metric: A column of ``metrics.csv``; ``None`` uses the runs' main score.
        at: The rounds to take numbers from, unless a picture shows all rounds.

    Raises:
        RunError: A run was never tested, or the runs have no score in common.
    """
    metric = metric or common_score([run for setting in settings for run in setting.runs])
    reported = {
        name: f"{what[0].upper()}{what[1:]} of each client over rounds; grey: did not take part."
        for setting in settings
        for name, what in setting.runs[0].reported.items()
    }
    captions = known(reported)
    drawn = []
    if names is None:
        suited = {name for setting in settings for name in _own(setting)}
        names = [name for name in captions if name in suited or name not in {*ASKED, *brought()}]
    with styled():
        for name in names:
            try:
                figure = _figure(name, settings, metric, at)
                drawn.append(Picture(name, figure, caption=captions[name]))
            except RunError as error:
                near = "" if name in captions else nearest(name, captions)
                drawn.append(Picture(name, refusal=f"{error}{near}"))
    return drawn


def known(reported: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the caption of every picture by name, those of values that servers report included."""
    analysed = {name: picture.caption for name, picture in brought().items()}
    return {**FIRST, **(reported or {}), **LAST, **ASKED, **analysed}


def _own(setting: Setting) -> list[str]:
    """Return the names of pictures that are drawn for this setting without being asked for."""
    first = setting.runs[0]
    files = {"cross": newcomers.CROSS, **{name: one.file for name, one in brought().items()}}
    suited = [name for name, file in files.items() if (first.path / file).is_file()]
    return [*suited, *(["newcomers"] if newcomers.have_joined(first) else [])]


def _figure(name: str, settings: Sequence[Setting], metric: str, at: At) -> Figure:
    if name == "curves":
        return plots.curves(settings, metric)
    if name in _OF_METRIC:
        return _OF_METRIC[name](settings, metric, at)
    if name in _OF_RUNS:
        return _OF_RUNS[name](settings)
    if name in brought():
        return brought()[name].draw(settings)
    return matrices.reported(settings, name)


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
