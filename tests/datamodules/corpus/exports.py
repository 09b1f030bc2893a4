"""What spreadsheets, loggers and downloads make of tables, series and texts."""

from __future__ import annotations

import datetime as dt
import shutil

import numpy as np
import pandas as pd
import pytest

from datamodules import TabularData
from tests.datamodules.corpus.kinds import collectors
from tests.datamodules.corpus.made import (
    HEAD,
    SH,
    SITES,
    arff,
    bard,
    col,
    hd,
    heart,
    rows,
    series,
    tab,
    text,
    ts,
    wisdm,
)

DAMAGED, SOUND, damaged, sound = collectors()


@damaged("table", "excel serial dates as a feature", r"serial|spreadsheet")
def tables_excel_serial_dates_as_a_feature(home, rng):
    r, h = col(rows(rng), rng.integers(45000, 45900, 160), "admission_date")
    return tab(home, text(r, h))


@damaged("table", "excel serial date-times as a feature", r"serial|spreadsheet")
def tables_excel_serial_date_times_as_a_feature(home, rng):
    r, h = col(rows(rng), np.round(rng.uniform(45000, 45900, 160), 6), "visited at")
    return tab(home, text(r, h))


@damaged("table", "header of two rows, merged cells", r"title|header|names")
def tables_header_of_two_rows_merged_cells(home, rng):
    return tab(home, "Patient,,,,Result\n" + text(rows(rng)))


@damaged("table", "trailing empty columns", r"empty|no name.*(remove|last)")
def tables_trailing_empty_columns(home, rng):
    return tab(home, "\n".join(line + ",,," for line in text(rows(rng)).splitlines()) + "\n")


@damaged("table", "trailing empty rows of separators", r"line 16\d|empty|missing")
def tables_trailing_empty_rows_of_separators(home, rng):
    return tab(home, text(rows(rng)) + ",,,,\n" * 5)


@damaged("table", "a copied column, as pandas names it", r"age\.1")
def tables_a_copied_column_as_pandas_names_it(home, rng):
    r = rows(rng)
    r, h = col(r, [x[1] for x in r], "age.1")
    return tab(home, text(r, h))


@damaged("table", "boolean of a locale beside TRUE", r"WAHR")
def tables_boolean_of_a_locale_beside_true(home, rng):
    r, h = col(
        rows(rng),
        [["TRUE", "FALSE", "WAHR", "FALSCH"][int(i)] for i in rng.integers(0, 4, 160)],
        "smoker",
    )
    return tab(home, text(r, h))


@damaged("table", "age groups turned into dates", r"date|spreadsheet")
def tables_age_groups_turned_into_dates(home, rng):
    r, h = col(
        rows(rng),
        [["0-4", "9-May", "14-Oct", "15-19", "20+"][int(i)] for i in rng.integers(0, 5, 160)],
        "group",
    )
    return tab(home, text(r, h))


@damaged("table", "genes turned into dates", r"date|spreadsheet")
def tables_genes_turned_into_dates(home, rng):
    r, h = col(
        rows(rng),
        [["TP53", "BRCA1", "1-Mar", "2-Sep", "EGFR"][int(i)] for i in rng.integers(0, 5, 160)],
        "gene",
    )
    return tab(home, text(r, h))


@damaged("table", "iso dates among class names", r"date|spreadsheet")
def tables_iso_dates_among_class_names(home, rng):
    r = rows(rng)
    for i, x in enumerate(r):
        x[-1] = ["1/2", "stage 3", "2026-01-02"][i % 3]
    return tab(home, text(r))


@damaged("table", "identifiers in scientific notation as clients", r"E\+|scientific|shorten")
def tables_identifiers_in_scientific_notation_as_clients(home, rng):
    r = rows(rng)
    for i, x in enumerate(r):
        x[0] = ["4.9E+12", "4.91E+12", "3.2E+12"][i % 3]
    return tab(home, text(r))


