"""Classes, clients and splits: what nobody has, what nobody trains on, what was set for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from datamodules.doubts.names import listed
from datamodules.record import Record

_FEW = 20
# Numbers that mark samples without a label.
_UNLABELLED = frozenset((-1, -9, -99, -100, -999, 99, 255, 999, 9999))


def of_classes(record: Record) -> Iterator[str]:
    """Yield classes without samples, with a single one, or with none to train on."""
    found = record.division
    if found.labels is None or not len(found.labels):
        return
    counts = found.names.get("class", {})
    names = [*counts]
    present = [name for name, count in counts.items() if count]
    if len(present) == 1:
        yield f"all samples have the class {present[0]!r}: nothing can be learnt"
        return
    yield from _absent(counts, bool(record.arrays))
    yield from _unlabelled(counts)
    used = found.labels[found.side > 0]
    trained = {*found.labels[found.side == 1].tolist()}
    lost = [names[one] for one in np.unique(used).tolist() if one not in trained]
    single = [name for name, count in counts.items() if count == 1]
    if single and len(found.labels) >= _FEW and len(single) <= max(1, len(present) // 4):
        yield f"{len(single)} classes have a single sample ({listed(single)}): is it a slip?"
    elif lost:
        yield f"{len(lost)} classes have no sample to train on ({listed(lost)}), only to be tested"


def _absent(given: Mapping[str, int], arrays: bool) -> Iterator[str]:
    absent = [name for name, count in given.items() if not count]
    if not absent:
        return
    numbered = arrays and [*given] == [str(number) for number in range(len(given))]
    if numbered and (given["0"] == 0 or 2 * len(absent) > len(given) - 1):
        present = [int(name) for name, count in given.items() if count]
        between = sum(name not in present for name in range(present[-1]))
        yield (
            f"the smallest class in y is {present[0]} and the largest {present[-1]}, {between} "
            "between 0 and it have no sample: they are numbered from 0, and each gets an output"
        )
    # Names beside an array may be meant for what is to come.
    elif not numbered and (not arrays or 2 * len(absent) > len(given)):
        yield (
            f"{len(absent)} of {len(given)} classes have no sample ({listed(absent)}), and each "
            "gets an output: remove them if nothing is to come"
        )


def _unlabelled(counts: Mapping[str, int], kind: str = "class") -> Iterator[str]:
    """Yield a number among those of classes or clients that says that there is none."""
    if not all(name.removeprefix("-").isdecimal() for name in counts):
        return
    numbers = sorted(map(int, counts))
    for number in {numbers[0], numbers[-1]} & _UNLABELLED:
        others = [one for one in numbers if one != number]
        close = len(others) > 1 and others[-1] - others[0] == len(others) - 1
        # In -1, 0 and 1, and in 99 of 0 to 99, all are classes.
        apart = number > others[-1] + 1 if number > 0 else number < -1 or others[-1] > 1
        if close and apart and others[0] >= 0:
            yield (
                f"the {kind} {number} of {counts[str(number)]} samples stands apart from "
                f"{others[0]} to {others[-1]}: samples without a "
                f"{'label' if kind == 'class' else kind} have to be left out"
            )


def of_clients(record: Record) -> Iterator[str]:
    """Yield natural clients with a single sample."""
    found = record.division
    if not found.natural or found.clients is None:
        return
    counts = {name: count for name, count in found.names.get("client", {}).items() if count}
    single = [name for name, count in counts.items() if count == 1]
    if len(counts) == 1 and record.of("client"):
        yield (
            f"all rows are of the client {next(iter(counts))!r}: check client_column, or divide "
            "the rows by another partition"
        )
    if len(counts) > 1:
        yield from _unlabelled(counts, "client")
    if single and len(counts) > 1:
        yield (
            f"{len(single)} of {len(counts)} clients have a single sample ({listed(single)}), and "
            "so none to train on or none to be tested on"
        )


def of_held(record: Record) -> Iterator[str]:
    """Yield clients that cannot train or be tested, or whose samples are of one class each."""
    found = record.division
    own = found.chosen or (found.natural and len(found.held) == len(found.names.get("client", {})))
    cure = "leave them out" if own else "give fewer clients, or more samples to each"
    for what, place in (("to train on", 0), ("to be tested on", 2)):
        without = [str(client) for client in np.flatnonzero(found.held[:, place] == 0).tolist()]
        if 0 < len(without) < len(found.held):
            which = f" ({listed(without)})" * (not own)
            yield (
                f"{len(without)} of {len(found.held)} clients have no sample {what}{which}: {cure}"
            )
    unused = int((found.side == 0).sum())
    if found.chosen and 10 * unused > len(found.side):
        yield (
            f"{unused} of {len(found.side)} samples are of no client of the partition's file, and "
            "are not used: was it made for these data?"
        )
    if found.natural and found.clients is not None and found.labels is not None:
        width = 1 + int(found.labels.max(initial=0))
        pairs = np.divmod(np.unique(found.clients * width + found.labels), width)
        counts = np.bincount(pairs[0]), np.bincount(pairs[1])
        if len(counts[0]) > 1 and all((one <= 1).all() for one in counts):
            yield (
                "each client has samples of a single class, and no class is at two: does "
                "client_column name the client?"
            )


def of_official(record: Record) -> Iterator[str]:
    """Yield official test samples that are far more than those of training, or lack classes."""
    found = record.division
    if not found.official:
        return
    trained = len(found.side) - found.official
    if found.official > 2 * trained:
        yield (
            f"there are {found.official:,} official test samples and {trained:,} for training: "
            "were they exchanged?"
        )
    if found.labels is not None:
        names = found.named("class")
        counts = np.bincount(found.labels[:trained], minlength=len(names))
        tested = np.bincount(found.labels[trained:], minlength=len(names))
        # What is rare may be in one part alone by chance.
        often = counts > 5 * trained / found.official
        lost = [name for name, here in zip(names, often & (tested == 0), strict=True) if here]
        if lost:
            yield (
                f"{len(lost)} of {len(names)} classes have no official test sample "
                f"({listed(lost)}), though there are some of them to train on"
            )


def of_tests_elsewhere(record: Record) -> Iterator[str]:
    """Yield columns of which official test samples are nowhere near those of training."""
    found = record.division
    start = len(found.side) - found.official
    for column in record.of("feature", "target"):
        parts = column.numbers[:start], column.numbers[start:]
        if len(column.numbers) != len(found.side) or min(map(len, parts)) < _FEW:
            continue
        middle, width = float(np.nanmean(parts[0])), float(np.nanstd(parts[0]))
        test = float(np.nanmean(parts[1]))
        if width > 0 and abs(test - middle) > 5 * width:
            yield (
                f"{column.name!r} is around {test:.4g} in official test samples, and around "
                f"{middle:.4g} in training: scale both alike"
            )
            return


def of_dropped(record: Record) -> Iterator[str]:
    """Yield clients and classes of which no row is left, and the column that costs most rows."""
    found = record.division
    used = record.of("feature", "target", "client", "time")
    used = [column for column in used if len(column.codes)]
    if not used or len(found.side) in (0, len(used[0].codes)):
        return
    gone = np.stack([column.gone for column in used])
    dropped: NDArray[np.bool_] = np.logical_or.reduce(gone)
    if 2 * dropped.sum() > len(dropped):
        worst = int(gone.sum(1).argmax())
        cure = "give features without it, or missing: mean"
        if used[worst].use != "feature":
            cure = (
                "if each stands in the first row of its block alone, fill it down (pandas: ffill)"
            )
        yield (
            f"{dropped.sum()} of {len(dropped)} rows are left out because a value is missing, "
            f"{gone[worst].sum()} of them for want of {used[worst].name!r}: {cure}"
        )
    for column in record.of("client", "target"):
        for number, text in enumerate(column.texts):
            rows = column.codes == number
            if column.absent[number] or not rows.any() or not dropped[rows].all():
                continue
            worst = int(gone[:, rows].sum(1).argmax())
            yield (
                f"no row of {text!r} in {column.name!r} is left: each of its {rows.sum()} lacks a "
                f"value, {gone[worst, rows].sum()} of them {used[worst].name!r}"
            )


def of_options(record: Record) -> Iterator[str]:
    """Yield shares that were set and change nothing, or not what they seem to."""
    found, beside = record.division, record.notes.validation
    for option, share in found.shares.items():
        kind, tests = option.removesuffix("_fraction"), f"{found.official:,} official test samples"
        if kind == "val" and beside:
            yield (
                f"{option}: {share} is drawn from the training samples, as {beside!r} is not read "
                "for validation: leave it out, or add its samples to them"
            )
        elif kind in found.given and found.protocol in ("pooled", "future"):
            yield (
                f"{option}: {share} is of training samples and the {tests} together, as "
                f"test_protocol is {found.protocol}: matched or official_classes tests on the "
                "official ones"
            )
        elif kind in found.given:
            why, how = f"the data have {kind} samples of their own", ""
            if found.official:
                why = f"test_protocol: {found.protocol} tests on the {tests}"
                how = ", or give test_protocol: pooled"
            yield f"{option}: {share} changes nothing, as {why}: leave it out{how}"
