"""The page of a run: complete, valid, and alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from pfl.results import names
from pfl.results.cited import bibliography
from pfl.results.files import RunError
from pfl.results.find import common_score
from pfl.results.learnt_nothing import levels
from pfl.results.report import report
from pfl.results.runs import RunFolder
from pfl.results.settings import group
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


def add_to(file, **entries):
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def page_of(*folders):
    return report(group([RunFolder.read(folder) for folder in folders])[0])


@pytest.mark.parametrize("several", [False, True])
def test_the_page_is_valid_and_needs_nothing_else(real, several):
    text = page_of(*(run.folder for run in [real["FedAS"], *list(real.values())[:several]]))
    found = checked(text)
    assert len(found.ids) == len(set(found.ids))
    own = {f"#{name}" for name in found.ids}
    assert {link for link in found.links if not link.startswith("data:image/png")} <= own
    assert set(re.findall(r"url\((.*?)\)", text)) <= own
    assert "<script" not in text
    assert "@import" not in text
    assert len(text) < 2_000_000
    # Scores bear words, and pictures the colours of the page.
    assert "test/" not in text
    assert not re.search(r"(fill|stroke): ?#(000000|ffffff)", text, re.IGNORECASE)
    assert text.count('svg class="wide"') == text.count('svg class="narrow"') > 0


def test_the_page_tells_the_run(real):
    run = real["FedAS"]
    words = " ".join(checked(page_of(run.folder)).words)
    accuracy = run.summary["test/personal/acc/last"]
    for said in ("FedAS", "3 rounds, seed 3", run.fingerprint, f"{100 * accuracy:.2f} %"):
        assert said in words
    assert "lightning_modules.FedAS" in words
    assert "Trace of Fisher information" in words


def test_the_summaries_of_another_main_score_are_told(tmp_path):
    run = RunFolder.read(write_run(tmp_path / "a", [[0.02, 0.04]], score="loss"))
    for table in (run.metrics, run.filled):
        table["test/personal/loss_std"] = table["test/personal/loss"] / 3
    words = " ".join(" ".join(checked(report(group([run])[0])).words).split())
    assert "worst tenth of the clients personal models 0.0400" in words
    assert "spread of loss over clients 0.0100" in words


def test_what_the_user_wrote_is_text_and_no_markup(tmp_path):
    run = write_run(tmp_path / "<b>", [[0.5, 0.6]], method="<i>A&B", config={"x": "</pre><script>"})
    text = page_of(run)
    assert "<script" not in text
    assert "&lt;i&gt;A&amp;B" in text
    checked(text)


def test_an_unfinished_run_says_so_and_one_that_was_never_tested_has_no_page(tmp_path):
    run = write_run(tmp_path / "a", [[0.5]], planned=5)
    assert "unfinished: round 1 of 5" in page_of(run)
    with pytest.raises(RunError, match=parts("b ~ never tested")):
        page_of(write_run(tmp_path / "b", [[]]))


def test_clients_without_training_or_test_have_strokes(tmp_path):
    """The second joins later, so its result cannot be discarded; the third was never tested."""
    run = write_run(tmp_path / "a", [[0.5, 0.5]], columns={"discarded": [[False, None]]})
    partition = json.loads((run / "partition.json").read_text())
    (run / "partition.json").write_text(json.dumps({**partition, "num_clients": 3}))
    text = page_of(run)
    assert "<th>discarded</th>" not in text
    assert "<tr><td>2</td><td>-</td>" in re.sub(' data-head="[^"]*"', "", text)


@pytest.mark.parametrize(("accuracy", "verdict"), [(0.55, True), (0.9, False)])
def test_a_run_that_has_learnt_nothing_is_seen(tmp_path, accuracy, verdict):
    """Two of four and 6 of 10 samples have the client's most frequent of five labels."""
    labels = [[2, 1, 1, 0, 0], [0, 6, 4, 0, 0]]
    run = RunFolder.read(write_run(tmp_path / "a", [[accuracy, accuracy]], labels=labels))
    text = report(group([run])[0])
    said = (
        "would be 20.00 % (chance, 5 classes) and 55.00 % (each client&#39;s most frequent label)"
    )
    assert said in text
    assert ("it has learnt nothing yet" in text) == verdict
    assert levels(run, "test/global/acc")["most frequent label"] == pytest.approx(0.425)
    assert levels(run, "test/pooled/acc")["most frequent label"] == pytest.approx(0.5)
    assert levels(run, "test/personal/loss") == {}


def test_several_runs_stand_beside_each_other(tmp_path):
    """The worst clients are those of the means over settings; costs are means over runs."""
    about = {"name": "FedA", "apart": "it `waits`", "bibtex": "@article{feda}"}
    told = {"config": {"model": {"class_path": "A"}}, "method": "A"}
    folders = [
        write_run(tmp_path / "a1", [[0.9, 0.5, 0.7]], seed=1, **told),
        write_run(tmp_path / "a2", [[0.7, 0.3, 0.7]], seed=2, **told),
        write_run(tmp_path / "b1", [[0.2, 0.5, 0.7]], "B", config={"model": {"class_path": "B"}}),
    ]
    for folder in folders[:2]:
        add_to(folder / "environment.json", method=about)
    words = " ".join(" ".join(checked(page_of(*folders)).words).split())
    assert "A, B" in words
    assert "2 settings, 3 runs, seeds 1, 2, judged by test accuracy, personal models" in words
    assert "Test accuracy (personal models, last round)" in words
    assert "Paired over clients, against A" in words
    for row in ("1 20 40.00 50.00", "0 10 80.00 20.00", "2 30 70.00 70.00"):
        assert row in words
    assert words.index("1 20 40.00") < words.index("0 10 80.00") < words.index("2 30 70.00")
    assert "FedA It waits." in words
    assert words.count("@article{feda}") == 1
    assert "for seed in 1; do pfl fit --config B.yaml --seed=$seed; done" in words


def test_two_classes_are_judged_by_auroc(tmp_path):
    """It is the score of a comparison too, of runs that all have it."""
    columns = {"test/personal/auroc": [[0.8, 0.9]]}
    folder = write_run(tmp_path / "a", [[0.5, 0.6]], columns=columns)
    add_to(folder / "environment.json", scores={"acc": True, "auroc": True})
    head, row = (folder / "metrics.csv").read_text().splitlines()
    (folder / "metrics.csv").write_text(f"{head},test/personal/auroc\n{row},0.85\n")
    first = RunFolder.read(folder)
    second = RunFolder.read(write_run(tmp_path / "b", [[0.5, 0.6]]))
    assert common_score([first]) == "test/personal/auroc"
    assert common_score([first, second]) == "test/personal/acc"
    words = " ".join(" ".join(checked(report(group([first])[0])).words).split())
    assert "judged by test AUROC, personal models" in words
    assert words.index("AUROC 0.8500") < words.index("accuracy 55.00 %")


def test_a_score_of_ones_own_has_its_own_name():
    assert names.score("test/personal/dice") == "test dice"
    assert names.score("val/global/dice_worst10@left") == (
        "validation dice of the worst tenth of the group left"
    )
    assert names.score("comm/bytes_up") == "comm/bytes_up"


def test_the_project_is_cited_as_its_file_says():
    told = yaml.safe_load(Path("CITATION.cff").read_text(encoding="utf-8"))
    title = told["title"].replace("PyTorch Lightning", "{PyTorch Lightning}")
    entry = bibliography([])
    assert f"{{{title}}}" in entry
    assert f"{{{{{told['authors'][0]['name']}}}}}" in entry