@damaged("table", "mixed encodings in one file", r"mix|both|UTF-8")
def tables_mixed_encodings_in_one_file(home, rng):
    ls = text(rows(rng)).splitlines()
    b = b"\n".join(
        (line.encode("cp1252" if 60 < i < 100 else "utf-8") for i, line in enumerate(ls))
    )
    return tab(home, b)


@damaged("table", "second file appended with its BOM and header", r"header")
def tables_second_file_appended_with_its_bom_and_header(home, rng):
    return tab(home, text(rows(rng)) + "\ufeff" + text(rows(rng)))


@damaged("table", "trailing minus", r"minus|sign")
def tables_trailing_minus(home, rng):
    r, h = col(
        rows(rng),
        [f"{abs(v):.1f}-" if v < 0 else f"{v:.1f}" for v in rng.normal(0, 5, 160)],
        "balance",
    )
    return tab(home, text(r, h))


@damaged("table", "brackets for negatives", r"amount|plain|bracket")
def tables_brackets_for_negatives(home, rng):
    r, h = col(
        rows(rng),
        [f"({abs(v):.1f})" if v < 0 else f"{v:.1f}" for v in rng.normal(0, 5, 160)],
        "balance",
    )
    return tab(home, text(r, h))


@damaged("table", "blood pressure as two numbers in a cell", r"two numbers|several numbers|/")
def tables_blood_pressure_as_two_numbers_in_a_cell(home, rng):
    r, h = col(rows(rng), [f"{int(a)}/80" for a in rng.choice([110, 120, 130, 140], 160)], "rr")
    return tab(home, text(r, h))


@damaged("table", "hashes of a too narrow column", r"####")
def tables_hashes_of_a_too_narrow_column(home, rng):
    v = [str(x) for x in rng.choice(["low", "mid", "high"], 160)]
    v[9] = v[30] = "########"
    r, h = col(rows(rng), v, "dose")
    return tab(home, text(r, h))


@damaged("table", "hashes among numbers", r"####|missing_values")
def tables_hashes_among_numbers(home, rng):
    v = [f"{x:.2f}" for x in rng.normal(50, 4, 160)]
    v[9] = v[30] = "########"
    r, h = col(rows(rng), v, "dose")
    return tab(home, text(r, h))


@damaged("table", "error values among numbers", r"missing_values")
def tables_error_values_among_numbers(home, rng):
    v = [f"{x:.2f}" for x in rng.normal(50, 4, 160)]
    v[9] = v[30] = "#DIV/0!"
    r, h = col(rows(rng), v, "ratio")
    return tab(home, text(r, h))


@damaged("table", "below detection limit", r"bound|half")
def tables_below_detection_limit(home, rng):
    v = [f"{x:.2f}" for x in rng.normal(50, 4, 160)]
    v[9] = v[30] = "<0.5"
    r, h = col(rows(rng), v, "crp")
    return tab(home, text(r, h))


@damaged(
    "table", "merged cells: the client stands in the first row of each block", r"fill|merged|ffill"
)
def tables_merged_cells_the_client_stands_in_the_first_row_of_ea(home, rng):
    r = sorted(rows(rng))
    for i in range(159, 0, -1):
        if r[i][0] == r[i - 1][0]:
            r[i][0] = ""
    return tab(home, text(r))


@damaged("table", "merged cells, rows dropped", r"fill|merged|ffill")
def tables_merged_cells_rows_dropped(home, rng):
    r = sorted(rows(rng))
    for i in range(159, 0, -1):
        if i % 10:
            r[i][0] = ""
    return tab(home, text(r), missing="drop")


@damaged("table", "metres among centimetres", r"unit|around")
def tables_metres_among_centimetres(home, rng):
    v = [f"{x:.0f}" if i % 3 else f"{x / 100:.2f}" for i, x in enumerate(rng.normal(172, 9, 160))]
    r, h = col(rows(rng), v, "height")
    return tab(home, text(r, h))


@damaged("table", "code 9 for unknown among 1 to 3", r"\b9\b.*missing_values")
def tables_code_9_for_unknown_among_1_to_3(home, rng):
    v = rng.integers(1, 4, 160)
    v[::11] = 9
    r, h = col(rows(rng), v, "stage")
    return tab(home, text(r, h))


