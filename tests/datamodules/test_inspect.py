"""Tables and pictures of a partition."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from datamodules import (
    ByColumn,
    ByDomain,
    ConceptDrift,
    Digits,
    Dirichlet,
    FixedClasses,
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


def test_natural_clients_are_named(tmp_path, monkeypatch):
    given = {"x": torch.zeros(8, 1), "y": [0, 1] * 4, "client": np.repeat(["Bern", "Chur"], 4)}
    data = TensorData(given)
    *_, line = (one for one in printed(data).splitlines() if one.startswith("Chur "))
    assert " 3 " in line
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda picture, *_, **__: drawn.append(picture))
    figure(data, tmp_path / "p.png")
    below = drawn[0].axes[1]
    assert [label.get_text() for label in below.get_xticklabels()] == ["Bern", "Chur"]


def test_names_in_brackets_are_no_markup():
    """Rich would drop the first, and end the command at the second."""
    clients = np.repeat(["Bern [ward]", "[/b]"], 4)
    said = printed(TensorData({"x": torch.zeros(8, 1), "y": [0, 1] * 4, "client": clients}))
    assert "Bern [ward]" in said
    assert "[/b]" in said


def test_the_survey_counts_what_clients_hold():
    data = Digits(num_clients=4, partition=Dirichlet(0.5), val_fraction=0.2)
    seen = survey(data)
    for client in range(4):
        views = [data.split(client, name) for name in ("train", "val", "test")]
        assert seen.sizes[client].tolist() == [len(view) for view in views]
        assert seen.counts[client].tolist() == views[0].targets.bincount(minlength=10).tolist()
    assert seen.distinct == 1797
    assert not seen.tests_overlap


def test_skew_is_half_the_distance_of_the_proportions():
    """Two clients of equal size with one of two classes each: |1 - 1/2| + |0 - 1/2| halved, 0.5."""
    data = Synthetic(num_clients=2, partition=Shards(1), classes=2)
    assert survey(data).skew() == pytest.approx([0.5, 0.5], abs=0.01)


def test_a_number_to_predict_is_counted_in_bins():
    """Twelve bins from 0 to 12; the first client has numbers below 6, the second the others.

    Half of the distance of (1, 0) and (0, 1) from their mean is a half for both.
    """
    data = numbers(torch.arange(241.0) / 20, test_fraction=0.01)
    seen = survey(data)
    train = [data.split(client, "train").targets[:, 0] for client in range(2)]
    ends = float(min(train[0])), float(max(train[1]))
    assert seen.edges == pytest.approx(np.linspace(*ends, 13))
    assert (seen.kind, len(seen.rows), seen.rows[0]) == ("bins", 12, "0 to 1")
    for client, own in enumerate(seen.counts):
        assert own.tolist() == torch.histc(train[client], 12, *ends).tolist()
    assert seen.skew() == pytest.approx([0.5, 0.5], abs=0.02)
    text = printed(data)
    assert "target skew" in text
    assert "bins" in text


def test_labels_are_counted_one_by_one():
    y = torch.tensor([[1, 0, 1]] * 4 + [[0, 0, 1]] * 4)
    seen = survey(numbers(y))
    assert (seen.kind, seen.rows) == ("labels", ("label 0", "label 1", "label 2"))
    assert seen.counts.tolist() == [[3, 0, 3], [0, 0, 3]]


def test_subclasses_stand_beside_their_class():
    data = Synthetic(
        num_clients=5, partition=ConceptDrift(), subclasses=5, domains=1, concept_shift=0.0
    )
    seen = survey(data)
    assert seen.rows[:6] == (
        "class 0/0",
        "class 0/1",
        "class 0/2",
        "class 0/3",
        "class 0/4",
        "class 1/0",
    )
    assert seen.parents.tolist() == np.repeat(np.arange(4), 5).tolist()
    assert ((seen.counts > 0).sum(1) == 4).all()


def test_the_table_lists_few_clients_and_sums_up_many():
    few = printed(Digits(num_clients=3, partition=Dirichlet(5.0)))
    assert "Digits, 3 clients, 1,797 samples" in few
    assert "Dirichlet(alpha=5.0" in few
    assert "no common test set" in few
    assert few.count("%") == 3
    many = printed(Digits(num_clients=60, partition=Shards(2), test_protocol="global"))
    assert "common test set: 449" in many
    assert "%" not in many


def test_the_table_names_domains():
    text = printed(Synthetic(num_clients=2, partition=ByDomain(), domains=8))
    assert "and 1 more" in text


@pytest.mark.long
@pytest.mark.parametrize(
    "data",
    [
        Digits(num_clients=10, partition=Dirichlet(0.1), val_fraction=0.1),
        Synthetic(num_clients=200, partition=Dirichlet(0.1, 0), samples=5000, domains=1),
        Synthetic(num_clients=8, partition=ByDomain(), domains=4),
        Synthetic(
            num_clients=20, partition=ConceptDrift(), samples=4000, classes=12, subclasses=5,
            domains=20, test_protocol="official_classes",
        ),
        Digits(num_clients=1, partition=FixedClasses(classes_per_client=10)),
        numbers(torch.arange(300.0).sin(), 6),
        numbers(torch.arange(300)[:, None] % torch.arange(2, 9) == 0, 6),
    ],
    ids=["ten", "two hundred", "domains", "subclasses", "one", "numbers", "labels"],
)  # fmt: skip
def test_the_picture_is_a_png_of_readable_size(data, tmp_path):
    path = tmp_path / "clients.png"
    figure(data, path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert 500 < image.width < 2600
        assert 300 < image.height < 1800
        assert np.asarray(image.convert("L")).std() > 5


def test_the_picture_has_a_key_of_sizes(tmp_path, monkeypatch):
    """Its bubbles are as large as those of as many samples."""
    seen = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: seen.append(self))
    figure(Synthetic(num_clients=3, partition=Shards(1), samples=400), tmp_path / "a.png")
    (key,) = seen[0].legends
    words = [text.get_text() for text in key.get_texts()]
    assert words[-1].endswith(" samples")
    counts = [int(word.removesuffix(" samples")) for word in words]
    sizes = [handle.get_sizes()[0] for handle in key.legend_handles]
    assert sizes[0] / sizes[1] == pytest.approx(counts[0] / counts[1])
