"""Damaged files of runs: never resumed or read as anything but what was written."""

from __future__ import annotations

import copy
import shutil
from functools import cache, partial

import pytest
import torch

from pfl.federation import checkpoint
from tests.campaign import folders
from tests.campaign.mutate import VALUES, places

pytestmark = pytest.mark.campaign

FIT = ["fit", "--config", "c.yaml", "--ckpt_path", "last"]
READERS = (
    FIT,
    ["test", "--config", "c.yaml", "--ckpt_path", "last"],
    ["export", "--config", "c.yaml", "--ckpt_path", "last", "--client", "1", "client.ckpt"],
    ["report", "runs/r"],
    ["compare", "runs/r"],
    ["plot", "runs/r", "--format", "png", "--only", "curves"],
)
# Whose numbers do not depend on the planned rounds, so that these may grow.
METHODS = (0, 3, 6, 9, 12, 15, 21, 24, 27, 30)


@pytest.fixture(scope="module")
def begun(begin):
    """Runs of one round of two, and the fingerprint that each ends with."""
    return cache(partial(begin, rounds=2))


def flipped(file, draw):
    """Flip one bit."""
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def truncated(file, draw):
    """Cut the end off, or all."""
    content = file.read_bytes()
    file.write_bytes(content[: draw.choice((0, draw.randrange(len(content)), len(content) - 1))])


def overwritten(file, draw):
    """Put zeros or noise in the place of a block, as a bad disk does."""
    content = bytearray(file.read_bytes())
    at, size = draw.randrange(len(content)), draw.choice((16, 512, 4096))
    block = content[at : at + size]
    content[at : at + size] = (
        bytes(len(block)) if draw.random() < 0.5 else draw.randbytes(len(block))
    )
    file.write_bytes(content)


def edited(file, draw):
    """Change one field, and write the file anew with its checksums."""
    content = checkpoint.load(file)
    found = copy.copy(content)
    holder, key = draw.choice(places(found))
    value = holder[key]
    if isinstance(value, torch.Tensor) and draw.random() < 0.5:
        holder[key] = draw.choice((value[None], value.to(torch.int16), value.flatten()[:-1]))
    elif draw.random() < 0.3:
        del holder[key]
    else:
        holder[key] = copy.deepcopy(draw.choice(VALUES))
    checkpoint.save(file, found)


@pytest.mark.parametrize(
    "damage", [flipped, truncated, overwritten, edited], ids=lambda f: f.__name__
)
def test_a_damaged_checkpoint_is_refused_or_gives_the_same_numbers(
    case, damage, draw, begun, server, tmp_path
):
    source, mark = begun(METHODS[case % len(METHODS)])
    folder = shutil.copytree(source, tmp_path / "damaged")
    (run,) = folders.runs(folder)
    damage(run / folders.CHECKPOINT, draw)
    words = draw.choice(READERS[:3]) if draw.random() < 0.3 else FIT
    answer = server.run(words, folder)
    print(answer.code, answer.err)
    answer.check()
    # A field that was edited with care is another checkpoint, and no damaged one.
    if answer.code == 0 and damage is not edited and words is FIT:
        assert [*folders.finished(folder)] == [mark]


@pytest.mark.parametrize("damage", [flipped, truncated, overwritten], ids=lambda f: f.__name__)
def test_other_damaged_files_of_a_run_are_refused_or_read(
    case, damage, draw, begun, server, tmp_path
):
    source, _ = begun(METHODS[case % len(METHODS)])
    folder = shutil.copytree(source, tmp_path / "damaged")
    (run,) = folders.runs(folder)
    file = draw.choice(sorted(path for path in run.glob("*.*") if path.stat().st_size))
    damage(file, draw)
    answer = server.run(draw.choice(READERS), folder)
    print(file.name, answer.code, answer.err)
    answer.check()