@damaged("table", "a table of blanks", r"blank|spaces|separator")
def tables_a_table_of_blanks(home, rng):
    return tab(
        home, "\n".join("   ".join(line.split(",")) for line in text(rows(rng)).splitlines()) + "\n"
    )


@damaged("table", "markdown", r"\||separator")
def tables_markdown(home, rng):
    ls = text(rows(rng)).splitlines()
    ls = ["| " + " | ".join(line.split(",")) + " |" for line in ls]
    ls.insert(1, "|---|---|---|---|---|")
    return tab(home, "\n".join(ls) + "\n")


@damaged("table", "html called xls", r"read_html|HTML")
def tables_html_called_xls(home, _):
    return tab(home, "<html><body><table><tr><td>site</td></tr></table></body></html>", "t.xls")


@damaged("table", "html entities in numbers", r"nbsp|web page|write")
def tables_html_entities_in_numbers(home, rng):
    v = [f"{x:.2f}" for x in rng.normal(50, 4, 160)]
    v[9] = "&nbsp;51.20"
    r, h = col(rows(rng), v, "dose")
    return tab(home, text(r, h))


@damaged("table", "seconds and milliseconds in the time column", r"millisecond|1,?000|unit")
def tables_seconds_and_milliseconds_in_the_time_column(home, rng):
    v = 1700000000.0 + rng.integers(0, 10**7, 160)
    v = [int(x * 1000) if i % 2 else int(x) for i, x in enumerate(v)]
    r, h = col(rows(rng), v, "when")
    return tab(home, text(r, h), time_column="when", test_protocol="future")


@damaged("table", "two clients are one with a suffix of an export", r"alike|same")
def tables_two_clients_are_one_with_a_suffix_of_an_export(home, rng):
    r = rows(rng)
    for i, x in enumerate(r):
        x[0] = x[0] + (" " if i % 8 == 0 else "")
    r[3][0] = "trier"
    return tab(home, text(r))


@damaged("table", "a column without a value", r"empty|no value|missing in")
def tables_a_column_without_a_value(home, rng):
    r, h = col(rows(rng), [""] * 160, "note")
    return tab(home, text(r, h))


@damaged("table", "excel, formulas without values", r"formula|empty")
def tables_excel_formulas_without_values(home, rng):
    openpyxl = pytest.importorskip("openpyxl")
    b = openpyxl.Workbook()
    s = b.active
    r = rows(rng)
    s.append([*HEAD[:-1], "twice", "outcome"])
    for i, x in enumerate(r, 2):
        s.append([*x[:-1], f"=B{i}*2", x[-1]])
    b.save(home / "x.xlsx")
    return TabularData(str(home / "x.xlsx"), "outcome", client_column="site")


@damaged("table", "excel, dates as serial numbers", r"serial|spreadsheet")
def tables_excel_dates_as_serial_numbers(home, rng):
    openpyxl = pytest.importorskip("openpyxl")
    b = openpyxl.Workbook()
    s = b.active
    r = rows(rng)
    s.append([*HEAD[:-1], "birth", "outcome"])
    for x in r:
        s.append([*x[:-1], int(rng.integers(15000, 36000)), x[-1]])
    b.save(home / "x.xlsx")
    return TabularData(str(home / "x.xlsx"), "outcome", client_column="site")


@damaged("table", "excel, total in the last row", r"sum|total|Total|remove|missing")
def tables_excel_total_in_the_last_row(home, rng):
    openpyxl = pytest.importorskip("openpyxl")
    b = openpyxl.Workbook()
    s = b.active
    r = rows(rng)
    s.append(HEAD)
    for x in r:
        s.append(x)
    s.append(["Total", sum(x[1] for x in r), None, None, None])
    b.save(home / "x.xlsx")
    return TabularData(str(home / "x.xlsx"), "outcome", client_column="site")


