"""HAM10000: images of skin lesions from four sources."""

from __future__ import annotations

from pathlib import Path

from datamodules.filedata import FileData, Listing
from datamodules.finding import image_files
from datamodules.listed import read_list


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
        rows = sorted(self._metadata(), key=lambda row: row["image_id"])
        names = [row["image_id"] for row in rows]
        paths = {Path(file).stem: file for file in image_files(self.root)}
        if missing := [name for name in names if name not in paths]:
            raise FileNotFoundError(
                f"{len(missing)} images of the metadata are not below {self.root}; the first is "
                f"{missing[0]}.jpg; {self.layout}"
            )
        lesions = [row["lesion_id"] for row in rows if "lesion_id" in row]
        return Listing(
            [paths[name] for name in names],
            [row["dx"] for row in rows],
            len(rows),
            # Some copies of the metadata lack the source.
            [row["dataset"] for row in rows if "dataset" in row],
            owners={"lesion_id": lesions} if len(lesions) == len(rows) else {},
        )

    def _metadata(self) -> list[dict[str, str]]:
        """Read the rows of the metadata."""
        candidates = [self.root / f"HAM10000_metadata{suffix}" for suffix in ("", ".csv", ".tab")]
        file = next((file for file in candidates if file.is_file()), None)
        if file is None:
            raise FileNotFoundError(f"there is no {candidates[1]}; {self.layout}")
        with file.open("rb") as lines:
            separator = "\t" if b"\t" in lines.readline() else ","
        return [row for _, row in read_list(file, ("image_id", "dx"), separator)]
