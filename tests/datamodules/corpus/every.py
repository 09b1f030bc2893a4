"""All cases of the corpus."""

from __future__ import annotations

from tests.datamodules.corpus import arrays, copies, exports, folders, habits, series, tables

DAMAGED = [
    *tables.DAMAGED,
    *folders.DAMAGED,
    *series.DAMAGED,
    *arrays.TENSORS,
    *arrays.SAVED,
    *exports.DAMAGED,
    *copies.DAMAGED,
    *habits.DAMAGED,
]
SOUND = [
    *exports.SOUND,
    *copies.SOUND,
    *habits.SOUND,
    *tables.SOUND,
    *folders.SOUND,
    *series.SOUND,
    *arrays.SOUND_TENSORS,
    *arrays.SOUND_SAVED,
]
