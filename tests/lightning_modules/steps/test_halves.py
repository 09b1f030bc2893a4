"""Division of clients into two groups."""

from __future__ import annotations

import itertools

import pytest
import torch

from lightning_modules.steps.halves import Splitting, cosines, halves
from tests.helpers.draws import normal


def near(places):
    return -(places[:, None] - places).abs()


@pytest.mark.parametrize(
    ("linkage", "first"), [("single", [1, 0, 0, 0, 0]), ("complete", [1, 1, 1, 0, 0])]
)
def test_linkages_by_hand(linkage, first):
    """Places on a line, of which near ones are similar.

    2 and 3 are merged first (at 1), then 4.6 and 6 (at 1.4). Of the three groups, 0 is 2 or 3 from
    the first pair, and the pairs are 1.6 or 4 apart: single linkage joins the pairs, complete
    linkage joins 0.
    """
    places = torch.tensor([0.0, 2.0, 3.0, 4.6, 6.0])
    assert halves(near(places), linkage).int().tolist() == first


def test_single_linkage_minimises_the_largest_similarity_across():
    """Against all divisions of six clients."""
    for seed in range(5):
        alike = cosines(normal(6, 3, seed=seed))
        first = halves(alike, "single")
        masks = [torch.tensor([True, *m]) for m in itertools.product((True, False), repeat=5)]
        best = min(float(alike[m][:, ~m].max()) for m in masks if not m.all())
        assert float(alike[first][:, ~first].max()) == best


def test_two_clients_are_two_halves():
    assert halves(torch.ones(2, 2)).tolist() == [True, False]


def test_a_row_of_zeros_is_similar_to_none():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [-3.0, -4.0]], dtype=torch.float64)
    expected = torch.tensor([[0, 0, 0], [0, 1, -1], [0, -1, 1]], dtype=torch.float64)
    torch.testing.assert_close(cosines(rows), expected)


# The mean is (0, 1), and the longest has the norm 5.
CHANGES = torch.tensor([[4.0, 3.0], [4.0, 0.0], [-4.0, 0.0], [-4.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("options", "splits"),
    [
        ({}, True),
        ({"eps1": 1.0}, False),
        ({"eps2": 5.0}, False),
        ({"min_size": 4}, False),
        ({"start_round": 21}, False),
        ({"gamma_max": 0.90}, True),
        ({"gamma_max": 0.91}, False),
    ],
)
def test_each_condition_of_a_split(options, splits):
    """Between the halves (4, 3) and (-4, 1) are most similar.

    Their cosine is -13 / (5 sqrt 17) = -0.6306, and sqrt((1 + 0.6306) / 2) = 0.903.
    """
    usual = {"eps1": 1.01, "eps2": 4.9, "min_size": 3, "start_round": 20, "gamma_max": 0.0}
    rule = Splitting(**{**usual, **options}, linkage="complete")
    expected = [False, False, True, True] if splits else [False] * 4
    assert rule.leaves(CHANGES, 21) == expected
