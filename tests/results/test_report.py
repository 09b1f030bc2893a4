"""The page of a run: complete, valid, and alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from pfl.results.files import RunError
from pfl.results.learnt_nothing import levels
from pfl.results.report import report
from pfl.results.runs import RunFolder
from tests.helpers.messages import parts
from tests.results.folders import write_run

VOID = {"meta", "br"}


class Checker(HTMLParser):
    """Collects what tags there are, and holds every tag to its end."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.words = [], [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "data"):
                self.links.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def checked(text):
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return checker


def test_the_page_is_valid_and_needs_nothing_else(real):
    run = real["FedAS"]
    text = report(RunFolder.read(run.folder))
    found = checked(text)
    assert len(found.ids) == len(set(found.ids))
    own = {f"#{name}" for name in found.ids}
    assert {link for link in found.links if not link.startswith("data:image/png")} <= own
    assert set(re.findall(r"url\((.*?)\)", text)) <= own
    assert "<script" not in text
    assert "@import" not in text


def test_the_page_tells_the_run(real):
    run = real["FedAS"]
    words = " ".join(checked(report(RunFolder.read(run.folder))).words)
    accuracy = run.summary["test/personal/acc/last"]
    for said in ("FedAS", "3 rounds, seed 3", run.fingerprint, f"{100 * accuracy:.2f} %"):
        assert said in words
    assert "lightning_modules.FedAS" in words
    assert "Trace of Fisher information" in words


def test_the_summaries_of_another_main_score_are_told(tmp_path):
    run = RunFolder.read(write_run(tmp_path / "a", [[0.02, 0.04]], score="loss"))
    for table in (run.metrics, run.filled):
        table["test/personal/loss_std"] = table["test/personal/loss"] / 3
    words = " ".join(" ".join(checked(report(run)).words).split())
    assert "worst tenth of the clients personal models 0.0400" in words
    assert "spread of loss over clients 0.0100" in words


def test_what_the_user_wrote_is_text_and_no_markup(tmp_path):
    run = write_run(tmp_path / "<b>", [[0.5, 0.6]], method="<i>A&B", config={"x": "</pre><script>"})
    text = report(RunFolder.read(run))
    assert "<script" not in text
    assert "&lt;i&gt;A&amp;B" in text
    checked(text)


def test_an_unfinished_run_says_so_and_one_that_was_never_tested_has_no_page(tmp_path):
    run = write_run(tmp_path / "a", [[0.5]], planned=5)
    assert "unfinished: round 1 of 5" in report(RunFolder.read(run))
    with pytest.raises(RunError, match=parts("b ~ never tested")):
        report(RunFolder.read(write_run(tmp_path / "b", [[]])))


def test_clients_without_training_or_test_have_strokes(tmp_path):
    """The second joins later, so its result cannot be discarded; the third was never tested."""
    run = write_run(tmp_path / "a", [[0.5, 0.5]], columns={"discarded": [[False, None]]})
    partition = json.loads((run / "partition.json").read_text())
    (run / "partition.json").write_text(json.dumps({**partition, "num_clients": 3}))
    text = report(RunFolder.read(run))
    assert "<th>discarded</th>" not in text
    assert "<tr><td>2</td><td>-</td>" in text


@pytest.mark.parametrize(("accuracy", "verdict"), [(0.55, True), (0.9, False)])
def test_a_run_that_has_learnt_nothing_is_seen(tmp_path, accuracy, verdict):
    """Two of four and 6 of 10 samples have the client's most frequent of five labels."""
    labels = [[2, 1, 1, 0, 0], [0, 6, 4, 0, 0]]
    run = RunFolder.read(write_run(tmp_path / "a", [[accuracy, accuracy]], labels=labels))
    text = report(run)
    said = (
        "would be 20.00 % (chance, 5 classes) and 55.00 % (each client&#39;s most frequent label)"
    )
    assert said in text
    assert ("it has learnt nothing yet" in text) == verdict
    assert levels(run, "test/global/acc")["most frequent label"] == pytest.approx(0.425)
    assert levels(run, "test/pooled/acc")["most frequent label"] == pytest.approx(0.5)
    assert levels(run, "test/personal/loss") == {}