@damaged("table", "parquet with a column of lists", r"list")
def tables_parquet_with_a_column_of_lists(home, rng):
    d = pd.DataFrame(rows(rng), columns=HEAD)
    pytest.importorskip("pyarrow")
    d["v"] = [[1, 2]] * len(d)
    d.to_parquet(home / "p.parquet")
    return TabularData(str(home / "p.parquet"), "outcome", client_column="site")


@damaged("table", "umlauts written out at one place", r"alike|same")
def tables_umlauts_written_out_at_one_place(home, rng):
    r = rows(rng)
    for i, x in enumerate(r):
        if x[0] == "Köln" and i % 3 == 0:
            x[0] = "Koeln"
    return tab(home, text(r))


@damaged("table", "class names with a trailing code", r"alike|same")
def tables_class_names_with_a_trailing_code(home, rng):
    r = rows(rng)
    for i, x in enumerate(r):
        x[-1] = {"yes": "yes", "no": "no"}[x[-1]] + (";" if i % 9 == 0 else "")
    return tab(home, text(r))


@damaged("table", "weekday of the locale", r"alike|same|mean")
def tables_weekday_of_the_locale(home, rng):
    r, h = col(
        rows(rng), [["ja", "nein", "yes", "no"][int(i)] for i in rng.integers(0, 4, 160)], "smoker"
    )
    return tab(home, text(r, h))


@damaged("table", "percent in some rows only", r"%")
def tables_percent_in_some_rows_only(home, rng):
    v = [f"{x:.0f}%" if i % 2 else f"{x / 100:.2f}" for i, x in enumerate(rng.uniform(5, 95, 160))]
    r, h = col(rows(rng), v, "share")
    return tab(home, text(r, h))


@damaged("table", "shares and percents at different rows", r"unit|around|100")
def tables_shares_and_percents_at_different_rows(home, rng):
    v = [f"{x:.0f}" if i % 3 else f"{x / 100:.2f}" for i, x in enumerate(rng.uniform(55, 98, 160))]
    r, h = col(rows(rng), v, "spo2")
    return tab(home, text(r, h))


@damaged("table", "day and month swapped by a spreadsheet in the time column", r"day|format|date")
def tables_day_and_month_swapped_by_a_spreadsheet_in_the_time_co(home, rng):
    d0 = dt.date(2025, 1, 1)
    v = []
    for i in range(160):
        d = d0 + dt.timedelta(i * 2)
        v.append(f"{d.year}-{d.day:02}-{d.month:02}" if d.day <= 12 else str(d))
    r, h = col(rows(rng), v, "day")
    return tab(home, text(r, h), time_column="day", test_protocol="future")


@damaged("table", "cut in the midst by a failed download", r"line|last|cut")
def tables_cut_in_the_midst_by_a_failed_download(home, rng):
    s = text(rows(rng)).replace(",yes", ",yes indeed").splitlines()
    k = next(i for i in range(90, 140) if s[i].endswith("indeed"))
    return tab(home, "\n".join(s[: k + 1])[:-4])


@damaged("table", "target numbers with thousands separators", r"thousands")
def tables_target_numbers_with_thousands_separators(home, rng):
    r = rows(rng)
    for x in r:
        x[-1] = f"{int(rng.integers(900, 9000)):,}"
    return tab(home, text(r), task="regression")


@damaged("table", "client is the row's own id", r"single sample|one")
def tables_client_is_the_row_s_own_id(home, rng):
    r, h = col(rows(rng), [f"P{i:04}" for i in range(160)], "pid")
    return tab(home, text(r, h), client_column="pid")


@damaged("table", "a windows path of a network share", r"no file|there is no|exist")
def tables_a_windows_path_of_a_network_share(home, _):
    return TabularData("C:\\data\\t.csv", "outcome", client_column="site")


@damaged("table", "two tables one below the other", r"line|values for")
def tables_two_tables_one_below_the_other(home, rng):
    return tab(home, text(rows(rng)) + "\n\nsite,beds,\nAachen,12,\n")


