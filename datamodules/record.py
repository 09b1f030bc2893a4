"""What a reader saw of its source, before any judgement: one record for all readers.

:mod:`datamodules.doubts` examines it; :mod:`datamodules.report` shows and stores it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.contents import ended, flat, hashes, turned
from datamodules.targets import Floats, Ints

Use: TypeAlias = Literal["feature", "target", "client", "time", "none"]
Kind: TypeAlias = Literal["numbers", "dates", "words", "both", "lists"]


def _no_numbers() -> Floats:
    return np.empty(0)


def _nowhere(row: int) -> str:
    return f"sample {row}"


@dataclass
class Notes:
    """What a reader notes of its source besides samples, while it reads.

    Attributes:
        facts: What there is to say, one line each.
        left_out: Files, rows or parts that are not used, and why.
        unread: Lines on links and parts that may be meant otherwise, with what to do.
        nested: Folders of a class with samples in several folders.
        validation: Name of the validation samples that are not read as such; empty without any.
    """

    facts: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    nested: list[str] = field(default_factory=list)
    validation: str = ""


@dataclass(eq=False)
class Values:
    """A column of a table or an array, as it was read.

    Attributes:
        name: Its name, as in messages.
        use: What it is used for.
        kind: Kind of its present values.
        shown: Its kind and values as text.
        texts: (U,) distinct texts of its cells; none for a column of an array.
        codes: (n,) index of each cell's text.
        absent: (U,) mask of the texts that stand for a missing value.
        numbers: (n,) numbers, NaN where there is none.
        seconds: Whether all values are dates, too.
        listed: Whether the user says that the values are categories.
        crowded: Whether single precision merges most of the numbers.
        place: Returns the place of a row in its file.
    """

    name: str
    use: Use = "feature"
    kind: Kind = "numbers"
    shown: str = ""
    texts: Sequence[str] = ()
    codes: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    absent: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    numbers: Floats = field(default_factory=_no_numbers)
    seconds: bool = False
    listed: bool = False
    crowded: bool = False
    place: Callable[[int], str] = _nowhere

    @cached_property
    def present(self) -> dict[str, int]:
        """The counts of the texts that are values."""
        return self._counted(~self.absent)

    @cached_property
    def missing(self) -> dict[str, int]:
        """The counts of the texts that stand for a missing value."""
        return self._counted(self.absent)

    @cached_property
    def gone(self) -> NDArray[np.bool_]:
        """(n,) mask of the rows without a value."""
        return self.absent[self.codes]

    @property
    def cure(self) -> str:
        """What to do about values that stand for none."""
        if not len(self.texts):
            return "replace it, or leave its samples out, if it says that there is none"
        return "name it in missing_values if it says that there is none"

    def rows(self, text: str) -> Ints:
        """Return the rows with a text."""
        if text not in self.texts:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.codes == self.texts.index(text))

    def _counted(self, chosen: NDArray[np.bool_]) -> dict[str, int]:
        """Return the number of cells with each text of a (U,) mask, in the order of the texts."""
        counts = np.bincount(self.codes, minlength=len(self.texts)) * chosen
        every = zip(self.texts, counts.tolist(), strict=True)
        return {text: count for text, count in every if count}


@dataclass(frozen=True)
class Lines:
    """The lines of a text file against the rows that were read from them.

    Attributes:
        written: Number of lines that are not blank.
        read: Number of rows, with the header.
        swallowed: First and last line of each cell in which whole rows stand, and their number.
        unfinished: Whether the last line has no line end.
    """

    written: int
    read: int
    swallowed: tuple[tuple[int, int, int], ...] = ()
    unfinished: bool = False


@dataclass(frozen=True, eq=False)
class Pictures:
    """What was seen while pictures were decoded.

    Attributes:
        kinds: Counts of the kinds of pictures, in words.
        digests: (n,) hashes of the decoded pixels.
        turned: (n,) hashes that they share with their mirrored and turned copies.
        flat: (n,) mask of the pictures of a single colour.
        ended: (n,) mask of the pictures whose lower quarter alone is of a single colour.
        side: (n,) shorter side of each picture, in pixels.
        cut: (n,) share of each picture that lies outside the square that is used.
        frames: Number of frames of each picture that has several, by its place.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    digests: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    turned: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    flat: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    ended: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    side: Floats = field(default_factory=_no_numbers)
    cut: Floats = field(default_factory=_no_numbers)
    frames: Mapping[str, int] = field(default_factory=dict)

    def of(self, pixels: NDArray[np.uint8]) -> Pictures:
        """Return the same with what (n, C, H, W) pixels hold, unless it is known."""
        if len(self.digests):
            return self
        plain, kept = flat(pixels), hashes(pixels)
        bottom = ~plain & ended(pixels)
        return replace(self, digests=kept, turned=turned(pixels, kept), flat=plain, ended=bottom)


