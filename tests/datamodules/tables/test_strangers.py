"""Tables of strangers: how a cell is spelt, and what it is read as or refused for.

Each table of cases has the right value beside what is read; where there is none, what the message
must say.
"""

from __future__ import annotations

import datetime as dt
import json
import unicodedata
import warnings

import numpy as np
import pytest
import torch

from datamodules import IID, ByDomain, Shards, TabularData, TimeSeries
from datamodules.tables.columns import Spelling
from datamodules.tables.dates import dates_of
from datamodules.tables.sources import read_table
from lightning_modules.fedavg import FedAvg
from tests.helpers.federation import fit
from tests.helpers.messages import parts, says
from tests.helpers.toy import mlp


@pytest.fixture
def outcomes(write):
    def outcomes(spelling, **options):
        """Ninety patients of three sites, every third without an outcome."""
        words = ["no", "yes", spelling]
        rows = "".join(f"{n},H{n // 3 % 3},{words[n % 3]}\n" for n in range(90))
        options = {"task": "binary", "positive": "yes", "missing": "drop", **options}
        return TabularData(write(f"a,site,ill\n{rows}"), "ill", client_column="site", **options)

    return outcomes


@pytest.mark.parametrize("spelling", ["", "NA", "N/A", "n/a", "NaN", "#N/A", "<NA>", "NULL", "?"])
def test_an_outcome_that_pandas_takes_for_missing_is_missing(outcomes, spelling):
    data = outcomes(spelling)
    data.setup()
    assert (data.class_names, data.division.sizes.sum()) == (["no", "yes"], 60)
    (column,) = (one for one in data.reading.columns if one.name == "ill")
    assert column.missing == {spelling: 30}
    assert data.reading.left_out == (("30 rows", "a value is missing"),)


@pytest.mark.parametrize("spelling", ["unknown", "-", "None", "not available", "#VALUE!", "-9"])
def test_another_outcome_is_refused_or_named(outcomes, spelling):
    """It is no negative: scores of the positive class would be wrong."""
    with pytest.raises(ValueError, match=parts("'ill' has 2 values ~ negative ~ missing_values")):
        outcomes(spelling).setup()
    data = outcomes(spelling, missing_values=[spelling])
    data.setup()
    assert data.division.sizes.sum() == 60
    both = outcomes(spelling, negative=["no", spelling])
    both.setup()
    assert both.division.sizes.sum() == 90
    with pytest.raises(ValueError, match=parts("line 4, column 'ill' ~ neither")):
        outcomes(spelling, negative="no").setup()


