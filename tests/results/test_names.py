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


def test_a_summary_is_named_after_its_score():
    assert names.score("test/personal/acc_weighted") == "test accuracy weighted by samples"
    assert names.score("test/personal/loss_worst10") == "test loss of the worst tenth"
    assert names.parted("test/personal/f1_std") == ("test/personal/f1", "_std")
    # Of a score without words, the name stays as it is.
    assert names.score("test/personal/r2_std") == "test/personal/r2_std"
