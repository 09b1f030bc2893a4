"""Numbers of another size than their neighbours: slips of a sign, units that differ."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from datamodules.doubts.values import is_sentinel
from datamodules.record import Record, Values
from datamodules.targets import Floats, Ints

_FEW = 20
# Decades between the numbers in one unit and those in the other; at most this many of each side.
_GAP = 0.6
_WARMTH = re.compile(r"(?i)temp|fever|celsius|fahrenheit|(?<![a-z])t(air|max|min)?(?![a-z])")
# What is measured in two units, by its name, and their ratios.
_UNITS = tuple(
    (re.compile(rf"(?i){words}"), ratios)
    for words, ratios in (
        ("weight|mass|gewicht|poids|peso", (2.2046,)),
        ("height|length|size|waist|hip|gr(ö|oe)(ss|ß)e|taille|talla|altura", (2.54, 3.2808)),
        ("dist|speed|mile|km", (1.609,)),
        ("gluc|glyc|sugar|gluk", (18.02,)),
        ("chol|hdl|ldl", (38.67,)),
        ("creat|krea|crea", (88.4,)),
    )
)


def of_scales(record: Record) -> Iterator[str]:
    """Yield numbers that are far from others, or that differ from them by a unit."""
    clients, names = clients_of(record)
    for column in record.of("feature", "target", "time"):
        numbers = column.numbers[np.isfinite(column.numbers)]
        if column.kind != "numbers" or column.listed or len(numbers) < _FEW:
            continue
        if column.use != "time":
            yield from _far(column, numbers)
        mixed = [*_by_client(column, clients, names)] or [*_mixed(column, numbers)]
        yield from mixed
    times = record.times
    if times is not None and times.kind == "numbers" and not record.of("time"):
        yield from _mixed(
            Values(times.name, numbers=times.values, place=record.place), times.values
        )


def _far(column: Values, numbers: Floats) -> Iterator[str]:
    """Yield a few numbers that are a hundred times as large as nearly all others."""
    sizes = np.abs(column.numbers)
    usual = float(np.quantile(np.abs(numbers), 0.95))
    far = np.flatnonzero(sizes > 100 * usual)
    if usual <= 0 or not 0 < len(far) <= max(2, 0.02 * len(numbers)):
        return
    value = float(column.numbers[far[0]])
    if not is_sentinel(value):
        yield (
            f"{column.name!r} is {value:g} in {column.place(int(far[0]))}, and at most {usual:g} "
            "nearly everywhere: check its decimal sign and its unit"
        )


def _mixed(column: Values, numbers: Floats) -> Iterator[str]:
    """Yield numbers in two groups, the one a power of ten times the other, with nothing between."""
    if found := [*_shifted(column, numbers)]:
        yield from found
        return
    if numbers.min() <= 0:
        return
    low, high, gap = in_two(logs := np.sort(np.log10(numbers)))
    power = float(np.median(high) - np.median(low))
    spread = max(np.ptp(side) for side in (low, high))
    enough = min(len(low), len(high)) >= max(5, 0.05 * len(logs))
    higher = column.numbers > 10 ** (low[-1] + gap / 2)
    if not enough or all(map(is_sentinel, np.unique(column.numbers[higher]))):
        return
    # In one unit, both are in one range.
    meet = low[0] <= high[-1] - round(power) and high[0] - round(power) <= low[-1]
    tens = gap > max(_GAP, spread) and abs(power - round(power)) < 0.25 and (meet or not spread)
    ratio = _named_ratio(column.name, power, gap, spread) or tens * float(10 ** round(power))
    middles = 10 ** float(np.median(low)), 10 ** float(np.median(high))
    widths = [max(float(np.std(10**side)), 1e-9) for side in (low, high)]
    wider = float(np.log10(widths[1] / widths[0]))
    # Twice the standard error of the spread of so few.
    chance = 2 / (np.log(10) * np.sqrt(2 * min(len(low), len(high))))
    fevers = bool(_WARMTH.search(column.name)) and _is_fahrenheit(*middles, wider, chance)
    if ratio or fevers:
        yield (
            f"{column.name!r} is around {middles[1]:.6g} in {len(high)} rows (first "
            f"{column.place(int(higher.argmax()))}) and around {middles[0]:.6g} in {len(low)}, "
            f"with none between: are they in two units{f' (1:{ratio:,.6g})' if ratio else ''}?"
        )


def _shifted(column: Values, numbers: Floats) -> Iterator[str]:
    """Yield numbers in two groups of which the one is in kelvin, or has the years of birth."""
    low, high, gap = in_two(np.sort(numbers))
    if min(len(low), len(high)) < max(5, 0.05 * len(numbers)) or gap < max(np.ptp(low), 50):
        return
    apart = float(np.median(high) - np.median(low))
    kelvin = low[0] > -60 and low[-1] < 60 and abs(apart - 273.15) < 15
    whole = bool((numbers % 1 == 0).all()) and len(np.unique(low)) >= _FEW // 2
    years = whole and 0 <= low[0] <= low[-1] <= 120 and 1880 <= high[0] <= high[-1] <= 2100
    if kelvin or years:
        rows = np.flatnonzero(column.numbers >= high[0])
        what = (
            "some in kelvin, and others in degrees Celsius" if kelvin else "some years, others ages"
        )
        yield (
            f"{column.name!r} is from {high[0]:g} to {high[-1]:g} in {len(high)} rows (first "
            f"{column.place(int(rows[0]))}), and from {low[0]:g} to {low[-1]:g} in {len(low)}: are "
            f"{what}?"
        )


def _named_ratio(name: str, power: float, gap: float, spread: float) -> float:
    """Return the ratio of two usual units of what a column's name says; 0 if it is none."""
    for named, ratios in _UNITS:
        for ratio in ratios if named.search(name) and gap > 0.4 * spread else ():
            # Units that are far apart need not fit as well.
            if abs(power - np.log10(ratio)) < (0.03 if ratio < 5 else 0.08):
                return ratio
    return 0.0


