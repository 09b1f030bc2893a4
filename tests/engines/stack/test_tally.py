"""The sums and rows of stacked clients."""

from __future__ import annotations

import torch

from pfl.core.types import Pass
from pfl.engines.sequential import SequentialEngine
from pfl.engines.stack.tally import StackedTally
from pfl.engines.vectorised import VectorisedEngine
from tests.helpers.federation import SGD, fit
from tests.helpers.toy import blobs, mlp
from tests.testing.broken import Method


def test_a_pass_gets_the_rows_since_the_last_one():
    """Of its own client, without the padding."""
    tally = StackedTally(2)
    for start, sizes in ((0.0, {0: 2, 1: 1}), (10.0, {0: 1})):
        rows = start + torch.arange(4.0).reshape(2, 2)
        tally.collect(sizes, {"z": rows})
        found = [tally.clients[client].totals({}).rows for client in range(2)]
        expected = [rows[client][:size].tolist() for client, size in sizes.items()]
        assert [own["z"].tolist() for own in found if own] == expected
    assert [tally.clients[client].totals({}).rows for client in range(2)] == [{}, {}]


class CountsRows(Method):
    """Two passes collect rows of one name; the second counts what it gets."""

    def plan(self):
        def collect(batch):
            return {"z": batch.x[:, 0]}

        def count(totals):
            return {"visits": self.visits + len(totals.rows["z"])}

        first = Pass(name="first", collect=collect, then=lambda totals: {})
        return [*super().plan()[:1], first, Pass(name="second", collect=collect, then=count)]


def test_two_passes_of_one_name_are_told_apart_in_a_run():
    data = blobs()
    for engine in (SequentialEngine(), VectorisedEngine()):
        run = fit(CountsRows(mlp(), optimizer=SGD), data, 1, engine=engine)
        assert "not vectorised" not in run.header["engine"]
        for client, kept in run.kept.items():
            assert kept["visits"] == len(data.split(client, "train"))
