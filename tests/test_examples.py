"""Every script of ``examples`` runs, and its numbers show what it says."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
DOCS = EXAMPLES.parent / "docs"
SHOWS = {
    "own_data": lambda names: names["run"].summary["test/personal/acc/last"] > 0.7,
    "own_network": lambda names: names["run"].summary["test/personal/acc/last"] > 0.5,
    "own_metric": lambda names: 0.3 < names["run"].summary["test/personal/certainty/last"] < 1,
    # The average over rounds is what the run goes on with, and it ends before its last round.
    "own_loop": lambda names: (
        names["run"].server.shared is names["average"] and names["run"].round < 10
    ),
    "fine_tune": lambda names: names["after"] > names["before"],
    "compare": lambda names: names["clients"].p < 0.05 and names["clients"].difference > 0,
}


def test_every_script_is_known():
    """``my_method`` is trained by the commands that the documents show."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHOWS, "__init__", "my_method"}


def test_every_script_stands_on_a_page():
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    assert [name for name in SHOWS if f":load: ../examples/{name}.py" not in pages] == []


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")
    assert SHOWS[name](names)
    assert not [*tmp_path.iterdir()], "an example leaves nothing behind"
