"""Tables and pictures of a partition."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from datamodules import ByDomain, ConceptDrift, Digits, Dirichlet, FixedClasses, Shards, Synthetic
from datamodules.inspect import figure, survey, table


def printed(data):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(data))
    return console.export_text()


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
    ],
    ids=["ten", "two hundred", "domains", "subclasses", "one"],
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
