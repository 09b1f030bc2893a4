"""Series of several clients in a long table, sound and damaged."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from datamodules import TimeSeries
from tests.datamodules.corpus.kinds import Case
from tests.datamodules.corpus.names import INVISIBLE, TWINS

Frame = pd.DataFrame
CLIENTS = ("Alone", "Bravo", "Candle")


def loads(rng: np.random.Generator, stamps: pd.DatetimeIndex, form: str) -> Frame:
    """Return a row for each client and time."""
    parts = [
        Frame(
            {
                "site": name,
                "when": stamps.strftime(form),
                "load": np.round(50 + 10 * rng.normal(size=len(stamps)), 3),
                "warm": np.round(15 + 5 * rng.normal(size=len(stamps)), 2),
            }
        )
        for name in CLIENTS
    ]
    return pd.concat(parts, ignore_index=True)


def series(
    damage: str,
    words: str,
    change: Callable[[Frame, np.random.Generator], Frame | bytes | None],
    stamps: str | pd.DatetimeIndex = "D",
    form: str = "%Y-%m-%d",
    count: int = 120,
    **options: Any,
) -> Case:
    """Return a case of a table of series that is changed."""
    times = (
        pd.date_range("2026-01-05", periods=count, freq=stamps)
        if isinstance(stamps, str)
        else stamps
    )

    def make(folder: Path, rng: np.random.Generator) -> Any:
        frame = loads(rng, times, form)
        changed = change(frame, rng)
        file = folder / "s.csv"
        if isinstance(changed, bytes):
            file.write_bytes(changed)
        else:
            (frame if changed is None else changed).to_csv(file, index=False)
        usual = {"target": "load", "client_column": "site", "past": 3, "time_column": "when"}
        return TimeSeries(str(file), **{**usual, **options})

    return Case("series", damage, make, words)


def none(frame: Frame, rng: np.random.Generator) -> None:
    return None


def without(start: int, end: int, client: str = CLIENTS[0]) -> Callable[[Frame, Any], Frame]:
    """Return a change that removes rows of a client."""

    def change(frame: Frame, rng: np.random.Generator) -> Frame:
        rows = frame.index[frame.site == client][start:end]
        return frame.drop(rows)

    return change


def put(column: str, value: Any, count: int = 4) -> Callable[[Frame, np.random.Generator], Frame]:
    def change(frame: Frame, rng: np.random.Generator) -> Frame:
        frame[column] = frame[column].astype(object)
        frame.loc[rng.choice(frame.index, count, replace=False), column] = value
        return frame

    return change


def twin(change: Callable[[str], str]) -> Callable[[Frame, Any], Frame]:
    def of(frame: Frame, rng: np.random.Generator) -> Frame:
        rows = frame.index[frame.site == CLIENTS[1]]
        frame.loc[rows[len(rows) // 2 :], "site"] = change(CLIENTS[1])
        return frame

    return of


def unit(frame: Frame, rng: np.random.Generator) -> Frame:
    frame.loc[frame.site == CLIENTS[2], "load"] *= 1000
    return frame


def same(frame: Frame, rng: np.random.Generator) -> Frame:
    first = frame.loc[frame.site == CLIENTS[0], "load"].to_numpy()
    frame.loc[frame.site == CLIENTS[2], "load"] = first
    return frame


def shuffled(frame: Frame, rng: np.random.Generator) -> Frame:
    return frame.sample(frac=1, random_state=int(rng.integers(1000)))


def stuck(frame: Frame, rng: np.random.Generator) -> Frame:
    frame["load"] = 7
    return frame


BUSINESS = pd.bdate_range("2026-01-05", periods=160)
HOURS = pd.date_range("2026-10-20", periods=24 * 12, freq="h", tz="Europe/Berlin")
SPRING = pd.date_range("2026-03-20", periods=24 * 20, freq="h", tz="Europe/Berlin")
NIGHTS = pd.date_range("2026-01-05", periods=24 * 20, freq="h")
NIGHTS = NIGHTS[(NIGHTS.hour >= 8) & (NIGHTS.hour < 18)]
HOLIDAYS = BUSINESS.delete([20, 61, 62])
SECONDS = np.random.default_rng(0).exponential(3600, 200).cumsum().astype("timedelta64[s]")
UNEQUAL = pd.DatetimeIndex(np.datetime64("2026-01-05") + SECONDS)
CLOCK = "%Y-%m-%d %H:%M"
DAMAGED = [
    series("business days", "calendar: business", none, BUSINESS),
    series("business days and a long past", "calendar: business", none, BUSINESS, past=7),
    series("holidays", "days off", none, HOLIDAYS, calendar="business"),
    series("week ends under business", "week end", none, calendar="business"),
    series("business without dates", "dates", none, form="%j", calendar="business"),
    series("nights", "nights", none, NIGHTS, form=CLOCK),
    series("a missing day", "missing rows", without(40, 41)),
    series("a missing month", "missing rows", without(20, 50)),
    series("a missing hour", "missing rows", without(40, 41), "h", CLOCK),
    series("a client without a window", "no .* rows without a gap", without(2, 120)),
    series("unequal steps", "unequal", none, UNEQUAL, form="%Y-%m-%d %H:%M:%S"),
    series("numbers that are dates", "date_format", none, form="%y%m%d"),
    series("an hour that repeats", "clock repeats", none, HOURS, form=CLOCK),
    series("an hour that is skipped", "summer time", none, SPRING, form=CLOCK),
    series("rows twice", "drop_duplicates", lambda f, rng: pd.concat([f, f.iloc[5:9]])),
    series(
        "two series of a client",
        "client_column",
        lambda f, rng: pd.concat([f, f.assign(load=1.5 * f["load"])]),
    ),
    series("days in another form", "date_format", none, form="%d/%m/%Y"),
    series(
        "a time that is far",
        "far from all",
        lambda f, rng: f.replace({"when": {"2026-01-05": "1970-01-01"}}),
    ),
    series(
        "a year in the future",
        "far from all|missing rows",
        lambda f, rng: f.replace({"when": {"2026-05-04": "2062-05-04"}}),
    ),
    series("rows in disorder without a time", "time_column: when", shuffled, time_column=None),
    series("a value as -999", "missing_values", put("load", -999)),
    series("a value as 9999", "missing_values", put("load", 9999)),
    series("a feature as -999", "missing_values", put("warm", -999), features=["warm"]),
    series("a word for a value", "not a finite number", put("load", "unknown")),
    series("an empty value", "missing: drop", put("load", None)),
    series("a decimal sign lost", "decimal sign", put("load", 51234, 1)),
    series("another unit at a client", "unit", unit),
    series("a client copied", "same values", same),
    series("a target that never moves", "all rows", stuck),
    series(
        "a client in a few rows",
        "no .* rows without",
        lambda f, rng: pd.concat(
            [f, Frame({"site": "Delta", "when": ["2026-01-05"], "load": [3.0], "warm": [4.0]})]
        ),
    ),
    series("many missing values", "missing", put("load", None, 100), missing="drop"),
    series(
        "UTF-16 without a mark", "iconv", lambda f, rng: f.to_csv(index=False).encode("utf-16-le")
    ),
    series(
        "gzip cut off", "damaged", lambda f, rng: gzip.compress(f.to_csv(index=False).encode())[:-9]
    ),
    series("semicolons", "separator: ';'", lambda f, rng: f.to_csv(index=False, sep=";").encode()),
    series(
        "JSON lines", "read_json", lambda f, rng: f.to_json(orient="records", lines=True).encode()
    ),
    series("a title", "above", lambda f, rng: b"Loads\n" + f.to_csv(index=False).encode()),
    series(
        "a quote that swallows rows",
        r"line \d+.*quote",
        lambda f, rng: (
            f.assign(note="ok")
            .to_csv(index=False)
            .replace(",ok\n", ',"ok\n', 10)
            .replace(',"ok\n', ",ok\n", 9)
            .replace("ok\n", 'ok"\n', 60)
            .replace('ok"\n', "ok\n", 59)
            .encode()
        ),
    ),
    series(
        "the header again",
        "header",
        lambda f, rng: (f.iloc[:99].to_csv(index=False) + f.iloc[99:].to_csv(index=False)).encode(),
    ),
    *(
        series(f"{how} in a client", words, twin(change))
        for how, change, words in (*TWINS, *INVISIBLE)
    ),
]

SOUND = [
    series("days", "", none),
    series("business days by their calendar", "", none, BUSINESS, calendar="business"),
    series("nights by rows", "", none, NIGHTS, form=CLOCK, calendar="rows"),
    series("hours", "", none, "h", CLOCK),
    series("months", "", none, "MS", "%Y-%m", count=60),
    series("years", "", none, "YS", "%Y", count=40),
    series("minutes as digits", "", none, "min", "%Y%m%d%H%M"),
    series("in any order", "", shuffled),
    series("without a time", "", none, time_column=None),
    series("with a feature", "", none, features=["warm"]),
    series("some missing, dropped", "", put("load", None, 3), missing="drop"),
    series("strides", "", none, stride=4, horizon=2),
    series("another form that is given", "", none, form="%d.%m.%Y", date_format="%d.%m.%Y"),
    series("hours in UTC", "", none, SPRING.tz_convert("UTC"), form="%Y-%m-%dT%H:%MZ"),
    series("clients of other lengths", "", without(60, 120)),
]