@dataclass(frozen=True)
class Course:
    """The values of one client of series, in order of time.

    Attributes:
        name: The client.
        values: (rows, F) numbers, the first target first; NaN if missing.
        step: Its usual step of time, in seconds or numbers; 0 if unknown.
    """

    name: str
    values: Floats
    step: float = 0.0


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of series, and why others are lost.

    Attributes:
        possible: Number of windows, were there no gaps.
        lost: Number of windows lost to each cause, such as ``week ends``.
        where: First place of each cause.
        without: Clients without a window.
        length: Rows of a window.
        calendar: The calendar by which steps of time are measured.
        dated: Whether times are dates.
        courses: The course of each client.
        columns: (F,) names of the columns of values.
    """

    possible: int
    lost: Mapping[str, int]
    where: Mapping[str, str]
    without: Sequence[str]
    length: int
    calendar: str
    dated: bool
    courses: Sequence[Course]
    columns: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Times:
    """Times by which samples are ordered.

    Attributes:
        name: Name of the column.
        kind: ``numbers`` or ``dates``.
        values: (n,) numbers, or seconds since 1970.
        clients: (n,) client of each time, if known.
        given: Whether the user names the column; otherwise rows are taken in order.
    """

    name: str
    kind: str
    values: Floats
    clients: NDArray[Any] | None = None
    given: bool = True


@dataclass(frozen=True, eq=False)
class Array:
    """An array of inputs, as it was given.

    Attributes:
        name: Its name.
        dtype: Type of its numbers.
        shape: (n, ...).
        least: Smallest number in some samples.
        most: Largest number in them.
        whole: Whether all of them are whole.
        tested: Range of the numbers in some official test samples, if there are any.
        sizes: The size of the largest number of each of the samples that were looked at.
        rows: (s,) the samples that were looked at.
        still: (s, C) mask of the channels of these that have a single number; C is 1 for tokens,
            and 0 for vectors.
        lows: (s,) the smallest number of each of them.
        means: (s, C) the means of their channels; C is 0 for tokens and vectors.
        tokens: (s, length) these samples themselves, if they are tokens.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    least: float
    most: float
    whole: bool
    tested: float | None = None
    sizes: Floats = field(default_factory=_no_numbers)
    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    still: NDArray[np.bool_] = field(default_factory=lambda: np.empty((0, 0), bool))
    lows: Floats = field(default_factory=_no_numbers)
    means: Floats = field(default_factory=lambda: np.empty((0, 0)))
    tokens: Ints = field(default_factory=lambda: np.empty((0, 0), np.int64))

    @property
    def channels_last(self) -> bool:
        """Whether samples seem to be images with channels last, (n, H, W, C)."""
        return len(self.shape) == 4 and self.shape[3] in (1, 3, 4) and self.shape[1] > 4