@damaged("table", "glucose of one hospital in another unit", r"unit")
def tables_glucose_of_one_hospital_in_another_unit(home, rng):
    r = rows(rng)
    v = rng.normal(95, 12, 160)
    v = [round(float(x / 18.02 if q[0] == "Bonn" else x), 2) for x, q in zip(v, r, strict=False)]
    r, h = col(r, v, "glucose")
    return tab(home, text(r, h))


@damaged("table", "fever in Fahrenheit at one hospital", r"unit")
def tables_fever_in_fahrenheit_at_one_hospital(home, rng):
    r = rows(rng)
    v = rng.normal(37.4, 0.8, 160)
    v = [round(float(x * 1.8 + 32 if q[0] == "Bonn" else x), 1) for x, q in zip(v, r, strict=False)]
    r, h = col(r, v, "temperature")
    return tab(home, text(r, h))


@damaged("table", "about a number", r"bound|write")
def tables_about_a_number(home, rng):
    v = [f"{x:.2f}" for x in rng.normal(50, 4, 160)]
    v[9] = "ca. 50"
    v[30] = "49?"
    r, h = col(rows(rng), v, "dose")
    return tab(home, text(r, h))


@sound("table")
def sound_table_usual(home, rng):
    return tab(home, text(rows(rng)))


@sound("table")
def sound_table_year_of_birth(home, rng):
    r, h = col(rows(rng), rng.integers(1930, 2005, 160), "birth_year")
    return tab(home, text(r, h))


@sound("table")
def sound_table_prices_around_45000(home, rng):
    r, h = col(rows(rng), rng.integers(21000, 68000, 160), "income")
    return tab(home, text(r, h))


@sound("table")
def sound_table_date_groups_as_words(home, rng):
    r, h = col(
        rows(rng),
        [["18-25", "26-40", "41-60", "60+"][int(i)] for i in rng.integers(0, 4, 160)],
        "group",
    )
    return tab(home, text(r, h))


@sound("table")
def sound_table_months_as_categories(home, rng):
    r, h = col(
        rows(rng), [["Jan", "Feb", "Mar", "Apr"][int(i)] for i in rng.integers(0, 4, 160)], "month"
    )
    return tab(home, text(r, h))


@sound("table")
def sound_table_skewed_counts_with_zeros(home, rng):
    r, h = col(rows(rng), np.round(np.exp(rng.normal(3, 1.5, 160)), 1), "dose")
    return tab(home, text(r, h))


@sound("table")
def sound_table_children_up_to_nine(home, rng):
    v = rng.poisson(1.4, 160)
    v[5] = 9
    r, h = col(rows(rng), v, "children")
    return tab(home, text(r, h))


@sound("table")
def sound_table_two_features_that_agree_mostly(home, rng):
    r = rows(rng)
    r, h = col(r, [x[1] + int(rng.integers(0, 2)) for x in r], "age at visit")
    return tab(home, text(r, h))


@sound("table")
def sound_table_blood_groups_and_plus_minus(home, rng):
    r, h = col(
        rows(rng), [["A+", "A-", "B+", "0-"][int(i)] for i in rng.integers(0, 4, 160)], "blood"
    )
    return tab(home, text(r, h))


@sound("table")
def sound_table_fractions_of_a_stage(home, rng):
    r, h = col(
        rows(rng), [["I", "II", "II/III", "IV"][int(i)] for i in rng.integers(0, 4, 160)], "stage"
    )
    return tab(home, text(r, h))


@sound("table")
def sound_table_crlf_bom_quoted_newlines_in_an_unused_column(home, rng):
    r, h = col(
        rows(rng), [f"seen\r\ntwice, {i}" if i % 7 == 0 else "ok" for i in range(160)], "note"
    )
    return tab(home, "\ufeff" + text(r, h, end="\r\n"), features=["age", "bmi", "sex"])


@sound("table")
def sound_table_line_ends_mixed(home, rng):
    ls = text(rows(rng)).splitlines()
    return tab(home, "".join((line + ("\r\n" if i % 3 else "\n") for i, line in enumerate(ls))))


