"""A client's store of samples, and the votes of the nearest."""

from __future__ import annotations

import torch

from lightning_modules.steps.neighbours import class_votes, hits, memory
from tests.helpers.draws import normal


def test_rows_that_are_not_filled_neither_count_nor_matter():
    stored = memory(normal(3, 2), torch.tensor([1, 0, 1]), torch.zeros(5, 2).double())
    assert stored["filled"].tolist() == [True] * 3 + [False] * 2
    labels = torch.eye(2).double()[stored["labels"]]
    votes = class_votes(normal(4, 2, seed=1), stored["bank"], labels, stored["filled"], 5, 2.0)
    moved = torch.where(stored["filled"][:, None], stored["bank"], 9.0)
    again = class_votes(normal(4, 2, seed=1), moved, labels, stored["filled"], 5, 2.0)
    assert torch.equal(votes, again)
    torch.testing.assert_close(votes.sum(-1), torch.ones(4).double())


def test_padding_hits_nothing():
    own, votes, y = normal(4, 3).softmax(-1), normal(4, 3, seed=1).softmax(-1), torch.arange(4) % 3
    weight = torch.tensor([1.0, 1.0, 0.0, 0.0]).double()
    torch.testing.assert_close(hits(own, votes, y, weight), hits(own[:2], votes[:2], y[:2]))