@dataclass(frozen=True, eq=False)
class Goal:
    """The targets of arrays.

    Attributes:
        y: (n, ...) targets.
        inferred: Whether the task follows from their type.
        dense: Whether each pixel has a class.
        values: The key that renumbers classes; empty if there is none.
        fits: (n, 6) how far masks tell the shades of an image: its own; its own mirrored, upside
            down, and with its sides exchanged; and those of the samples before and after it.
        colours: What a number means in two palettes, one line each.
    """

    y: NDArray[Any]
    inferred: bool
    dense: bool
    values: str = ""
    fits: Floats = field(default_factory=lambda: np.empty((0, 6)))
    colours: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Division:
    """The samples as classes, clients and splits: known for every data set.

    Attributes:
        names: Names of classes, subclasses and clients, with their numbers of samples.
        twice: Names that two classes have.
        labels: (n,) class of each sample; ``None`` without classes.
        clients: (n,) natural client of each sample; ``None`` if unknown.
        side: (n,) 1 for samples of training, 2 of validation, 3 of testing; 0 if not in use.
        protocol: The test protocol.
        shares: The shares of samples that the user sets aside, by the names of the options.
        given: The splits that the data have samples for: ``test``, ``val``.
        natural: Whether the clients are those of the data.
        held: (N, 3) training, validation and test samples of each client that takes part.
        chosen: Whether the user lists the samples of each client.
        official: Number of official test samples, which are the last ones.
    """

    names: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    labels: Ints | None = None
    clients: Ints | None = None
    side: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    protocol: str = "pooled"
    twice: Sequence[str] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    given: Sequence[str] = ()
    natural: bool = False
    held: Ints = field(default_factory=lambda: np.empty((0, 3), np.int64))
    chosen: bool = False
    official: int = 0

    def named(self, kind: str) -> list[str]:
        """Return the names of one kind (class, subclass, client), in the order of their numbers."""
        return [*self.names.get(kind, {})]


@dataclass(frozen=True, eq=False)
class Record:
    """The data as read.

    Attributes:
        samples: Number and kind of the samples.
        source: The file or folder.
        notes: What else there is to say, and what is not used.
        columns: The columns of a table or of arrays of numbers.
        lines: Lines and rows of a text file.
        pictures: What was seen while pictures were decoded.
        windows: Windows of series.
        times: Times by which samples are ordered.
        arrays: The inputs, if they are given as arrays.
        goal: The targets, if they are given as an array.
        identifiers: (n,) what a sample belongs to (a patient, a lesion), by name.
        place: Returns the place of a sample.
        shown: Returns the place of a decoded picture.
        files: The files of the samples, if each has one.
        division: Classes, clients and splits.
        digests: (n,) hashes of the samples' content; empty if it was not compared.
        turned: (n,) hashes that images share with their mirrored and turned copies.
        rich: Returns whether samples of equal content are copies, and not equal by chance.
        near: (k, 2) pairs of images of which one seems to be the other, saved again.
        grey: (n,) mask of images without colours; empty if it is not known.
        hues: (n, C) means of the channels of images of bytes; empty if they are not known.
        marks: For classes with a mark, by their numbers: how many pixels all images of the class
            have alike, and others have not, and the place of the first.
        forms: The form of the first samples of each client, if they are of a kind of one's own.
    """

    samples: str
    source: str = ""
    notes: Notes = field(default_factory=Notes)
    columns: tuple[Values, ...] = ()
    lines: Lines | None = None
    pictures: Pictures = field(default_factory=Pictures)
    windows: Windows | None = None
    times: Times | None = None
    arrays: tuple[Array, ...] = ()
    goal: Goal | None = None
    identifiers: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    place: Callable[[int], str] = _nowhere
    shown: Callable[[int], str] = _nowhere
    files: Sequence[str] = ()
    division: Division = field(default_factory=Division)
    digests: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    turned: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    rich: Callable[[Ints], bool] = lambda rows: True
    near: Ints = field(default_factory=lambda: np.empty((0, 2), np.int64))
    grey: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    hues: Floats = field(default_factory=lambda: np.empty((0, 0)))
    marks: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    forms: Mapping[str, str] = field(default_factory=dict)

    def of(self, *uses: Use) -> list[Values]:
        """Return the columns of some uses."""
        return [column for column in self.columns if column.use in uses]
