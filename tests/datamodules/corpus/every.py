"""All cases of the corpus."""

from __future__ import annotations

from tests.datamodules.corpus import (
    arrays,
    copies,
    exports,
    folders,
    groups,
    habits,
    hostile,
    leaks,
    series,
    tables,
    unasked,
)

DAMAGED = [
    *tables.DAMAGED,
    *folders.DAMAGED,
    *series.DAMAGED,
    *arrays.TENSORS,
    *arrays.SAVED,
    *exports.DAMAGED,
    *copies.DAMAGED,
    *habits.DAMAGED,
    *groups.DAMAGED,
    *unasked.DAMAGED,
    *leaks.DAMAGED,
    *hostile.DAMAGED,
]
SOUND = [
    *exports.SOUND,
    *copies.SOUND,
    *habits.SOUND,
    *groups.SOUND,
    *unasked.SOUND,
    *leaks.SOUND,
    *hostile.SOUND,
    *tables.SOUND,
    *folders.SOUND,
    *series.SOUND,
    *arrays.SOUND_TENSORS,
    *arrays.SOUND_SAVED,
]
