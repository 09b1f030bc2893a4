"""Data sets given as image files."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from datamodules.base import FederatedDataModule
from datamodules.checks import existing, require
from datamodules.files import decode, decode_once, readable
from datamodules.finding import SUFFIXES, files_digest
from datamodules.listed import read_list
from datamodules.pictures import Shape
from datamodules.record import Notes, Pictures, Record
from datamodules.targets import Catalogue, Ints, Targets
from pfl.core.places import Place
from pfl.core.ranges import AtLeastOne
from pfl.core.types import Inputs

# Names of files that say whose images they are: patient7_slice3.png.
_OWNER = re.compile(
    r"(?i)(patient|subject|participant|person|lesion|case|sub|pat|animal|donor|video|vid|clip|scene"
    r"|seq|sequence|slide|study|scan|volume|vol|specimen|speaker|writer|mouse)[-_ ]?\d+(?=\D)"
)


@dataclass(frozen=True)
class Listing:
    """The files of a data set, official training files first.

    Attributes:
        files: Paths, one per sample.
        classes: Name of each file's class.
        num_train: Number of official training files; all files if there is no official test set.
        domains: Name of each file's domain, if the data set has domains.
        empty: Names of classes without a file.
        notes: What else there is in the folder.
        owners: What each file belongs to besides its class, such as a lesion, by name.
    """

    files: Sequence[str]
    classes: Sequence[str]
    num_train: int
    domains: Sequence[str] = ()
    empty: Sequence[str] = ()
    notes: Notes = field(default_factory=Notes)
    owners: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def take(self, keep: Sequence[int], left_out: Iterable[tuple[str, str]] = ()) -> Listing:
        """Select files by index."""
        return replace(
            self,
            files=[self.files[i] for i in keep],
            classes=[self.classes[i] for i in keep],
            num_train=sum(i < self.num_train for i in keep),
            domains=[self.domains[i] for i in keep] if self.domains else (),
            empty=sorted({*self.classes, *self.empty} - {self.classes[i] for i in keep}),
            notes=replace(self.notes, left_out=[*self.notes.left_out, *left_out]),
            owners={name: [every[i] for i in keep] for name, every in self.owners.items()},
        )


class FileData(FederatedDataModule):
    """Base class of data sets given as image files; a subclass implements :meth:`scan`.

    Classes, domains and superclasses are numbered in the order of their names.

    Attributes:
        layout: Expected layout of the folder and its source, for error messages.

    Args:
        root: The folder.
        image_size: Height and width to which the largest centred square of each image is resized.
            ``None`` leaves the images unchanged; they must then all have the same size.
        grayscale: Use one channel instead of three.
        superclasses: A CSV file with the columns ``class`` and ``superclass``. The model predicts
            the superclasses; classes that are not in the file are left out.
        cache_dir: A folder for the decoded images, which are then decoded once and read in parts;
            sets larger than memory need it. It takes one byte per pixel and channel, and has one
            file for each image size and each state of the source files. ``None`` decodes into
            memory each time.
        on_unreadable: ``refuse`` raises an error that lists unreadable images; ``skip`` leaves them
            out, at the cost of decoding each file twice.
        over_white: Draw transparent images over white.
        exif_orientation: Rotate images by their EXIF orientation.
        common: Arguments of :class:`~datamodules.base.FederatedDataModule`.
    """

    layout: str

    def __init__(
        self,
        root: Annotated[str, Place()],
        image_size: AtLeastOne | None = None,
        grayscale: bool = False,
        superclasses: str | None = None,
        cache_dir: str | None = None,
        on_unreadable: Literal["refuse", "skip"] = "refuse",
        over_white: bool = True,
        exif_orientation: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.root = Path(root).expanduser()
        self.shape = Shape(image_size, grayscale, over_white, exif_orientation)
        self.on_unreadable = on_unreadable
        self._seen = Pictures()
        self.superclasses = superclasses
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()

    @abstractmethod
    def scan(self) -> Listing:
        """Find the files.

        Raises:
            FileNotFoundError: The folder is missing or has another layout.
            ValueError: A class has no image.
        """

    @cached_property
    def parents(self) -> dict[str, str]:
        """The superclass of each class; empty without superclasses."""
        return {} if self.superclasses is None else read_superclasses(self.superclasses)

    @cached_property
    def listing(self) -> Listing:
        """The files in use.

        Raises:
            ValueError: The CSV file names a class without images.
        """
        listing = self.scan()
        if self.on_unreadable == "skip":
            reasons = readable(listing.files, self.shape)
            keep = [i for i, file in enumerate(listing.files) if file not in reasons]
            listing = listing.take(keep, reasons.items())
        if not listing.files:
            raise ValueError(
                f"the folder {self.root} contains no image ({', '.join(sorted(SUFFIXES))})"
            )
        if not self.parents:
            return listing
        if unknown := sorted(self.parents.keys() - set(listing.classes)):
            raise ValueError(
                f"{self.superclasses or type(self).__name__} has the class {unknown[0]!r}, but "
                f"{self.root} has no image of it; its classes are "
                f"{', '.join(sorted(set(listing.classes))[:5])}, ..."
            )
        keep = [i for i, name in enumerate(listing.classes) if name in self.parents]
        others = Counter(name for name in listing.classes if name not in self.parents)
        why = f"no class of {self.superclasses or type(self).__name__}"
        left = [(f"{count} images of {name!r}", why) for name, count in sorted(others.items())]
        return replace(listing.take(keep, left), empty=())

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the predicted classes, or superclasses if these are given."""
        every = {*self.listing.classes, *self.listing.empty}
        names = tuple(sorted(set(self.parents.values()) or every))
        if self._learnt is None:
            return names
        known = tuple(self._learnt.class_names)
        if new := [name for name in names if name not in known]:
            raise ValueError(
                f"{self.root} has the class {new[0]!r}, but those of the run are "
                f"{', '.join(known[:20])}"
            )
        return known

    @cached_property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.shape.of(self.listing.files[0])

    def prepare_data(self) -> None:
        """Decode the images into the cache folder, if one is given and has no copy yet."""
        if self.cache_dir is not None:
            self.inputs(np.empty(0, np.int64))

    def catalogue(self) -> Catalogue:
        """Return labels, subclasses and domains of all samples."""
        listing, parents = self.listing, self.parents
        predicted = [parents[name] for name in listing.classes] if parents else listing.classes
        fine_names = sorted(set(listing.classes)) if parents else ()
        domain_names = sorted(set(listing.domains))
        targets = Targets(
            _numbers(predicted, self.class_names),
            _numbers(listing.classes, fine_names) if fine_names else None,
            _numbers(listing.domains, domain_names) if domain_names else None,
        )
        digest = files_digest(self.root, listing.files)
        return Catalogue(
            targets, listing.num_train, self.class_names, fine_names, domain_names, digest
        )

    def inputs(self, ids: Ints) -> tuple[Inputs, Ints]:
        """Return the pixels of at least the samples ``ids``, which are in ascending order."""
        files = self.listing.files
        if self.cache_dir is None:
            wanted = [files[i] for i in ids]
            pixels, self._seen = decode(wanted, self.shape)
            return pixels, np.arange(len(ids), dtype=np.int64)
        state = files_digest(self.root, files, stamps=True)
        how = "".join(str(int(on)) for on in (self.shape.over_white, self.shape.exif_orientation))
        cache = self.cache_dir / f"{type(self).__name__.lower()}-{state}-{how}"
        pixels, self._seen = decode_once(files, self.shape, cache)
        return pixels, ids

    def record(self) -> Record:
        """Return the images and the unused files."""
        listing = self.listing
        channels, height, width = self.input_shape
        owners = {**listing.owners, **_owners(listing.files)}
        whole = len(self._seen.flat) == len(listing.files)
        ids = np.arange(len(listing.files)) if whole else self.division.samples()
        facts = [f"{channels} channels of {height}x{width} pixels", *listing.notes.facts]
        return Record(
            f"{len(listing.files):,} images",
            str(self.root),
            replace(listing.notes, facts=facts),
            pictures=self._seen,
            identifiers={name: np.array(values) for name, values in owners.items()},
            place=lambda row: listing.files[row],
            shown=lambda row: listing.files[int(ids[row])],
            files=listing.files,
        )


def _owners(files: Sequence[str]) -> dict[str, list[str]]:
    """Return what files belong to by their names, if nearly all are named by patient or so."""
    found = [_OWNER.search(os.path.basename(file)) for file in files]
    known = [match for match in found if match is not None]
    if not files or 10 * len(known) < 9 * len(files):
        return {}
    names = [str(place) if one is None else one[0].lower() for place, one in enumerate(found)]
    return {known[0][1].lower(): names}


def read_superclasses(path: str) -> dict[str, str]:
    """Read the superclass of each class from the columns ``class`` and ``superclass`` of a list.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file lacks a column, is empty, or has a class twice.
    """
    file = existing(path, "superclasses")
    parents: dict[str, str] = {}
    for line, row in read_list(file, ("class", "superclass")):
        name = row["class"]
        require(name not in parents, f"{file}, line {line}: the class {name!r} stands in two rows")
        parents[name] = row["superclass"]
    return parents


def _numbers(names: Sequence[str], order: Sequence[str]) -> Ints:
    number = {name: i for i, name in enumerate(order)}
    return np.array([number[name] for name in names], np.int64)