@sound("table")
def sound_table_unix_times(home, rng):
    r, h = col(rows(rng), np.sort(1700000000 + rng.integers(0, 10**7, 160)), "when")
    return tab(home, text(r, h), time_column="when", test_protocol="future")


@sound("table")
def sound_table_dates_sorted_by_site(home, rng):
    r = sorted(rows(rng))
    r, h = col(
        r,
        [str(dt.date(2025, 1, 1) + dt.timedelta(int(k))) for k in rng.integers(0, 300, 160)],
        "day",
    )
    return tab(home, text(r, h), time_column="day", test_protocol="future")


@sound("table")
def sound_table_likert_1_to_9(home, rng):
    r, h = col(rows(rng), rng.integers(1, 10, 160), "score")
    return tab(home, text(r, h))


@sound("table")
def sound_table_stores_of_different_size(home, rng):
    r = rows(rng)
    k = dict(zip(SITES, (1, 3, 11, 60), strict=False))
    r, h = col(r, [round(float(k[x[0]] * rng.normal(100, 10)), 1) for x in r], "sales")
    return tab(home, text(r, h))


@damaged("series", "unit changes midway at one client", r"unit|factor|times")
def series_unit_changes_midway_at_one_client(home, rng):
    r = series(rng)
    for x in r[60:120]:
        x[2] = round(x[2] * 1000, 3)
    return ts(home, r)


@damaged("series", "clients with different steps", r"step|hour|apart")
def series_clients_with_different_steps(home, rng):
    r = series(rng, clients=("north", "south")) + series(rng, clients=("west",), step="h")
    return ts(home, r)


@damaged("series", "zeros filled at the end", r"\b0\b.*rows")
def series_zeros_filled_at_the_end(home, rng):
    r = series(rng, n=200)
    for k in range(3):
        for x in r[200 * k + 160 : 200 * (k + 1)]:
            x[2] = 0
    return ts(home, r)


@damaged("series", "interpolated over a long gap", r"interpolat|straight|line")
def series_interpolated_over_a_long_gap(home, rng):
    r = series(rng)
    a, b = (r[40][2], r[90][2])
    for i in range(41, 90):
        r[i][2] = round(a + (b - a) * (i - 40) / 50, 6)
    return ts(home, r)


@damaged("series", "day and month swapped", r"day|month|date_format")
def series_day_and_month_swapped(home, rng):
    r = series(rng, n=200)
    for x in r:
        y, m, d = x[1].split("-")
        if int(d) <= 12:
            x[1] = f"{y}-{d}-{m}"
    return ts(home, r)


@damaged("series", "serial days of a spreadsheet, business days", r"serial|spreadsheet|date")
def series_serial_days_of_a_spreadsheet_business_days(home, rng):
    r = []
    for c in ("n", "s"):
        for a in pd.bdate_range("2025-01-01", periods=120):
            r.append([c, (a - pd.Timestamp("1899-12-30")).days, round(float(rng.normal(50, 3)), 2)])
    return ts(home, r)


@damaged("series", "time zones mixed", r"zone")
def series_time_zones_mixed(home, rng):
    r = series(rng, step="h")
    for i, x in enumerate(r):
        x[1] = x[1].replace(" ", "T") + ("+01:00" if i % 2 else "")
    return ts(home, r)


@damaged("series", "one client constant", r"(north|south|west).*(rows|constant|still)")
def series_one_client_constant(home, rng):
    r = series(rng)
    for x in r[120:240]:
        x[2] = 12.5
    return ts(home, r)


@damaged("series", "one client much shorter", r"no .*rows|left out|have no")
def series_one_client_much_shorter(home, rng):
    r = series(rng)
    return ts(home, r[: 240 + 4])


@damaged("series", "runs of missing", r"missing")
def series_runs_of_missing(home, rng):
    r = series(rng)
    for x in r[30:100]:
        x[2] = ""
    return ts(home, r, missing="drop")


@damaged("series", "stamps repeated with other values", r"two rows")
def series_stamps_repeated_with_other_values(home, rng):
    r = series(rng)
    return ts(home, [*r, [r[5][0], r[5][1], 1.5]])


