"""Arrays: inputs and targets whose form or numbers mean something else than they seem to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.contents import hashes
from datamodules.doubts.scales import clients_of, in_two
from datamodules.record import Array, Goal, Record

_SOME = 20
# So many numbers in masks are shades of grey.
_MOST_CLASSES = 64
# Vocabularies are smaller.
_MOST_TOKENS = 10_000_000
# What may fit an image better than its mask, in the order of the record.
_WAYS = (
    *("do once mirrored", "do once turned upside down", "do with their sides exchanged"),
    *("those of the samples before do", "those of the samples after do"),
)
# So few samples of a client say nothing.
_CLIENT = 5


def of_inputs(record: Record) -> Iterator[str]:
    """Yield inputs that may be images in another form, or that say nothing."""
    for array in record.arrays:
        if array.channels_last:
            yield (
                f"{array.name} is {array.shape}: if these are images, their channels come before "
                f"height and width; give {array.name}.permute(0, 3, 1, 2)"
            )
        if array.least == array.most and array.shape[0] > 1:
            yield f"{array.name} is {array.least:g} in all samples: nothing can be learnt from it"
        else:
            yield from _scales(array)
        yield from _two_scales(array)
        yield from _no_tokens(array)
        yield from _still(array, record)
        yield from _of_clients(array, record)
        span, tested = array.most - array.least, array.tested
        if tested is not None and span > 0 and tested > 0 and not 0.05 < tested / span < 20:
            yield (
                f"{array.name} of official test samples spans {tested:g}, and {span:g} in "
                "training: scale both alike"
            )


def _no_tokens(array: Array) -> Iterator[str]:
    """Yield integers that are no tokens, and so are taken for what they are not."""
    name, whole = array.name, array.dtype.startswith("int")
    if array.dtype == "bool":
        yield f"{name} has booleans, which layers do not multiply: give {name}.float()"
    elif whole and len(array.shape) <= 2 and (array.least < 0 or array.most > _MOST_TOKENS):
        marks = "replace what does not count by 0, or, " * (array.least in (-1, -100))
        yield (
            f"{name} has {array.dtype} from {array.least:g} to {array.most:g}: integers are "
            f"tokens, which are numbered from 0; {marks}if these are quantities, give "
            f"{name}.float()"
        )


def _still(array: Array, record: Record) -> Iterator[str]:
    """Yield channels and samples in which nothing varies, where others do."""
    still, name = array.still, array.name
    if not still.size or array.dtype == "bool":
        return
    dead = np.flatnonzero(still.all(0))
    if 0 < len(dead) < still.shape[1]:
        yield (
            f"{name}[:, {dead[0]}] has a single number in each of the {len(still)} samples that "
            "were looked at: a channel may be lost; leave it out, or read it again"
        )
    yield from _still_at_a_client(array, record)
    flat = np.flatnonzero(still.all(1))
    # Pictures of one colour are told of by their files.
    if 0 < len(flat) <= 0.2 * len(still) and not (
        array.dtype == "uint8" and still.shape[1] in (1, 3)
    ):
        yield (
            f"{len(flat)} of the {len(still)} samples of {name} that were looked at have a single "
            f"number (first {record.place(int(array.rows[flat[0]]))}): leave them out if they "
            "show nothing"
        )


def _still_at_a_client(array: Array, record: Record) -> Iterator[str]:
    """Yield a channel that never varies at one client, and always does at the others."""
    found = record.division
    if found.clients is None or len(found.named("client")) < 2:
        return
    clients = found.clients[array.rows]
    for client, name in enumerate(found.named("client")):
        own = clients == client
        if own.sum() < _CLIENT:
            continue
        dead = np.flatnonzero(array.still[own].all(0) & ~array.still[~own].any(0))
        if len(dead):
            yield (
                f"{array.name}[:, {dead[0]}] has a single number in each sample of the client "
                f"{name!r}, and in none of others: was it not measured there? Leave it out"
            )
            return


def _of_clients(array: Array, record: Record) -> Iterator[str]:
    """Yield a client whose numbers go below zero, or whose tokens are others, as at no other."""
    clients, names = clients_of(record)
    rows = [np.flatnonzero(clients[array.rows] == one) for one in range(len(names))]
    if not names or min(map(len, rows)) < _CLIENT:
        return
    below = [float((array.lows[own] < 0).mean()) for own in rows]
    if len(array.shape) > 2 and sorted(below)[-2] == 0 and max(below) > 0.9:
        yield (
            f"{array.name} goes below zero at the client {names[int(np.argmax(below))]!r}, and at "
            "no other: was it scaled otherwise? Scale all alike"
        )
    words = [{*np.unique(array.tokens[own]).tolist()} - {0} for own in rows if array.tokens.size]
    if min(map(len, words), default=0) < _SOME:
        return
    shared = [
        len(own & set().union(*words[:one], *words[one + 1 :])) / len(own)
        for one, own in enumerate(words)
    ]
    if min(shared) < 0.05 and sorted(shared)[1] > 0.5:
        yield (
            f"{array.name} of the client {names[int(np.argmin(shared))]!r} has tokens that hardly "
            "another has, and others share theirs: was it made by another tokenizer?"
        )


def _two_scales(array: Array) -> Iterator[str]:
    """Yield signals and images of which some are scaled and others are not."""
    logs = np.sort(np.log10(array.sizes[array.sizes > 0]))
    if len(array.shape) < 3 or array.dtype == "uint8" or len(logs) < _SOME:
        return
    low, high, gap = in_two(logs)
    enough = min(len(low), len(high)) >= max(3, 0.05 * len(logs))
    if enough and gap > 1 and gap > max(np.ptp(low), np.ptp(high)):
        yield (
            f"{array.name} has {len(low)} samples up to {10 ** low[-1]:.3g} and {len(high)} up to "
            f"{10 ** high[-1]:.3g}, with nothing between (of {len(logs)} that were looked at): "
            "are some of them scaled, and others not?"
        )


def _scales(array: Array) -> Iterator[str]:
    """Yield bytes that are not scaled, and other numbers that should have been."""
    name, dims = array.name, len(array.shape)
    if array.dtype == "uint8":
        yield from _bytes(array)
    elif dims > 2 and array.dtype == "int8":
        yield (
            f"{name} has int8 from {array.least:g} to {array.most:g}: if these are images, give "
            f"({name}.short() + 128).to(torch.uint8), else {name}.float()"
        )
    elif dims == 4 and min(array.shape[1], array.shape[3]) in (1, 3, 4):
        how = "to(torch.uint8)" if array.most <= 255 else "float() / 65535, or rescale it to bytes"
        if array.whole and array.most > 100 and array.least >= 0:
            yield (
                f"{name} has {array.dtype} from {array.least:g} to {array.most:g}: if these are "
                f"images, bytes are scaled and others are not; give {name}.{how}"
            )


def _bytes(array: Array) -> Iterator[str]:
    name, shape = array.name, array.shape
    if len(shape) == 3 and min(shape[-2:]) >= 8:
        yield (
            f"{name} is {shape} in bytes: images need an axis of channels, or their numbers stay "
            f"unscaled; give {name}[:, None]"
        )
    if len(shape) == 2 and shape[1] > 1:
        yield (
            f"{name} is {shape} in bytes, which are neither images nor scaled: give "
            f"{name}.reshape(n, channels, height, width), or {name} / 255; tokens are longer "
            "integers"
        )
    if len(shape) == 4 and array.most <= 1:
        yield (
            f"{name} has bytes of 0 and 1 alone, which are scaled by 255: give {name} * 255, or "
            "floats"
        )


def of_forms(record: Record) -> Iterator[str]:
    """Yield a client whose samples are of another type or shape than those of others."""
    counts = Counter(record.forms.values())
    usual, often = counts.most_common(1)[0] if counts else ("", 0)
    others = [name for name, form in record.forms.items() if form != usual]
    if others and 2 * often > len(record.forms):
        yield (
            f"samples of client {others[0]} are {record.forms[others[0]]}, and those of most "
            f"clients {usual}: bring all to one form"
        )


def of_goal(record: Record) -> Iterator[str]:
    """Yield targets that may be of another task, or that number classes with holes."""
    goal = record.goal
    if goal is None or not goal.y.size:
        return
    if goal.dense:
        yield from _of_masks(goal)
        yield from _of_each(goal, record)
        yield from _misfits(goal, record)
    elif goal.inferred and goal.y.ndim == 2:
        yield from _of_columns(goal.y)


def _of_columns(y: NDArray[Any]) -> Iterator[str]:
    """Yield (n, D) targets that may be classes."""
    values = np.unique(y)
    if y.shape[1] == 1:
        # So few distinct integers may be classes.
        if y.dtype.kind == "f" and (values % 1 == 0).all() and len(values) <= 20 < len(y):
            yield "y has floats, which are numbers to predict: give y.long() if they are classes"
    elif values[0] >= 0 and np.allclose(y.sum(1), 1, atol=1e-3):
        each = "has a single 1" if {*values.tolist()} <= {0, 1} else "sums up to 1"
        yield f"each row of y {each}: give y.argmax(1) if the columns are classes"


def _of_each(goal: Goal, record: Record) -> Iterator[str]:
    """Yield masks that are those of others, and clients whose masks show nothing."""
    masks = goal.y.reshape(len(goal.y), -1)
    plain = (masks == masks[:, :1]).all(1)
    varied = np.flatnonzero(~plain)
    every = hashes(masks[varied]) if len(varied) else np.empty(0, np.uint64)
    _, same = np.unique(every, return_inverse=True)
    often = np.bincount(same, minlength=1)
    if often.max() >= 3:
        first = varied[same == often.argmax()]
        yield (
            f"{often.max()} masks are equal in every pixel (such as those of "
            f"{record.place(int(first[0]))} and {record.place(int(first[1]))}): were they copied "
            "under other names?"
        )
    found = record.division
    if found.clients is None or plain.all():
        return
    yield from _inverted(masks, found.clients, found.named("client"))
    for client, name in enumerate(found.named("client")):
        rows = np.flatnonzero(found.clients == client)
        if len(rows) >= 3 and plain[rows].all() and len(np.unique(masks[rows, 0])) == 1:
            yield (
                f"all masks of the client {name!r} are {masks[rows[0], 0]} in every pixel, and "
                "those of others are not: are they missing?"
            )


def _misfits(goal: Goal, record: Record) -> Iterator[str]:
    """Yield masks that tell nothing of their image, though they do once mirrored or so."""
    if not len(goal.fits):
        return
    own, others = goal.fits[:, 0], goal.fits[:, 1:]
    most = others.max(1)
    off = (most > 0.3) & (own < 0.25 * most)
    rows, looked = np.flatnonzero(off), goal.fits.any(1)
    if not len(rows):
        return
    ways = np.bincount(others[off].argmax(1), minlength=len(_WAYS))
    # Where shades say nothing of masks, some fit another way by chance.
    usual = np.median(own[looked & ~off]) if (looked & ~off).any() else 0.0
    if usual > 0.25 or (2 * len(rows) > looked.sum() and ways.max() > 0.8 * len(rows)):
        yield (
            f"{len(rows)} of {looked.sum()} masks do not fit their images, but "
            f"{_WAYS[int(ways.argmax())]} (first that of {record.place(int(rows[0]))}): put them "
            "right"
        )


def _inverted(masks: NDArray[Any], clients: NDArray[Any], names: list[str]) -> Iterator[str]:
    """Yield a client whose masks of two classes seem to have them the other way round."""
    if len(names) < 2 or masks.max(initial=0) != 1:
        return
    shares = np.array([masks[clients == one].mean() for one in range(len(names))])
    for place, name in enumerate(names):
        usual = float(np.median(np.delete(shares, place)))
        if abs(shares[place] - usual) > 0.5 and abs(shares[place] - (1 - usual)) < 0.15:
            yield (
                f"{shares[place]:.0%} of the pixels in masks of the client {name!r} are of class "
                f"1, and {usual:.0%} at others: are its classes the other way round?"
            )
            return


def _of_masks(goal: Goal) -> Iterator[str]:
    for line in goal.colours[:1]:
        yield (
            f"masks have different palettes, and count by number: {line}; save all with one palette"
        )
    present = np.unique(goal.y).tolist()
    if len(present) == 1:
        yield f"all pixels of all masks are {present[0]}: nothing can be learnt"
        return
    if len(present) > _MOST_CLASSES:
        yield (
            f"masks have {len(present)} different numbers, and each gets an output: were they "
            "resized, or saved with loss? Save the numbers of classes as PNG"
        )
    absent = int(present[-1]) + 1 - len(present)
    if 2 * absent > present[-1]:
        numbers = ", ".join(map(str, present[:8]))
        how = f"give values: [{numbers}]" if goal.values else "number them from 0"
        yield (
            f"masks have the numbers {numbers}, and {absent} between them have no pixel, but get "
            f"an output each: {how}, or ignore: {present[-1]} for pixels that do not count"
        )
