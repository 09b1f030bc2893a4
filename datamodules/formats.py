"""The format of a file by its first bytes, and the line that converts one that is not read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datamodules.checks import MEMORY_LIMIT, require

HEAD = 512
# Compressed text is rarely a hundredth of its size; this much is unpacked in any case.
_RATIO = 100
_ALWAYS = 64 * 2**20

# First bytes of formats, the longer ones first.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs.github.com", "a pointer of Git LFS"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"SQLite format 3\0", "SQLite"),
    (b"PAR1", "Parquet"),
    (b"ARROW1", "Arrow"),
    (b"FEA1", "Arrow"),
    (b"\x93NUMPY", "NumPy"),
    (b"MATLAB 5.0", "MATLAB"),
    (b"<stata_dta>", "Stata"),
    (b"$FL2", "SPSS"),
    (b"$FL3", "SPSS"),
    (b"RDX", "R"),
    (b"RDA", "R"),
    (b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xc2\xea\x81\x60", "SAS"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Excel 97"),
    (b"%PDF", "PDF"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
    (b"Rar!", "RAR"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
    (b"\x80\x04\x95", "pickle"),
    (b"\x80\x05\x95", "pickle"),
)
_BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC", b"avif": "AVIF"}
_UNPACK: dict[str, Any] = {
    "gzip": gzip.GzipFile,
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}
# What to do about each format where a table is expected; FILE stands for the file's name.
_TO_CSV = "python -c \"import pandas; pandas.{}.to_csv('table.csv', index=False)\""
_ADVICE = {
    "a pointer of Git LFS": "git lfs pull",
    "HDF5": _TO_CSV.format("read_hdf('FILE')"),
    "Arrow": _TO_CSV.format("read_feather('FILE')"),
    "Stata": _TO_CSV.format("read_stata('FILE')"),
    "SPSS": _TO_CSV.format("read_spss('FILE')"),
    "SAS": _TO_CSV.format("read_sas('FILE')"),
    "Excel 97": "libreoffice --headless --convert-to csv FILE",
    "OpenDocument": "libreoffice --headless --convert-to csv FILE",
    "JSON lines": _TO_CSV.format("read_json('FILE', lines=True)"),
    "JSON": _TO_CSV.format("read_json('FILE')"),
    "XML": _TO_CSV.format("read_xml('FILE')"),
    "zip": "unzip FILE",
    "a zip archive (as .xlsx and .npz are) that is cut off": "copy it again; if it is whole: unzip "
    "FILE",
    "LaTeX": "export its table as CSV",
    "YAML": "python -c \"import yaml, pandas; pandas.DataFrame(yaml.safe_load(open('FILE')))"
    ".to_csv('table.csv', index=False)\"",
    "tar": "tar xf FILE",
    "7-Zip": "7z x FILE",
    "RAR": "unrar x FILE",
    "Zstandard": "unzstd FILE",
    "SQLite": "sqlite3 -header -csv FILE 'select * from TABLE' > table.csv",
    "R": "Rscript -e \"write.csv(readRDS('FILE'), 'table.csv', row.names = FALSE)\"",
    "UTF-32": "iconv -f utf-32 -t utf-8 FILE > table.csv",
    "NumPy": "give TensorData an .npz file of named arrays (numpy.savez)",
    "MATLAB": "python -c \"import numpy, scipy.io; numpy.savez('data.npz', "
    "**{k: v for k, v in scipy.io.loadmat('FILE').items() if k[0] != '_'})\"",
    "HTML": _TO_CSV.format("read_html('FILE')[0]") + ", or download the file itself",
    "pickle": "save it as Parquet: DataFrame.to_parquet",
    "PDF": "export its table as CSV",
    "an .npz file of arrays": "data: TensorData reads it",
}


def name_of(path: Path) -> str:
    """Return the name of a file's format by its content; empty for text and the unknown."""
    with path.open("rb") as file:
        return name_of_bytes(file.read(HEAD), path)


def name_of_bytes(head: bytes, path: Path | None = None) -> str:
    """Return the name of the format that begins with some bytes."""
    found = next((name for magic, name in _MAGIC if head.startswith(magic)), "")
    if found == "zip" and path is not None:
        return _in_zip(path)
    return found or _within(head) or _markup(head)


def _within(head: bytes) -> str:
    """Return the name of a format whose mark does not stand at its begin."""
    if head[257:262] == b"ustar":
        return "tar"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "a video")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    # Of the release 113 to 115, in either order of bytes.
    return (
        "Stata" if head[:1] in (b"\x71", b"\x72", b"\x73") and head[1:2] in (b"\1", b"\2") else ""
    )