@damaged("series", "seconds lost in the export", r"two rows|hour")
def series_seconds_lost_in_the_export(home, rng):
    r = series(rng, step="min")
    for x in r:
        x[1] = x[1][:13]
    return ts(home, r)


@damaged("series", "reversed, without time column", r"time_column")
def series_reversed_without_time_column(home, rng):
    return ts(home, series(rng)[::-1], time_column=None)


@damaged("series", "the same series at two clients", r"same values")
def series_the_same_series_at_two_clients(home, rng):
    r = series(rng)
    for i in range(120):
        r[120 + i][2] = r[i][2]
    return ts(home, r)


@damaged("series", "meter reset to zero", r"reset|falls|counter|0")
def series_meter_reset_to_zero(home, rng):
    r = series(rng)
    for k in range(3):
        v = np.cumsum(rng.uniform(1, 5, 120)) + 1000
        for i in range(120):
            r[120 * k + i][2] = round(float(v[i] - (v[69] if i >= 70 else 0)), 2)
    return ts(home, r)


@damaged("series", "sentinel of a logger", r"-999|missing_values")
def series_sentinel_of_a_logger(home, rng):
    r = series(rng)
    for x in r[7::30]:
        x[2] = -999.9
    return ts(home, r)


@damaged("series", "a year mistyped", r"far|slip|lost")
def series_a_year_mistyped(home, rng):
    r = series(rng)
    r[119][1] = "2205-04-30"
    return ts(home, r)


@damaged("series", "decimal comma in one client", r"decimal")
def series_decimal_comma_in_one_client(home, rng):
    r = series(rng)
    for x in r[:120]:
        x[2] = str(x[2]).replace(".", ",")
    return ts(home, r)


@sound("series")
def sound_series_usual(home, rng):
    return ts(home, series(rng))


@sound("series")
def sound_series_growth_over_three_powers(home, rng):
    r = series(rng)
    for k in range(3):
        for i in range(120):
            r[120 * k + i][2] = round(float(np.exp(i / 17 + rng.normal(0, 0.1))), 3)
    return ts(home, r)


@sound("series")
def sound_series_rain_with_long_zeros(home, rng):
    r = series(rng)
    for x in r:
        x[2] = round(float(max(0, rng.normal(-1, 2))), 1)
    return ts(home, r)


@sound("series")
def sound_series_not_sorted(home, rng):
    r = series(rng)
    return ts(home, [r[int(i)] for i in rng.permutation(len(r))])


@sound("series")
def sound_series_hourly_utc(home, rng):
    r = series(rng, step="h")
    for x in r:
        x[1] = x[1].replace(" ", "T") + "Z"
    return ts(home, r)


@sound("series")
def sound_series_daily_steps_with_a_level_shift(home, rng):
    r = series(rng)
    for x in r[60:120]:
        x[2] = round(x[2] + 12, 3)
    return ts(home, r)


@sound("series")
def sound_series_whole_numbers_few(home, rng):
    r = series(rng)
    for x in r:
        x[2] = int(rng.poisson(3))
    return ts(home, r)


@damaged("series", "a column of the next value", r"target of 1 rows later")
def series_a_column_of_the_next_value(home, rng):
    r = series(rng)
    n = [[*x, r[i + 1][2] if i + 1 < len(r) else 0] for i, x in enumerate(r)]
    return ts(home, n, [*SH, "next"], features=["next"])


@sound("series")
def sound_series_a_lagged_feature(home, rng):
    r = series(rng)
    n = [[*x, r[i - 1][2] if i % 120 else x[2]] for i, x in enumerate(r)]
    return ts(home, n, [*SH, "previous"], features=["previous"])


@damaged("heart", "blanks instead of commas", r"separat|blank|space")
def heart_blanks_instead_of_commas(home, rng):
    return hd(
        heart(
            rng,
            home,
            lambda h, line: (
                "\n".join(" ".join(map(str, r)) for r in line).encode()
                if h == "hungarian"
                else line
            ),
        )
    )