DAYS = [dt.date(2026, 1, 1) + dt.timedelta(n) for n in range(90)]
MONTHS = [dt.date(2024 + n // 12, n % 12 + 1, 1) for n in range(30)]
WEEKS = [dt.date(2026, 1, 5) + dt.timedelta(7 * n) for n in range(60)]
MINUTES = [dt.datetime(2026, 1, 31, 23) + dt.timedelta(minutes=n) for n in range(90)]


@pytest.mark.parametrize(
    ("stamps", "form"),
    [
        ([f"{t:%d.%m.%Y}" for t in DAYS], "%d.%m.%Y"),
        ([f"{t:%Y-%m}" for t in MONTHS], None),
        ([f"{t:%Y%m}" for t in MONTHS], None),
        ([f"{t:%G-W%V}" for t in WEEKS], None),
        ([f"{2010 + n // 4}Q{n % 4 + 1}" for n in range(30)], None),
        ([f"{2010 + n}" for n in range(30)], None),
        ([f"{t:%Y%m%d%H%M}" for t in MINUTES], None),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_series_without_gaps_has_all_its_windows(write, request, stamps, form, kind):
    """Whole numbers leap at the end of a month, a year or an hour; dates do not."""
    rows = [(site, stamp, n) for site in "AB" for n, stamp in enumerate(stamps)]
    if kind == "csv":
        file = write("site,day,load\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    else:
        columns = dict(zip(("site", "day", "load"), zip(*rows, strict=True), strict=True))
        if stamps[0].isdecimal():
            columns["day"] = [int(stamp) for stamp in columns["day"]]
        file = request.getfixturevalue("parquet")(columns)
    data = TimeSeries(file, "load", "site", past=7, time_column="day", date_format=form)
    assert data.division.sizes.sum(1).tolist() == [len(stamps) - 7] * 2


@pytest.mark.parametrize(
    "stamp", ["31.01.2026", "1/2/2026", "2026-02-30", "2026-W54", "12:30", "Jan 2026", "yesterday"]
)
def test_a_date_in_another_form_is_refused_and_its_form_asked_for(write, stamp):
    file = write(f"site,day,load\nA,2026-01-01,1\nA,{stamp},2\n")
    with pytest.raises(ValueError, match=parts(f"line 3, column 'day': '{stamp}' ~ date_format")):
        TimeSeries(file, "load", "site", past=1, time_column="day").setup()


@pytest.mark.parametrize(
    ("texts", "seconds"),
    [
        (["1970-01-02", "1970-01-01T01:00:00+01:00"], [86400, 0]),
        (["1970-01-01T00:00:00.25Z"], [0.25]),
        (["19700102", "19700201"], [86400, 31 * 86400]),
        (["197002"], [31 * 86400]),
        # The first week of 1970 began on Monday, 29 December.
        (["1970-W01", "1970W02"], [-3 * 86400, 4 * 86400]),
        (["197001", "197053"], [-3 * 86400, (-3 + 52 * 7) * 86400]),
        (["1970Q2"], [90 * 86400]),
        (["1970032", "1971001"], [31 * 86400, 365 * 86400]),
        (["1970010123"], [23 * 3600]),
        (["19700101000102"], [62]),
        (["1970-01-02 00:00", "1970-01-01T00:00:30"], [86400, 30]),
        # Seconds since 1970 are numbers.
        (["1774735200", "1774738800"], None),
        (["1970-01-01T00:00", "1970-01-01T00:00Z"], None),
        (["20261301"], None),
        (["202600"], None),
        (["12345678"], None),
        (["19700102", "3"], None),
    ],
)
def test_dates_in_seconds(texts, seconds):
    found = dates_of(texts, None)
    assert (found if found is None else found.tolist()) == seconds


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([f"${1000 + 37 * n:,}.50" for n in range(120)], "amounts ~ without a unit"),
        ([f"{n % 50} %" for n in range(120)], "amounts ~ '0 %'"),
        ([f"EUR {n}" for n in range(120)], "amounts"),
        ([f"{1000 + 37 * n:,}" for n in range(120)], "thousands: ',' ~ more than a thousand"),
        ([f"{n},5" for n in range(120)], "decimal: ','"),
        ([f"1.{n % 1000:03},50" for n in range(120)], "give decimal or thousands"),
        ([f"2026-{1 + n % 12:02}-{1 + n % 28:02}" for n in range(120)], "dates"),
        ([f"{1 + n % 28}/{1 + n % 12}/2026" for n in range(120)], "dates"),
        ([f"{n % 24}:{n % 60:02}" for n in range(120)], "dates"),
        ([f"Jan {1 + n % 28}, 2026" for n in range(120)], "dates"),
        ([f"patient {n}" for n in range(120)], "nearly every row ~ categories"),
    ],
)
def test_what_is_no_category_is_refused_by_name(write, cells, message):
    """Each would be a column of zeros and ones for each of its values."""
    rows = "".join(f'"{c}",H{n % 3},{["no", "yes"][n // 3 % 2]}\n' for n, c in enumerate(cells))
    file = write(f"price,site,ill\n{rows}")
    with pytest.raises(ValueError, match=parts(f"'price' ~ {message}")):
        TabularData(file, "ill", client_column="site").setup()
    named = TabularData(file, "ill", client_column="site", categories=["price"])
    named.setup()
    others = TabularData(file, "ill", client_column="site", features=["site"])
    others.setup()


@pytest.mark.parametrize(
    ("cell", "spelling", "number"),
    [
        ("1037.5", {}, 1037.5),
        ("1,037.5", {"thousands": ","}, 1037.5),
        ("1.037,5", {"thousands": ".", "decimal": ","}, 1037.5),
        ("1 037", {"thousands": " "}, 1037),
        ("1,5", {"decimal": ","}, 1.5),
        ("-12,345,678", {"thousands": ","}, -12345678),
        # Not a group of three digits.
        ("1,5", {"thousands": ","}, None),
        ("1,0375", {"thousands": ","}, None),
        ("1.5", {"decimal": ","}, None),
        ("1_000", {}, None),
        ("1e400", {}, None),
        ("0x10", {}, None),
    ],
)
def test_numbers_as_they_are_spelt(cell, spelling, number):
    found = Spelling(**spelling).number(cell)
    assert found == number if number is not None else np.isnan(found)


@pytest.mark.parametrize("column", ["client", "class", "category"])
def test_a_name_in_two_forms_of_unicode_is_one(write, column):
    forms = [unicodedata.normalize(form, "Zürich") for form in ("NFC", "NFD")]
    words = [[forms[n % 2], "Bonn"][n // 2 % 2] for n in range(40)]
    place = {"client": 0, "class": 1, "category": 2}[column]
    rows = [[f"S{n % 2}", ["no", "yes"][n // 3 % 2], f"c{n % 2}"] for n in range(40)]
    for row, word in zip(rows, words, strict=True):
        row[place] = word
    file = write("site,y,kind\n" + "".join(f"{','.join(row)}\n" for row in rows))
    data = TabularData(file, "y", client_column="site")
    data.setup()
    found = {
        "client": data.client_names,
        "class": data.class_names,
        "category": data.transforms()["features"]["kind"],
    }[column]
    assert [*found] == ["Bonn", "Zürich"]


def test_columns_of_lists_are_refused_only_where_they_are_used(parquet):
    columns = {"a": [*range(8)], "y": ["p", "q"] * 4, "site": ["A", "B", "B", "A"] * 2}
    nested = {"scan": [[1, 2]] * 8, "who": [{"age": 3}] * 8, "raw": [b"x"] * 8}
    file = parquet(columns | nested)
    for name in nested:
        with pytest.raises(ValueError, match=parts(f"'{name}' ~ instead of a single value")):
            TabularData(file, "y", client_column="site", features=["a", name]).setup()
    data = TabularData(file, "y", client_column="site", features=["a"])
    kinds = {one.name: one.kind for one in data.reading.columns}
    assert kinds["scan"] == kinds["who"] == "lists or records"


def test_the_index_of_pandas_is_no_input(tmp_path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    frame = pd.DataFrame({"a": [1.0, 2, 3, 4], "y": ["p", "q"] * 2}, index=[7, 8, 11, 3])
    frame.to_parquet(tmp_path / "t.parquet")
    data = TabularData(str(tmp_path / "t.parquet"), "y", 1, IID())
    assert data.input_shape == (1,)


def test_a_long_cell_is_read(write):
    file = write(f"a,note,y\n1,{'x' * 200_000},p\n2,z,q\n")
    assert len(TabularData(file, "y", 1, "x", features=["a"]).read()["x"]) == 2


def test_columns_may_be_separated_by_another_sign(write):
    text = "a;y;site\n1,5;p;A\n2,5;q;A\n3,5;p;A\n"
    options = {"client_column": "site", "separator": ";", "decimal": ","}
    data = TabularData(write(text), "y", **options)
    assert data.read()["x"].ravel().tolist() == [1.5, 2.5, 3.5]


def test_the_report_says_what_each_column_was_read_as(write):
    rows = "".join(
        f"{n if n % 10 else 'NA'},{'uv'[n % 2]},2026-01-{1 + n % 28:02},id{n},S{n % 2},"
        f"{'pq'[n // 2 % 2]}\n"
        for n in range(40)
    )
    file = write(f"age,kind,day,who,site,y\n{rows}")
    data = TabularData(
        file, "y", features=["age", "kind"], client_column="site", time_column="day",
        test_protocol="future", missing="mean",
    )  # fmt: skip
    data.setup()
    found = {one.name: (one.use, one.kind, dict(one.missing)) for one in data.reading.columns}
    assert found == {
        "age": ("feature", "numbers, 1 to 39", {"NA": 4}),
        "kind": ("feature", "category: u 20, v 20", {}),
        "day": ("time", "dates, 2026-01-01 to 2026-01-28", {}),
        "who": ("none", "identifier", {}),
        "site": ("client", "category: S0 20, S1 20", {}),
        "y": ("target", "category: p 20, q 20", {}),
    }
    assert data.reading.clients == {"S0": [10, 10], "S1": [10, 10]}
    assert data.reading.line().startswith("40 rows; 6 columns (1 numbers, 3 category, 1 dates")


@pytest.mark.parametrize(
    ("stamps", "gap"),
    [
        (lambda day: f"{day:%y%m%d}", "260131"),
        (lambda day: f"{day:%m.%d}", "1.31"),
    ],
)
def test_gaps_of_numbers_that_may_be_dates_are_warned_of(write, stamps, gap):
    rows = "".join(f"S,{stamps(day)},{n}\n" for n, day in enumerate(DAYS))
    series = TimeSeries(write(f"site,day,load\n{rows}"), "load", "site", 2, time_column="day")
    with pytest.warns(
        UserWarning, match=parts(f"4 of 88 windows ~ the first after {gap} ~ date_format")
    ):
        series.setup()


PRECISE = "'a' has numbers that single precision does not tell"


@pytest.mark.parametrize(
    ("column", "cell", "options", "doubt"),
    [
        ("a", lambda n: f"0{1000 + n % 5}", {}, "'a' is read as numbers ~ '01000' may be a code"),
        ("a", lambda n: f"{17 * 10**11 + n % 9}", {}, PRECISE),
        ("a", lambda n: f"{n % 9}e-50", {}, PRECISE),
        ("a", lambda n: f"{2**60 + n % 9}", {}, PRECISE),
        ("a", lambda n: f"{2**60 + n % 9}", {"standardise": "train"}, None),
        ("a", lambda n: f"0{n % 7}", {}, None),
        ("a", lambda n: f"{n % 9}e-30", {}, None),
        ("a", lambda n: f"{5 + n % 9 * 1e-5}", {}, None),
        # Everybody's mean would be negative.
        ("a", lambda n: f"{20 + n if n % 4 else -999}", {}, "'a' is -999 in 15 rows ~ missing"),
        ("y", lambda n: f"{n}e-50", {"task": "regression"}, "'y' has numbers ~ single precision"),
        ("y", lambda n: "p", {}, "all samples have the class 'p'"),
        ("y", lambda n: ["no", "yes", "unknown"][n % 3], {}, "'y' has 'unknown' in 20 rows"),
        ("y", lambda n: ["no", "yes", "-"][n % 3], {}, "'y' has '-' in 20 rows"),
        ("y", lambda n: ["no", "yes", "#DIV/0!"][n % 3], {}, "'y' has '#DIV/0!' in 20 rows"),
        ("site", lambda n: ["Bonn", "bonn", "Ulm"][n % 3], {}, "'site' has 'Bonn' and 'bonn'"),
    ],
)  # fmt: skip
def test_what_is_doubtful_is_warned_of(write, column, cell, options, doubt):
    # Each site has all classes.
    usual = {
        "a": lambda n: n % 5,
        "site": lambda n: f"S{n // 6 % 3}",
        "y": lambda n: "pq"[n // 2 % 2],
    }
    cells = {**usual, column: cell}.values()
    rows = "".join(f"{','.join(str(make(n)) for make in cells)}\n" for n in range(60))
    data = TabularData(write(f"a,site,y\n{rows}"), "y", client_column="site", **options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        data.setup()
    assert [says(one, str(doubt)) for one in data.reading.doubts] == [True] * bool(doubt)
    assert [says(str(one.message), str(doubt)) for one in told] == [True] * bool(doubt)


def test_a_table_is_read_to_the_bit(write):
    """As Python reads numbers: pandas' own parser is off by a bit in one of some hundred."""
    numbers = torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    file = write("a\n" + "".join(f"{v!r}\n" for v in numbers.tolist()))
    assert read_table(file).numbers("a").tolist() == numbers.tolist()


def test_a_run_keeps_the_report_and_its_header_has_a_line(write, tmp_path):
    rows = "".join(f"{n % 7},S{n % 2},{'pq'[n // 2 % 2]}\n" for n in range(24))
    data = TabularData(write(f"a,site,y\n{rows}"), "y", client_column="site")
    run = fit(FedAvg(mlp(2, dim=1)), data, rounds=1, default_root_dir=str(tmp_path))
    assert run.header["read"].startswith("24 rows; 3 columns (1 numbers, 2 category)")
    kept = json.loads((run.folder / "reading.json").read_text())
    assert kept["clients"] == {"S0": [6, 6], "S1": [6, 6]}


@pytest.mark.parametrize("kind", [TabularData, TimeSeries])
def test_a_partition_that_mixes_the_named_clients_is_refused(kind):
    """As one that is left of a configuration over which other data are laid."""
    options = {"target": "y", "client_column": "site", "num_clients": 3}
    options |= {"past": 2} if kind is TimeSeries else {}
    with pytest.raises(ValueError, match=parts("client_column: site ~ IID mixes ~ ByDomain")):
        kind(path="t.csv", partition=IID(), **options)
    kind(path="t.csv", partition=ByDomain(within=Shards(1)), **options)


@pytest.mark.parametrize(
    ("name", "cells", "told"),
    [
        ("patient", [f"P{n // 3}" for n in range(90)], True),  # an input, too
        ("ward", [f"P{n // 3}" for n in range(90)], False),
        ("patient", [n // 3 for n in range(90)], True),
        ("volume_id", [n // 3 for n in range(90)], True),
        ("volume", [n // 3 for n in range(90)], False),  # a quantity
    ],
)
def test_patients_on_both_sides_are_told_if_they_are_inputs(write, name, cells, told):
    rows = "".join(f"{n * 7 % 30},{cell},{'ny'[n % 2]}\n" for n, cell in enumerate(cells))
    categories = [name] if isinstance(cells[0], str) else []
    data = TabularData(write(f"a,{name},ill\n{rows}"), "ill", 1, IID(), categories=categories)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data.setup()
    lines = [line for line in data.reading.doubts if "for training and for testing" in line]
    assert [says(line, f"of 30 values of {name!r}") for line in lines] == [True] * told
