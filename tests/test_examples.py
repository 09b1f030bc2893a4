"""Every script of ``examples`` runs, and its numbers show what it says."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from examples.notebooks.__main__ import is_stale, read
from pfl.engines.sequential import SequentialEngine
from pfl.testing.federation import ToyFederation
from pfl.testing.toy import ToyData, ToyNet
from tests.helpers.federation import contexts

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("notebooks/*.ipynb"))
DOCS = EXAMPLES.parent / "docs"
SHOWS = {
    "own_data": lambda names: names["run"].summary["test/personal/acc/last"] > 0.7,
    "own_network": lambda names: names["run"].summary["test/personal/acc/last"] > 0.5,
    "own_task": lambda names: (
        names["run"].history[-1]["test/personal/mae"] < names["run"].history[0]["test/personal/mae"]
    ),
    "own_metric": lambda names: 0.3 < names["run"].summary["test/personal/certainty/last"] < 1,
    # The average over rounds is what the run goes on with, and it ends before its last round.
    "own_loop": lambda names: (
        names["run"].server.shared is names["average"] and names["run"].round < 10
    ),
    # Own networks withstand what the mean does not, and multi-Krum restores both.
    "robust": lambda names: (
        names["scores"]["mean"][0] < names["scores"]["mean"][1] < names["scores"]["multi-Krum"][1]
        and min(names["scores"]["multi-Krum"]) > max(names["scores"]["no attack"]) - 5
    ),
    # Of two rounds, the first sends means alone.
    "two_exchanges": lambda names: (
        names["run"].summary["test/personal/acc/last"] > 0.7
        and len({one["comm/bytes_up"] for one in names["run"].history}) == 2
    ),
    "fine_tune": lambda names: names["after"] > names["before"],
    "fedas_as_released": lambda names: _hands_on(names),
}


def _hands_on(names):
    """Check FedAS as released by hand: one weight w = 2, and no training after the alignment.

    Both clients have x = 1 and 3 of one class, features 2 and 6, mean 4; the third sample, 100, is
    left out. The slope of ((w - 4)^2 + (3 w - 4)^2) / 2 is 10 w - 16: one step of 0.01 gives 1.96.
    The second client starts there: 1.96 - 0.01 * 3.6 = 1.924.
    """
    one = torch.tensor([[1.0], [3.0], [100.0]]), torch.zeros(3, dtype=torch.int64)
    data = ToyData([one, one], outputs=2, batch_size=2)
    data.shuffle, data.drop_last = False, True
    weights = {}
    for engine in (SequentialEngine(), names["HandingOn"]()):
        net = ToyNet(nn.Linear(1, 1, bias=False), nn.Linear(1, 2))
        nn.init.constant_(net.backbone.weight, 2)
        options = {"batch_size": 2, "align_batch": 2, "epochs": 0, "synchronisation": False}
        federation = ToyFederation(names["FedASAsReleased"](net, **options), data)
        engine.setup(contexts(federation.context.module, data))
        results = engine.train(federation.jobs())
        found = [result.kept["previous.module.weight"].item() for result in results]
        weights[type(engine).__name__] = found
        assert federation.state.shared["net.backbone.weight"].item() == 2
    assert weights["SequentialEngine"] == pytest.approx([1.96, 1.96])
    assert weights["HandingOn"] == pytest.approx([1.96, 1.924])
    return len({*names["accuracy"].values()}) == 2


def test_every_script_is_known():
    """``my_method`` is trained by the commands that the documents show, others have tests here."""
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("examples/*")}
    known = {*SHOWS, *tested, "__init__", "my_method"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= known


def test_every_script_stands_on_a_page():
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    assert [name for name in SHOWS if f":load: ../examples/{name}.py" not in pages] == []


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SHOWS[name](names)
    assert not [*tmp_path.iterdir()], "an example leaves nothing behind"


def test_the_outputs_of_every_notebook_are_of_its_cells():
    """Otherwise: ``python -m examples.notebooks``."""
    told = [read(path) for path in NOTEBOOKS]
    assert len(told) == 4
    stale = [path.name for path, one in zip(NOTEBOOKS, told, strict=True) if is_stale(one)]
    assert stale == []
    for one in told:
        outputs = [out for cell in one["cells"] for out in cell.get("outputs", [])]
        assert outputs
        said = json.dumps(outputs)
        assert "ipywidgets" not in said
        assert "<iframe" not in said, "a page that is not stored with the notebook"
        # What a command returns is no result.
        assert {"text/plain": "0"} not in [out.get("data") for out in outputs]


def test_a_notebook_with_another_cell_is_stale():
    notebook = read(NOTEBOOKS[0])
    notebook["cells"][0]["source"] += " "
    assert is_stale(notebook)


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_every_notebook_runs(notebook, tmp_path, monkeypatch, capsys):
    """It trains up to nine federations of the digits: some ten seconds."""
    pytest.importorskip("IPython")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace = {"__name__": "notebook"}
    for cell in read(notebook)["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), namespace)
    assert capsys.readouterr().out
