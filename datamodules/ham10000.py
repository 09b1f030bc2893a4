"""HAM10000: images of skin lesions from four sources."""

from __future__ import annotations

import csv
from pathlib import Path

from datamodules.filedata import FileData, Listing
from datamodules.files import image_files


class HAM10000(FileData):
    """10,015 dermatoscopic images of 600x450 pixels, 7 diagnoses; no official test set is used.

    The domain is the source of an image (``dataset`` in the metadata: ``rosendahl``,
    ``vidir_modern``, ``vidir_molemax``, ``vienna_dias``). Several images can show the same lesion;
    images, not lesions, are divided. The arguments are those of
    :class:`~datamodules.filedata.FileData`; at full size the set takes 7.6 GiB, with ``image_size:
    64`` 117 MiB.

    Source: Tschandl, Rosendahl and Kittler, "The HAM10000 dataset", Scientific Data 5, 2018.
    """

    layout = (
        "HAM10000 is at Harvard Dataverse, doi.org/10.7910/DVN/DBW86T; expected: the metadata as "
        "root/HAM10000_metadata (or with .csv or .tab), and the unpacked images anywhere below "
        "root as ISIC_*.jpg"
    )

    def scan(self) -> Listing:
        """Find the files.

        Raises:
            FileNotFoundError: The metadata or an image is missing.
            ValueError: The metadata lacks a column.
        """
        rows = self._metadata()
        paths = {Path(file).stem: file for file in image_files(self.root)}
        if missing := [row["image_id"] for row in rows if row["image_id"] not in paths]:
            raise FileNotFoundError(
                f"{len(missing)} images of the metadata are not below {self.root}; the first is "
                f"{missing[0]}.jpg; {self.layout}"
            )
        return Listing(
            [paths[row["image_id"]] for row in rows],
            [row["dx"] for row in rows],
            len(rows),
            # Some copies of the metadata lack the source.
            [row["dataset"] for row in rows] if "dataset" in rows[0] else (),
        )

    def _metadata(self) -> list[dict[str, str]]:
        candidates = [self.root / f"HAM10000_metadata{suffix}" for suffix in ("", ".csv", ".tab")]
        files = [file for file in candidates if file.is_file()]
        if not files:
            raise FileNotFoundError(f"there is no {candidates[1]}; {self.layout}")
        with files[0].open(newline="", encoding="utf-8") as lines:
            header = lines.readline()
            lines.seek(0)
            rows = list(csv.DictReader(lines, delimiter="\t" if "\t" in header else ","))
        if not rows or not {"image_id", "dx"} <= rows[0].keys():
            raise ValueError(f"{files[0]} lacks the columns image_id and dx, or is empty")
        return sorted(rows, key=lambda row: row["image_id"])
