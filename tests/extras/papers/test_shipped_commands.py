"""The commands of docs/papers.md: each is about files that exist, and takes a round.

What they set is parsed, and their methods are built, in ``test_shipped_tables.py``; points of
sweeps in ``tests/test_sweeps.py``. The round is on small files in the published layouts; of all
tables it is slow: ``pytest -m slow tests/extras/papers``.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torchvision

from pfl.cli.commands import parser as parser_of
from pfl.extras.papers.cells import expand
from pfl.extras.papers.plan import parse, plan
from pfl.extras.papers.reader import read
from pfl.results.runs import RunFolder
from tests.helpers import made_files

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
TABLES = sorted(
    file for home in ("configs", "examples") for file in ROOT.glob(f"{home}/tables/*.yaml")
)
SMALLEST = "data.init_args.partition.init_args.min_samples"
# A round of these is quick, and each shows something that no other has.
QUICK = (
    "configs/tables/fedas_figure4a",
    "configs/tables/pfedvem_confidence",
    "examples/tables/fedsimsup_figure4",
)


def commands():
    """Return the commands of the page's tables as lists of words."""
    rows = [line.split("|")[3] for line in PAGE.splitlines() if line.startswith("| ")]
    return [shlex.split(span) for row in rows for span in re.findall(r"`([^`]+)`", row)]


def tables():
    """Return the file of each command that is about a table, and its flags."""
    found = [words for words in commands() if words[0] != "pfl"]
    home = ROOT / "configs" / "tables"
    files = [ROOT / one[0] if "/" in one[0] else home / f"{one[0]}.yaml" for one in found]
    return [(file, words[1:]) for file, words in zip(files, found, strict=True)]


def test_every_table_and_every_search_is_on_the_page():
    elsewhere = {
        **{"heart": "heart", "males": "wages", "mnist1d": "choosing"},
        **{"fifth_hospital": "heart", "later_digits": "joining"},
        **{"later_wisdm": "joining", "digits": "methods/index"},
        **{"organs": "organs", "differences": "choosing"},
    }
    for name, page in elsewhere.items():
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert f"configs/tables/{name}.yaml" in text
    told = {ROOT / "configs" / "tables" / f"{name}.yaml" for name in elsewhere}
    assert {file for file, _ in tables()} == set(TABLES) - told
    searched = {words[2] for words in commands() if words[:2] == ["pfl", "sweep"]}
    files = {f"sweeps/{path.name}" for path in (ROOT / "sweeps").glob("*.yaml")}
    assert searched == files - {"sweeps/quickstart.yaml"}


def test_the_flags_of_the_page_fit_their_tables(monkeypatch):
    monkeypatch.chdir(ROOT)
    for file, flags in tables():
        if flags:
            options, overrides = parser_of("table").parse_known_args([str(file), *flags])
            found = read(file)
            cells = expand(found, options.rows, options.columns)
            assert not overrides or parse(found, cells[0], overrides)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    made_files.write_all(folder / "data")
    return folder


@pytest.fixture
def _with_made_files(made, monkeypatch):
    monkeypatch.chdir(made)
    # The published files have known checksums, the made ones others.
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    monkeypatch.setattr(torchvision.datasets.STL10, "_check_integrity", lambda self: True)


def play(file, cell, root):
    """Run one round of a cell; returns the columns of its metrics."""
    words = ["--loop.rounds=1", "--loop.engine=sequential", "--model.init_args.epochs=1"]
    words += ["--data.init_args.batch_size=8", f"--loop.default_root_dir={root}"]
    found = read(file)
    (run,) = plan(found, [cell], found.seeds[:1], 1, words).runs.values()
    values = run.experiment.values
    if values.get(SMALLEST) is not None:
        # So few images cannot be divided among many clients as unequally as the papers' are.
        values[SMALLEST] = 0
    if str(values.get("model.init_args.net.class_path")).endswith(".ResNet18"):
        values["data.init_args.max_samples"] = 800
    run.make()
    folder = RunFolder.read(run.finished)
    assert folder.round == 1
    return folder.mean(cell.metric, folder.chosen(cell.at, cell.metric))


@pytest.mark.long
@pytest.mark.usefixtures("_with_made_files")
@pytest.mark.parametrize("name", QUICK)
def test_a_round_on_made_files(name, tmp_path):
    file = ROOT / f"{name}.yaml"
    cell = expand(read(file))[0]
    assert 0 <= play(file, cell, tmp_path) <= 1


@pytest.mark.slow
@pytest.mark.usefixtures("_with_made_files")
@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_a_round_of_every_table_and_set_on_made_files(file, tmp_path, subtests):
    """Of each table its last row, which is the paper's own method, in each option of an axis."""
    seen = set()
    for cell in reversed(expand(read(file))):
        told = {*cell.column} or {("row", cell.row)}
        if cell.skip is None and not told <= seen:
            seen |= told
            with subtests.test(cell=cell.label):
                assert 0 <= play(file, cell, tmp_path) <= 1
