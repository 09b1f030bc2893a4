"""No damage of the corpus is silent or without help, and no sound input is doubted.

The normal tier tries a few cases of each reader; the long one all, from two seeds.
"""

from __future__ import annotations

import pytest

from tests.datamodules.corpus.every import DAMAGED, SOUND
from tests.datamodules.corpus.kinds import judge

# What a reader needs beside the project.
NEEDS = {"saved": "datasets"}
# So few of each reader are tried by default.
SHORT = 6
EVERY = [*DAMAGED, *SOUND]


def short(case) -> bool:
    beside = [one for one in (DAMAGED if case.words else SOUND) if one.reader == case.reader]
    return beside.index(case) % max(1, len(beside) // SHORT) == 0


def tried(case, folder, seed):
    pytest.importorskip(NEEDS.get(case.reader, "numpy"))
    answer = judge(case, folder, seed)
    assert answer.kind == "well", answer.said


@pytest.mark.parametrize("case", [*filter(short, EVERY)], ids=str)
def test_a_case_is_read_as_it_should_be(case, tmp_path):
    tried(case, tmp_path, 0)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_every_case_is_read_as_it_should_be(case, seed, tmp_path):
    tried(case, tmp_path, seed)


def test_the_corpus_is_large():
    counts = {reader: sum(one.reader == reader for one in DAMAGED) for reader in
              ("table", "folder", "pairs", "series", "tensors", "saved")}  # fmt: skip
    assert counts["table"] >= 50
    assert counts["folder"] + counts["pairs"] >= 40
    assert counts["series"] >= 30
    assert counts["tensors"] + counts["saved"] >= 60
    assert len(SOUND) >= 50
