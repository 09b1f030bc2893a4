"""Roles and their next characters, by hand; the GRU that reads them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from datamodules import Shakespeare
from lightning_modules import FedPer, GRUNet
from pfl.core.seeds import scoped
from pfl.testing.federation import fit
from tests.helpers.messages import parts

FILE = Path(__file__).parents[3] / "shared" / "data" / "tinyshakespeare.txt"
PLAY = "First:\nabc\nd: e\n\nSecond Lord:\nzyxw\n\nFirst:\nbb\n\nOld Man:\nx\n"


def play(tmp_path, text=PLAY, **options):
    (tmp_path / "play.txt").write_text(text)
    options = {"length": 2, "stride": 1, "least": 3, "test_fraction": 0.25, **options}
    return Shakespeare(str(tmp_path / "play.txt"), **options)


def test_samples_are_what_follows_a_roles_own_words(tmp_path):
    """First says "abc d: e bb" in three lines; the old man says too little."""
    data = play(tmp_path)
    assert data.contents.domain_names == ("First", "Second Lord")
    assert data.division.sizes.tolist() == [[7, 0, 2], [1, 0, 1]]
    letters = [ast.literal_eval(name) for name in data.class_names]
    batch = data.split(0, "train").batch(torch.arange(7))
    said = sorted(
        "".join(letters[code] for code in row) + ">" + letters[y]
        for row, y in zip(batch.x.tolist(), batch.y.tolist(), strict=True)
    )
    assert said == sorted(["ab>c", "bc>\n", "c\n>d", "\nd>:", "d:> ", ": >e", " e>\n"])
    tested = data.split(0, "test").batch(torch.arange(2))
    assert [letters[y] for y in tested.y.tolist()] == ["b", "b"]


def test_the_roles_that_say_most_are_used(tmp_path):
    assert play(tmp_path, roles=1).contents.domain_names == ("First",)


def test_a_text_without_roles_is_refused(tmp_path):
    with pytest.raises(ValueError, match=parts("play.txt: ~ 4 characters ~ ROLE:")):
        play(tmp_path, "nothing to say\n").setup()
    with pytest.raises(FileNotFoundError, match=parts("nowhere.txt ~ char-rnn")):
        Shakespeare("nowhere.txt").setup()


@pytest.mark.skipif(not FILE.is_file(), reason="no data folder beside the project")
def test_99_roles_say_more_than_2000_characters():
    assert Shakespeare(str(FILE), least=2001, stride=500).num_clients == 99


def test_roles_train_a_gru(tmp_path):
    data = play(tmp_path, batch_size=4)
    with scoped(0):
        method = FedPer(GRUNet(data.outputs, hidden=4), task=data.task)
    assert fit(method, data, rounds=1).history[-1]["round"] == 1
