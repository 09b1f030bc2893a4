"""Words for metrics."""

from __future__ import annotations

from pfl.results import names


def test_a_groups_score_is_named_after_the_group():
    metric = "test/personal/acc@LeNet5"
    assert names.heading(metric, "last") == (
        "Test accuracy of the group LeNet5 (personal models, last round)"
    )
    assert names.of_client(metric) == "test/personal/acc"
    assert names.is_score(metric, "acc")
    assert names.score("server/x@y/z") == "server/x@y/z"