@damaged("heart", "-9 for missing", r"-9")
def heart__9_for_missing(home, rng):

    def f(h, line):
        for r in line[::5]:
            r[3] = -9.0
        return line

    return hd(heart(rng, home, f))


@damaged("heart", "a hospital's file twice", r"content of another")
def heart_a_hospital_s_file_twice(home, rng):
    r = heart(rng, home)
    shutil.copy(r / "processed.hungarian.data", r / "processed.va.data")
    return hd(r)


@damaged("heart", "zero cholesterol", r"chol")
def heart_zero_cholesterol(home, rng):

    def f(h, line):
        if h == "switzerland":
            for r in line:
                r[4] = 0.0
        return line

    return hd(heart(rng, home, f))


@damaged("heart", "num beyond four", r"num|neither")
def heart_num_beyond_four(home, rng):

    def f(h, line):
        line[3][-1] = 7
        return line

    return hd(heart(rng, home, f))


@damaged("heart", "with a header", r"header|line 1|age")
def heart_with_a_header(home, rng):

    def f(h, line):
        return (
            [
                [
                    "age",
                    "sex",
                    "cp",
                    "trestbps",
                    "chol",
                    "fbs",
                    "restecg",
                    "thalach",
                    "exang",
                    "oldpeak",
                    "slope",
                    "ca",
                    "thal",
                    "num",
                ],
                *line,
            ]
            if h == "va"
            else line
        )

    return hd(heart(rng, home, f))


@damaged("heart", "a web page instead of a file", r"HTML")
def heart_a_web_page_instead_of_a_file(home, rng):
    return hd(
        heart(rng, home, lambda h, line: b"<!DOCTYPE html><html>404</html>" if h == "va" else line)
    )


@sound("heart")
def sound_heart_usual(home, rng):
    return hd(heart(rng, home))


@damaged("wisdm", "class in another case", r"alike|same")
def wisdm_class_in_another_case(home, rng):
    return wisdm(
        arff(
            rng,
            home,
            data=lambda rs: [[*r[:-1], r[-1].lower() if r[1] == 3 else r[-1]] for r in rs],
        )
    )


@damaged("wisdm", "window twice", r"content of another|twice")
def wisdm_window_twice(home, rng):
    return wisdm(arff(rng, home, data=lambda rs: rs + rs[:9]))


@damaged("wisdm", "cp1252 comment", r"UTF-8.*iconv")
def wisdm_cp1252_comment(home, rng):
    return wisdm(arff(rng, home, change=lambda s: "% Größe\n".encode("cp1252") + s.encode()))


@damaged("wisdm", "truncated", r"line|cut")
def wisdm_truncated(home, rng):
    def change(whole):
        # Within a line: of a file that is cut off between two, nothing tells how many there were.
        return whole[: whole.index("\n", len(whole) * 2 // 3) - int(rng.integers(1, 24))]

    return wisdm(arff(rng, home, change=change))


@sound("wisdm")
def sound_wisdm_usual(home, rng):
    return wisdm(arff(rng, home))


@sound("wisdm")
def sound_wisdm_crlf_and_comments(home, rng):
    return wisdm(arff(rng, home, change=lambda s: "% a comment\r\n" + s.replace("\n", "\r\n")))


@damaged("text", "cp1252", r"UTF-8.*iconv|iconv")
def text_cp1252(home, rng):
    return bard(rng, home, lambda s: s.replace("love", "lové"), "cp1252")


@damaged("text", "a role in two spellings", r"alike|same")
def text_a_role_in_two_spellings(home, rng):

    def f(s):
        parts = s.split("ROMEO:")
        return "ROMEO:".join(parts[:10]) + "Romeo:" + "Romeo:".join(parts[10:])

    return bard(rng, home, f)


@sound("text")
def sound_text_utf_16(home, rng):
    return bard(rng, home, enc="utf-16")


@sound("text")
def sound_text_usual(home, rng):
    return bard(rng, home)


@sound("text")
def sound_text_bom_and_crlf(home, rng):
    return bard(rng, home, lambda s: "\ufeff" + s.replace("\n", "\r\n"))
