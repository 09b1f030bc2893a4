"""Tables: a hundred and twenty patients of a few hospitals, sound and damaged."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules import ByDomain, TabularData
from tests.datamodules.corpus.kinds import Case
from tests.datamodules.corpus.names import INVISIBLE, TWINS

Rows = list[dict[str, Any]]
SITES = ("Bonn", "Ulm", "Kiel", "Jena", "Hof")


def patients(rng: np.random.Generator, count: int = 0) -> Rows:
    """Return rows of patients, the same from the same stream."""
    count = count or int(rng.integers(100, 160))
    sites = list(rng.permutation(SITES)[: int(rng.integers(3, 6))])
    kinds = ["typical", "atypical", "none of these"]
    rows = []
    for n in range(count):
        age, bmi = rng.normal(60, 12), rng.normal(27, 4)
        rows.append(
            {
                "age": f"{age:.2f}",
                "bmi": f"{bmi:.3f}",
                "visits": str(int(rng.integers(0, 12))),
                "kind": kinds[int(rng.integers(3))],
                "site": sites[n % len(sites)],
                "note": "fine",
                "ill": ["no", "yes"][int(rng.integers(2))],
            }
        )
    return rows


def text_of(rows: Rows, separator: str = ",", end: str = "\n") -> str:
    """Return rows as CSV."""
    lines = [separator.join(rows[0]), *(separator.join(map(str, one.values())) for one in rows)]
    return end.join(lines) + end


def read(file: Path, **options: Any) -> TabularData:
    """Return the data of a file of patients."""
    usual = {"client_column": "site", "features": ["age", "bmi", "visits", "kind"]}
    return TabularData(str(file), "ill", **{**usual, **options})


def written(content: str | bytes, folder: Path, name: str = "t.csv", **options: Any) -> TabularData:
    """Write a file, and return its data."""
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read(file, **options)


def case(
    damage: str,
    words: str,
    change: Callable[[Rows, np.random.Generator], Rows | str | bytes | None],
    name: str = "t.csv",
    **options: Any,
) -> Case:
    """Return a case that changes rows, or the file."""

    def make(folder: Path, rng: np.random.Generator) -> Any:
        rows = patients(rng)
        changed = change(rows, rng)
        content = rows if changed is None else changed
        given = content if isinstance(content, str | bytes) else text_of(content)
        return written(given, folder, name, **options)

    return Case("table", damage, make, words)


def right(damage: str, words: str, content: Callable[[str], str | bytes], **options: Any) -> Case:
    """Return a case whose file may be read as what it holds."""
    name = options.pop("name", "t.csv")

    def make(folder: Path, rng: np.random.Generator) -> Any:
        rows = patients(rng)
        data = written(content(text_of(rows)), folder, name, **options)
        data.expected = len(rows)
        return data

    return Case("table", damage, make, words, lambda data: rows_of(data) == data.expected)


def rows_of(data: Any) -> int:
    """Return the number of samples in use."""
    return int(data.division.sizes.sum())


def some(rows: Rows, rng: np.random.Generator, count: int = 5) -> Sequence[int]:
    """Return some places of rows."""
    return rng.choice(np.arange(5, len(rows) - 5), count, replace=False).tolist()


def put(column: str, value: str, count: int = 5) -> Callable[[Rows, np.random.Generator], None]:
    """Return a change that puts a value into some rows."""

    def change(rows: Rows, rng: np.random.Generator) -> None:
        for row in some(rows, rng, count):
            rows[row][column] = value

    return change


def twin(column: str, change: Callable[[str], str]) -> Callable[[Rows, np.random.Generator], None]:
    """Return a change that writes the names of a column in two ways."""

    def of(rows: Rows, rng: np.random.Generator) -> None:
        name = rows[0][column]
        for place, row in enumerate(one for one in rows if one[column] == name):
            if place % 2:
                row[column] = change(name)

    return of


def quoted(rows: Rows, rng: np.random.Generator) -> None:
    first = int(rng.integers(5, 20))
    rows[first]["note"], rows[first + int(rng.integers(10, 60))]["note"] = '"see file', 'ok"'


def never_closed(rows: Rows, rng: np.random.Generator) -> None:
    rows[int(rng.integers(5, 60))]["note"] = '"see file'


def after(line: str) -> Callable[[Rows, np.random.Generator], str]:
    return lambda rows, rng: text_of(rows) + line + "\n"


def before(lines: str) -> Callable[[Rows, np.random.Generator], str]:
    return lambda rows, rng: lines + "\n" + text_of(rows)


def column(name: str, value: Callable[[int], Any]) -> Callable[[Rows, np.random.Generator], Rows]:
    """Return a change that adds a column at the left."""
    return lambda rows, rng: [{name: value(n), **row} for n, row in enumerate(rows)]


def stacked(rows: Rows, rng: np.random.Generator) -> str:
    half = len(rows) // 2
    return text_of(rows[:half]) + text_of(rows[half:])


def repeated(rows: Rows, rng: np.random.Generator) -> Rows:
    return [*rows, *(dict(rows[row]) for row in some(rows, rng, 12))]


def unit(rows: Rows, rng: np.random.Generator) -> None:
    site = rows[0]["site"]
    for row in rows:
        if row["site"] == site:
            row["bmi"] = f"{1000 * float(row['bmi']):.1f}"


def vanished(rows: Rows, rng: np.random.Generator) -> None:
    site = rows[0]["site"]
    for row in rows:
        row["bmi"] = "" if row["site"] == site else row["bmi"]


def countries(rows: Rows, rng: np.random.Generator) -> None:
    for n, row in enumerate(rows):
        row["site"] = ("DE", "FR", "NA")[n % 3]


def excel(folder: Path, rng: np.random.Generator, sheets: int = 1) -> Any:
    openpyxl = pytest.importorskip("openpyxl")
    rows, book = patients(rng), openpyxl.Workbook()
    for number in range(sheets):
        sheet = book.active if number == 0 else book.create_sheet()
        sheet.append([*rows[0]])
        for row in rows:
            sheet.append([_value(cell) for cell in row.values()])
    book.save(folder / "t.xlsx")
    data = read(folder / "t.xlsx")
    data.expected = len(rows)
    return data


def _value(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def bomb(folder: Path, rng: np.random.Generator) -> Any:
    with gzip.open(folder / "t.csv.gz", "wb", 9) as file:
        file.write(b"age,site,ill\n")
        for _ in range(100):
            file.write(b"0" * 2**20)
    return read(folder / "t.csv.gz")


def entities(folder: Path, rng: np.random.Generator) -> Any:
    laughs = '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY lol "lol">'
    laughs += "".join(f'<!ENTITY lol{n} "{f"&lol{n - 1 or str()};" * 10}">' for n in range(1, 9))
    with zipfile.ZipFile(folder / "t.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", laughs + "]><workbook>&lol8;</workbook>")
        archive.writestr("[Content_Types].xml", "<Types/>")
    return read(folder / "t.xlsx")


def zipped(text: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("t.csv", text)
    return buffer.getvalue()


def lines_of_json(rows: Rows, rng: np.random.Generator) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def german(rows: Rows, rng: np.random.Generator) -> str:
    for row in rows:
        row["age"], row["bmi"] = row["age"].replace(".", ","), row["bmi"].replace(".", ",")
    return text_of(rows, ";")


def thousands(rows: Rows, rng: np.random.Generator) -> None:
    for row in rows:
        number = 10 * int(rng.integers(20, 900))
        row["bmi"] = f"{number:,}".replace(",", ".")


def trailing(rows: Rows, rng: np.random.Generator) -> str:
    head, *rest = text_of(rows).splitlines()
    return "\n".join([head, *(line + "," for line in rest)]) + "\n"


def cut(rows: Rows, rng: np.random.Generator) -> str:
    rows[-1]["ill"] = "yes"
    return text_of(rows)[:-2]


def sums(rows: Rows, rng: np.random.Generator) -> None:
    total = {
        name: f"{sum(float(row[name]) for row in rows):.3f}" for name in ("age", "bmi", "visits")
    }
    rows.append({**rows[0], **total})


def named_twice(rows: Rows, rng: np.random.Generator) -> str:
    return text_of(rows).replace("note", "age", 1)


def patients_again(rows: Rows, rng: np.random.Generator) -> Rows:
    return [{"patient": f"P{n % 40:03}", **{**row, "site": "Bonn"}} for n, row in enumerate(rows)]


CATEGORY = {"features": ["age", "bmi", "kind"]}
DAMAGED = [
    case("a quote that swallows rows", r"line \d+: a cell begins with a quote", quoted),
    case("a quote that is never closed", r"line \d+.*never closed", never_closed),
    case("a title above the header", "tail|above", before("Report of 2026")),
    case("a comment with commas above", "above|line 2", before("# made by, x, y, z, a, b, c")),
    case("Excel's sep= line", "separator|remove", before("sep=;")),
    case("a note below", r"line \d+.*last line", after("Source: the ward")),
    case("a line of totals", r"line \d+.*sum", after("60,27,5,typical,Total,fine,no")),
    case("a line of sums", r"line \d+.*sum", sums),
    case(
        "a line of units",
        r"line 2.*unit",
        lambda rows, rng: rows.insert(
            0,
            {
                "age": "years",
                "bmi": "kg/m2",
                "visits": "n",
                "kind": "-",
                "site": "Bonn",
                "note": "-",
                "ill": "no",
            },
        ),
    ),
    case(
        "units in a category",
        r"line 2.*unit",
        lambda rows, rng: rows.insert(
            0,
            {
                "age": "60",
                "bmi": "27",
                "visits": "1",
                "kind": "kg",
                "site": "Bonn",
                "note": "-",
                "ill": "no",
            },
        ),
    ),
    case("two files, one below the other", "header", stacked),
    case("the header again, in words alone", r"header", stacked, features=["kind", "note"]),
    case("cut off in its last word", r"cut off|copy it again|single sample", cut),
    case("cut off in its last row", r"line \d+: \d values", lambda rows, rng: text_of(rows)[:-20]),
    case("semicolons and decimal commas", "separator: ';'.*decimal: ','", german),
    case("semicolons", "separator: ';'", lambda rows, rng: text_of(rows, ";")),
    case("tabs", r"separator: '\\t'", lambda rows, rng: text_of(rows, "\t")),
    case("a separator at the end of rows", "header lacks|separator", trailing),
    case(
        "decimal commas between commas",
        "decimal comma|quotes",
        lambda rows, rng: text_of([{**row, "age": row["age"].replace(".", ",")} for row in rows]),
    ),
    case("thousands' points", "thousands: '.'", thousands),
    right("gzip", "gunzip", lambda text: gzip.compress(text.encode()), name="t.csv.gz"),
    right("gzip without its name", "gunzip", lambda text: gzip.compress(text.encode())),
    right("bzip2", "bunzip2", lambda text: bz2.compress(text.encode()), name="t.csv.bz2"),
    right("UTF-16", "iconv", lambda text: text.encode("utf-16")),
    right("a byte order mark", "BOM", lambda text: b"\xef\xbb\xbf" + text.encode()),
    right("line ends of an old Mac", "line ends", lambda text: text.replace("\n", "\r")),
    right("a zip with a table", "unzip", zipped, name="t.zip"),
    Case("table", "Excel", excel, "openpyxl", lambda data: rows_of(data) == data.expected),
    Case("table", "Excel with two sheets", partial(excel, sheets=2), "first sheet is read"),
    Case("table", "a gzip bomb", bomb, "unpacks to more than"),
    Case("table", "entities in Excel", entities, "entities|openpyxl"),
    case("gzip cut off", "damaged", lambda rows, rng: gzip.compress(text_of(rows).encode())[:-30]),
    case("UTF-16 without a mark", "iconv", lambda rows, rng: text_of(rows).encode("utf-16-le")),
    case(
        "Latin-1",
        "line [0-9]+.*iconv",
        lambda rows, rng: text_of([{**row, "note": "schläft"} for row in rows]).encode("latin-1"),
    ),
    case("JSON lines", "read_json", lines_of_json, "t.jsonl"),
    case("JSON lines by another name", "read_json", lines_of_json),
    case("a list of JSON", "read_json", lambda rows, rng: json.dumps(rows)),
    case("Stata", "read_stata", lambda rows, rng: b"<stata_dta><header>", "t.dta"),
    case("SPSS", "read_spss", lambda rows, rng: b"$FL2@(#) SPSS DATA FILE", "t.sav"),
    case("HDF5", "read_hdf", lambda rows, rng: b"\x89HDF\r\n\x1a\n\0\0", "t.h5"),
    case("SQLite", "sqlite3", lambda rows, rng: b"SQLite format 3\0\0", "t.db"),
    case(
        "old Excel", "libreoffice|convert", lambda rows, rng: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0"
    ),
    case("a page of a login", "HTML", lambda rows, rng: "<!DOCTYPE html><html><body>Log in"),
    case(
        "a pointer of Git LFS",
        "git lfs pull",
        lambda rows, rng: "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 12\n",
    ),
    case("a missing value as a word", "missing_values", put("kind", "unknown")),
    case("a missing value as dots", "missing_values", put("kind", "...")),
    case("a missing value as -999", "missing_values", put("bmi", "-999")),
    case("a missing value as -1", "missing_values", put("age", "-1")),
    case("a missing value as 0", "missing_values", put("bmi", "0")),
    case("a missing value as 9999", "missing_values", put("visits", "9999")),
    case("an error of Excel", "missing_values|finite", put("kind", "#REF!")),
    case("a decimal sign lost", "decimal sign", lambda rows, rng: rows[9].update(bmi="27000")),
    case("another unit at one site", "unit", unit),
    case("NA as a country", "NA.*missing", countries, missing="drop"),
    case("a site that vanishes", "no row of", vanished, missing="drop"),
    case(
        "a column that says nothing",
        "all rows",
        lambda rows, rng: [row.update(bmi="27") for row in rows] and None,
    ),
    case(
        "a column that is nearly empty",
        "missing in|left out",
        lambda rows, rng: [row.update(bmi="") for n, row in enumerate(rows) if n % 4] and None,
        missing="mean",
    ),
    case("rows twice", "content of another", repeated),
    case("patients on both sides", "patient.*testing", patients_again),
    case(
        "the answer among the inputs",
        "in every row",
        lambda rows, rng: [{**row, "outcome": row["ill"]} for row in rows],
        features=["age", "outcome"],
    ),
    case(
        "a running number",
        "numbers the rows",
        column("Unnamed: 0", lambda n: n),
        features=["Unnamed: 0", "age"],
    ),
    case(
        "a running number, shuffled",
        "numbers the rows",
        column("id", lambda n: n * 37 % 101 + n // 101 * 101),
        features=["id", "age"],
    ),
    case(
        "the index of pandas",
        "index=False",
        lambda rows, rng: text_of([{"": n, **row} for n, row in enumerate(rows)]),
    ),
    case(
        "codes as numbers",
        "categories",
        lambda rows, rng: [row.update(visits=f"{n % 7:03}") for n, row in enumerate(rows)] and None,
    ),
    case("a name of two columns", "two columns", named_twice),
    case(
        "an invisible letter in a column's name",
        r"\\u200b",
        lambda rows, rng: text_of(rows).replace("site", "site\u200b", 1),
    ),
    case("a class of one row", "single sample", lambda rows, rng: rows[7].update(ill="perhaps")),
    case(
        "a slip in a class",
        "letter away|single sample",
        lambda rows, rng: rows[7].update(ill="yess"),
    ),
    case("a client of one row", "single sample", lambda rows, rng: rows[7].update(site="Trier")),
    case(
        "classes as fractions",
        "regression",
        lambda rows, rng: [row.update(ill=row["age"]) for row in rows] and None,
        task="classification",
    ),
    case("yes and y", "mean the same", put("ill", "y", 30)),
    *(
        case(f"{how} in a {what}", words, twin(place, change), **options)
        for what, place, options in (
            ("client", "site", {}),
            ("class", "ill", {}),
            ("category", "kind", CATEGORY),
        )
        for how, change, words in (*TWINS, *INVISIBLE)
    ),
]


def sound(name: str, change: Callable[[Rows, np.random.Generator], Any], **options: Any) -> Case:
    """Return a sound case."""
    made = case(name, "-", change, **options)
    return Case("table", name, made.make)


def note(text: str) -> Callable[[Rows, np.random.Generator], None]:
    return lambda rows, rng: [row.update(note=text) for row in rows] and None


POSTCODES = ("01067", "04109", "50667", "89073")
SOUND = [
    sound("as it is", lambda rows, rng: None),
    sound(
        "post codes that are listed",
        lambda rows, rng: (
            [row.update(kind=POSTCODES[n % 4]) for n, row in enumerate(rows)] and None
        ),
        categories=["kind"],
    ),
    sound("semicolons that are given", german, separator=";", decimal=","),
    sound("no line end", lambda rows, rng: text_of(rows).rstrip("\n")),
    sound("Windows' line ends", lambda rows, rng: text_of(rows, end="\r\n")),
    sound("blank lines", lambda rows, rng: text_of(rows).replace("\n", "\n\n")),
    sound("notes of several lines", note('"pale, weak\ncomes back, Monday"')),
    sound("notes with quotes", note('"said ""no"", twice"')),
    sound("some missing, filled in", put("bmi", ""), missing="mean"),
    sound("some missing, dropped", put("bmi", "NA"), missing="drop"),
    sound(
        "an unused column of dates",
        lambda rows, rng: (
            [row.update(note=f"2026-{1 + n % 12:02}-{1 + n % 28:02}") for n, row in enumerate(rows)]
            and None
        ),
    ),
    sound("standardised", lambda rows, rng: None, standardise="train"),
    sound("a positive class", lambda rows, rng: None, task="binary", positive="yes"),
    sound(
        "sites with numbers",
        lambda rows, rng: (
            [row.update(site=f"site {1 + n % 12}") for n, row in enumerate(rows)] and None
        ),
    ),
    sound(
        "sites as numbers",
        lambda rows, rng: [row.update(site=1 + n % 4) for n, row in enumerate(rows)] and None,
    ),
    sound(
        "names of many scripts",
        lambda rows, rng: (
            [
                row.update(site=("Zürich", "Łódź", "東京", "Αθήνα")[n % 4])
                for n, row in enumerate(rows)
            ]
            and None
        ),
    ),
    sound(
        "a name in Persian",
        lambda rows, rng: (
            [
                row.update(
                    site=(
                        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
                        "\u062a\u0647\u0631\u0627\u0646",
                    )[n % 2]
                )
                for n, row in enumerate(rows)
            ]
            and None
        ),
    ),
    sound(
        "grades",
        lambda rows, rng: (
            [row.update(kind=("A+", "A-", "B+", "B-")[n % 4]) for n, row in enumerate(rows)]
            and None
        ),
    ),
    sound(
        "signs as classes",
        lambda rows, rng: (
            [row.update(ill=("+", "-")[n % 2]) for n, row in enumerate(rows)] and None
        ),
    ),
    sound(
        "ranges",
        lambda rows, rng: (
            [row.update(kind=("0-9", "10-19", "20-29")[n % 3]) for n, row in enumerate(rows)]
            and None
        ),
    ),
    sound(
        "quoted cells",
        lambda rows, rng: text_of(
            [{name: f'"{cell}"' for name, cell in row.items()} for row in rows]
        ),
    ),
    sound(
        "numbers to predict",
        lambda rows, rng: [row.update(ill=f"{rng.normal():.4f}") for row in rows] and None,
        task="regression",
    ),
    sound("a record's number that is not used", column("id", lambda n: f"R{n:04}")),
    sound(
        "negative numbers",
        lambda rows, rng: [row.update(bmi=f"{rng.normal():.3f}") for row in rows] and None,
    ),
    sound(
        "amounts with zeros",
        lambda rows, rng: (
            [row.update(visits=f"{max(0, rng.normal(0, 300)):.2f}") for row in rows] and None
        ),
    ),
    sound(
        "a long tail",
        lambda rows, rng: (
            [row.update(bmi=f"{np.exp(rng.normal(3, 1)):.2f}") for row in rows] and None
        ),
    ),
    sound(
        "zeros and ones",
        lambda rows, rng: [row.update(visits=n % 2) for n, row in enumerate(rows)] and None,
    ),
    sound(
        "times in order",
        lambda rows, rng: (
            [
                row.update(note=f"2026-{1 + n // 28:02}-{1 + n % 28:02}")
                for n, row in enumerate(rows)
            ]
            and None
        ),
        time_column="note",
        test_protocol="future",
    ),
    sound(
        "few values",
        lambda rows, rng: (
            [row.update(age=int(rng.integers(1, 6)), bmi=int(rng.integers(1, 6))) for row in rows]
            and None
        ),
    ),
    sound(
        "tested in a smaller part", lambda rows, rng: None, test_fraction=0.1, partition=ByDomain()
    ),
]