def _in_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return "a zip archive (as .xlsx and .npz are) that is cut off"
    if "xl/workbook.xml" in names:
        return "Excel"
    if "content.xml" in names:
        return "OpenDocument"
    return "an .npz file of arrays" if names and all(n.endswith(".npy") for n in names) else "zip"


def _markup(head: bytes) -> str:
    """Return the name of a format of text that is no table."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    lower = text[:200].lower()
    if lower.startswith((b"<!doctype html", b"<html")):
        return "HTML"
    if lower.startswith(b"<?xml"):
        return "XML"
    if lower.startswith((b"\\begin{", b"\\documentclass")):
        return "LaTeX"
    if lower.startswith(b"---\n") or re.match(rb"- \w+: ", text):
        return "YAML"
    if text[:1] == b"{" and b":" in text:
        line = text.split(b"\n", 1)[0]
        try:
            json.loads(line)
        except ValueError:
            return "JSON" if text[1:].lstrip()[:1] == b'"' else ""
        return "JSON lines"
    if text[:1] == b"[" and text[1:].lstrip()[:1] == b"{":
        return "JSON"
    return ""


def advice(name: str, path: Path | str) -> str:
    """Return what to do about a file of a format that is not read."""
    how = _ADVICE.get(name, "")
    command = bool(how) and not how.startswith(("copy", "give", "save", "export", "data:"))
    return f"it is {name}; {'convert it: ' * command}{how.replace('FILE', str(path))}".rstrip("; ")


def instead(path: Path) -> str:
    """Return what a file is in place of arrays, and what to do, to end a message; or nothing."""
    # Opened, a pipe would wait for a writer.
    name = name_of(path) if path.is_file() else ""
    known = not name or name == "NumPy" or "zip" in name or ".npz" in name
    return "" if known else f"; {advice(name, path)}"


@contextmanager
def reading(
    path: Path, wrong: str, kind: type[Exception] = ValueError, cure: str = ""
) -> Iterator[None]:
    """Convert any error in this context to one that names a file, and says what it is instead.

    Args:
        path: The file.
        wrong: What is wrong with it, such as ``is not an Excel file``.
        kind: Type of the error.
        cure: What to do; by default what a file of its format needs.
    """
    try:
        yield
    # Of a damaged file a library may raise anything.
    except Exception as error:
        told = str(error).removeprefix(f"{path} ")
        how = f"; {cure}" if cure else instead(path)
        # One that names the file has its own cure.
        raise kind(f"{path} {wrong}: {told}{how if told == str(error) else ''}") from error


def content(path: Path) -> tuple[bytes, str]:
    """Return the bytes of a file, unpacked if it is packed alone, and the name of their format.

    Raises:
        ValueError: The file does not fit into memory, is damaged, or unpacks to far more than its
            size.
    """
    size = path.stat().st_size
    require(size <= MEMORY_LIMIT, f"{path} does not fit into memory")
    packed = name_of(path)
    if packed not in _UNPACK:
        return path.read_bytes(), packed
    limit = min(MEMORY_LIMIT, max(_ALWAYS, _RATIO * size))
    damaged = f"is {packed}, and is damaged"
    with reading(path, damaged, cure="copy it again"), _UNPACK[packed](path) as file:
        found = file.read(limit + 1)
    require(
        len(found) <= limit,
        f"{path} unpacks to more than {_RATIO} times its size of {size:,} bytes, and is refused; "
        "unpack it if you trust it",
    )
    return found, name_of_bytes(found[:HEAD])


def check_archive(path: Path) -> None:
    """Reject a zip of XML, such as a spreadsheet, that unpacks to far more or defines entities.

    Raises:
        ValueError: The archive is rejected.
    """
    limit = min(MEMORY_LIMIT, max(_ALWAYS, _RATIO * path.stat().st_size))
    try:
        with zipfile.ZipFile(path) as archive:
            total = 0
            for member in archive.infolist():
                text = member.filename.endswith((".xml", ".rels", ".vml"))
                with archive.open(member) as file:
                    found = file.read(limit - total + 1)
                total += len(found)
                require(total <= limit, f"it unpacks to more than {_RATIO} times its size")
                odd = found[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in found[:100]
                entities = b"<!DOCTYPE" in found or b"<!ENTITY" in found
                require(
                    not (text and (entities or odd)),
                    f"{member.filename} in it defines entities, or is not UTF-8",
                )
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error}; save it again") from error
    except ValueError as error:
        raise ValueError(f"{path} is refused: {error}") from error