def in_two(ordered: Floats) -> tuple[Floats, Floats, float]:
    """Return the numbers below and above the widest gap between ordered ones, and its width."""
    place = int(np.diff(ordered).argmax()) + 1
    return ordered[:place], ordered[place:], float(ordered[place] - ordered[place - 1])


def clients_of(record: Record) -> tuple[Ints, list[str]]:
    """Return the client of each row and the clients' names; neither if there are few or many."""
    found = record.division
    column = next(iter(record.of("client")), None)
    clients, names = np.empty(0, np.int64), list[str]()
    if column is not None and len(column.codes):
        clients, names = column.codes, [*column.texts]
    elif found.clients is not None:
        clients, names = found.clients, found.named("client")
    return (clients, names) if 3 <= len(names) <= 200 else (clients[:0], [])


def _by_client(column: Values, clients: Ints, names: list[str]) -> Iterator[str]:
    """Yield clients whose numbers and spreads are both so many times those of the others."""
    values, known = column.numbers, np.isfinite(column.numbers)
    if not names or len(values) != len(clients):
        return
    parts = [values[(clients == one) & known] for one in range(len(names))]
    if min(map(len, parts)) < 5 or min(map(np.ptp, parts)) == 0:
        return
    middles = np.array([np.median(part) for part in parts])
    # Degrees may be below zero.
    positive = bool((values[known] > 0).all())
    if middles.min() <= 0:
        return
    sizes, widths = np.log10(middles), np.log10([np.std(part) for part in parts])
    usual = float(np.median(middles))
    for place, client in enumerate(names):
        power, wider = sizes[place] - np.log10(usual), widths[place] - np.median(widths)
        apart = float(np.ptp(np.delete(sizes, place)))
        ratio = _ratio(float(power), float(wider), apart) if positive else 0.0
        warm = max(middles[place], usual) < 42 * 1.8 + 32 and (
            34 < min(middles[place], usual) < 42 or bool(_WARMTH.search(column.name))
        )
        if ratio or (warm and _is_fahrenheit(middles[place], usual, wider)):
            yield (
                f"{column.name!r} of {client!r} is around {middles[place]:g}, and around {usual:g} "
                f"at most clients: is it in another unit{f' (1:{ratio:,g})' if ratio else ''}?"
            )


def _ratio(power: float, wider: float, apart: float) -> float:
    """Return the ratio of two units: a power of ten, or any where all others agree; else 0.

    Args:
        power: Logarithm of a client's usual number, against that of others.
        wider: The same of its spread.
        apart: How far the others are from each other, as a logarithm.
    """
    # Of others that agree, none is hundreds of times as large by nature.
    far = abs(power) > 2.5 and apart < 0.18
    tens = abs(power) > 1.7 and (far or abs(power % 1 - 0.5) >= 0.2)
    # Spreads of sizes that are further apart need not fit as well.
    tens = tens and abs(wider - power) < max(0.5, abs(power) - 2)
    # Clients that are of any size have no unit in common.
    if tens and apart < 1:
        return float(10 ** abs(round(power)))
    agree = apart < 0.18 and abs(wider - power) < 0.15
    return round(10 ** abs(power), 1) if abs(power) > 0.7 and agree else 0.0


def _is_fahrenheit(middle: float, usual: float, wider: float, chance: float = 0.0) -> bool:
    """Return ``True`` if a temperature is in the one unit, and usually in the other.

    Args:
        middle: A temperature.
        usual: The usual one.
        wider: Logarithm of the spread of the one, against that of the other.
        chance: How far it may be off by chance.
    """
    low, high = sorted((middle, usual))
    return (
        -20 < low < 45
        and abs(high - 1.8 * low - 32) < (2 if low > 34 else 4)
        and 0.1 - chance < abs(wider) < 0.45 + chance
    )
