"""Tables and pictures of a partition."""

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules import (
    ByColumn,
    ByDomain,
    ConceptDrift,
    Digits,
    Dirichlet,
    Shards,
    Synthetic,
    TensorData,
)
from datamodules.inspect import figure, sheets
from datamodules.survey import survey
from tests.helpers import terminal


def printed(data):
    return terminal.printed(sheets(data), 200)


def numbers(y, num_clients=2, **options):
    """Return data whose clients come one after another."""
    given = {"x": torch.zeros(len(y), 1), "y": y, "column.place": range(len(y))}
    return TensorData(given, num_clients, ByColumn("place"), **options)


def test_natural_clients_are_named_and_brackets_in_names_are_no_markup():
    """Rich would drop the first name, and end the command at the second."""
    clients = np.repeat(["Bern [ward]", "[/b]"], 4)
    said = printed(TensorData({"x": torch.zeros(8, 1), "y": [0, 1] * 4, "client": clients}))
    assert "Bern [ward]" in said
    (*_, line) = (one for one in said.splitlines() if one.startswith("[/b] "))
    assert " 3 " in line


def test_the_survey_counts_what_clients_hold():
    data = Digits(num_clients=4, partition=Dirichlet(0.5), val_fraction=0.2)
    seen = survey(data)
    for client in range(4):
        views = [data.split(client, name) for name in ("train", "val", "test")]
        assert seen.sizes[client].tolist() == [len(view) for view in views]
        assert seen.counts[client].tolist() == views[0].targets.bincount(minlength=10).tolist()
    assert seen.distinct == 1797


def test_skew_is_half_the_distance_of_the_proportions():
    """Two clients of equal size with one of two classes each: |1 - 1/2| + |0 - 1/2| halved, 0.5."""
    data = Synthetic(num_clients=2, partition=Shards(1), classes=2)
    assert survey(data).skew == pytest.approx([0.5, 0.5], abs=0.01)


def test_a_number_to_predict_is_counted_in_bins():
    """Twelve bins from 0 to 12; the first client has numbers below 6, the second the others.

    Half of the distance of (1, 0) and (0, 1) from their mean is a half for both.
    """
    data = numbers(torch.arange(241.0) / 20, test_fraction=0.01)
    seen = survey(data)
    train = [data.split(client, "train").targets[:, 0] for client in range(2)]
    ends = float(min(train[0])), float(max(train[1]))
    assert (seen.kind, len(seen.rows), seen.rows[0]) == ("bins", 12, "0 to 1")
    for client, own in enumerate(seen.counts):
        assert own.tolist() == torch.histc(train[client], 12, *ends).tolist()
    assert seen.skew == pytest.approx([0.5, 0.5], abs=0.02)


def test_labels_are_counted_one_by_one():
    y = torch.tensor([[1, 0, 1]] * 4 + [[0, 0, 1]] * 4)
    seen = survey(numbers(y))
    assert (seen.kind, seen.rows) == ("labels", ("label 0", "label 1", "label 2"))
    assert seen.counts.tolist() == [[3, 0, 3], [0, 0, 3]]


def test_subclasses_stand_beside_their_class():
    data = Synthetic(num_clients=5, partition=ConceptDrift(), subclasses=5, domains=1)
    seen = survey(data)
    assert seen.rows[:6] == (*(f"class 0/{n}" for n in range(5)), "class 1/0")
    assert ((seen.counts > 0).sum(1) == 4).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "data",
    [
        Synthetic(num_clients=200, partition=Dirichlet(0.1, 0), samples=5000, domains=1),
        Synthetic(num_clients=8, partition=ByDomain(), domains=4),
        Digits(num_clients=1, partition=Shards(1)),
        numbers(torch.arange(300.0).sin(), 6),
        numbers(torch.arange(300)[:, None] % torch.arange(2, 9) == 0, 6),
    ],
    ids=["two hundred", "domains", "one", "numbers", "labels"],
)
def test_the_picture_is_a_png_of_readable_size(data, tmp_path):
    figure(data, tmp_path / "clients.png")
    with Image.open(tmp_path / "clients.png") as image:
        assert image.format == "PNG"
        assert 500 < image.width < 2600
        assert 300 < image.height < 1800


def test_masks_have_neither_bins_nor_a_skew(tmp_path):
    y = torch.arange(4).repeat(8, 1).reshape(8, 1, 4).repeat(1, 4, 1)
    data = TensorData({"x": torch.rand(8, 3, 4, 4), "y": y, "client": [0, 0, 0, 0, 1, 1, 1, 1]},
                      task="segmentation")  # fmt: skip
    said = printed(data)
    assert "training samples" in said
    assert not [word for word in ("bins", "skew", "largest") if word in said]
    figure(data, tmp_path / "sizes.png")
    figure(numbers([*map(float, range(8))]), tmp_path / "bins.png")
    heights = [Image.open(tmp_path / name).height for name in ("sizes.png", "bins.png")]
    assert heights[0] < heights[1]
