"""Run folders that somebody prepared: nothing outside changes, and what is read is one sentence."""

from __future__ import annotations

import os
import shutil
from functools import cache, partial

import pytest

from tests.campaign import folders, hostile
from tests.helpers.extras import has

pytestmark = pytest.mark.campaign

FIT = ["fit", "--config", "c.yaml", "--ckpt_path", "last"]
READERS = (
    FIT,
    ["test", "--config", "c.yaml", "--ckpt_path", "last", "--reliability"],
    ["predict", "--config", "c.yaml", "--ckpt_path", "last"],
    ["report", "runs/r"],
    ["compare", "runs/r"],
    ["plot", "runs/r", "--format", "png"],
)
WRITTEN = (".lock", "config.yaml", "environment.json", "partition.json", "summary.json")
WRITTEN += ("metrics.csv", "clients.csv", "reliability.csv", "report.html", "checkpoints/last.ckpt")
WRITTEN += ("checkpoints", "plots", "predictions", "fisher.csv")
PRECIOUS = ("precious.txt", "last.ckpt", ".last.ckpt.17", ".clients.csv.17", "client_0.csv")


@pytest.fixture(scope="module")
def begun(begin):
    """Runs of two rounds of three, and the fingerprint that each ends with."""
    analyses = ["FisherTraces"] * has("papers")
    return cache(partial(begin, rounds=3, callbacks=analyses, checkpoint_every=1))


@pytest.mark.parametrize(
    "attack", [hostile.cell, hostile.value, hostile.text], ids=lambda f: f.__name__
)
def test_a_hostile_file_is_refused_or_read(case, attack, draw, begun, server, tmp_path):
    source, mark = begun((0, 3, 12)[case % 3])
    folder = shutil.copytree(source, tmp_path / "hostile")
    (run,) = folders.runs(folder)
    kinds = {hostile.cell: ("*.csv",), hostile.value: ("*.json",)}.get(attack, ("*.*",))
    file = draw.choice(sorted(path for kind in kinds for path in run.glob(kind)))
    attack(file, draw)
    words = draw.choice(READERS)
    answer = server.run(words, folder)
    print(file.name, words[0], answer.code, answer.err)
    answer.check()
    assert answer.code is not None, "it has no end"
    # What a run goes on with are its own rows, to the bit; what it cannot prove it refuses.
    if words is FIT and answer.code == 0:
        assert [*folders.finished(folder)] == [mark]


def test_nothing_outside_of_a_run_folder_changes(case, draw, begun, server, tmp_path):
    source, _ = begun((0, 3, 12)[case % 3])
    folder = shutil.copytree(source, tmp_path / "linked")
    (run,) = folders.runs(folder)
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in PRECIOUS:
        (outside / name).write_text("precious")
    for name in draw.sample(WRITTEN, draw.choice((1, 1, 2, 4))):
        place = run / name
        if not place.parent.is_dir() or place.parent.is_symlink():
            continue
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        if "." not in name:
            place.symlink_to(outside)
        elif draw.random() < 0.3:
            os.link(outside / "precious.txt", place)
        else:
            place.symlink_to(outside / draw.choice(("precious.txt", "none.txt")))
    kept = run.parent / ".kept-mine"
    kept.mkdir()
    (kept / "thesis.tex").write_text("precious")
    (run / ".notes.17").write_text("precious")
    for words in draw.sample(READERS, 2):
        answer = server.run(words, folder)
        print(words[0], answer.code, answer.err)
        answer.check()
    assert {file.name: file.read_text() for file in outside.iterdir()} == dict.fromkeys(
        PRECIOUS, "precious"
    )
    assert (kept / "thesis.tex").read_text() == (run / ".notes.17").read_text() == "precious"
