"""Tables of clients that join a run: what is read of them, and what is refused by name."""

from __future__ import annotations

import pytest
import torch

from datamodules import TabularData
from tests.helpers.messages import parts


def table(path, extra=0, **changed):
    """Write a table of two hospitals; ``changed`` has other cells of row 5, by column."""
    with path.open("w") as lines:
        columns = ["age", "kind", "died", "hospital", *(f"x{n}" for n in range(extra))]
        lines.write(",".join(columns) + "\n")
        for row in range(24):
            age = 42 + (7 * row) % 17
            cells = {"age": age, "kind": "ab"[row % 2], "died": age > 50, "hospital": f"h{row % 2}"}
            cells |= changed if row == 5 else {}
            lines.write(",".join(str(cells.get(name, 1)) for name in columns) + "\n")
    return str(path)


def data(path):
    return TabularData(path, "died", client_column="hospital", standardise="train")


@pytest.fixture
def learnt(tmp_path):
    found = data(table(tmp_path / "run.csv", sex=1))
    found.setup()
    return found.transforms()


def joined(path, learnt):
    found = data(path)
    found.adopt(learnt)
    found.setup()
    return found


def test_columns_that_the_run_did_not_use_are_not_read(tmp_path, learnt):
    """Each costs as much as many cells; the inputs are the same."""
    wide = joined(table(tmp_path / "wide.csv", extra=300), learnt)
    few = joined(table(tmp_path / "few.csv"), learnt)
    assert [one.name for one in wide.reading.columns] == ["age", "kind", "died", "hospital"]
    rows = torch.arange(3)
    assert torch.equal(wide.split(0, "train").batch(rows).x, few.split(0, "train").batch(rows).x)


def test_lines_of_unread_columns_have_the_right_number_of_values(tmp_path, learnt):
    path = table(tmp_path / "wide.csv", extra=3)
    with open(path, "a") as lines:
        lines.write("50,a,True,h0,1,1\n")
    with pytest.raises(ValueError, match=parts("line 26: 6 values for 7 columns")):
        joined(path, learnt)


@pytest.mark.parametrize("value", ["1e308", "-3.5e38"])
def test_a_number_too_large_is_named_with_its_line_and_column(value, tmp_path, learnt):
    path = table(tmp_path / "large.csv", age=value)
    what = f"large.csv, line 7, column 'age': '{value}' is too large for single precision"
    with pytest.raises(ValueError, match=parts(what)):
        joined(path, learnt)
    with pytest.raises(ValueError, match=parts(what)):
        data(path).setup()


@pytest.mark.parametrize("deviation", [0.0, -1.0, "1", None])
def test_a_scale_that_is_none_is_refused(deviation, learnt):
    means, deviations = learnt["moments"]["x"]
    wrong = {**learnt, "moments": {"x": [means, [deviation, *deviations[1:]]]}}
    with pytest.raises(ValueError, match=parts("moments.x.1.0: ~ got")):
        data("any.csv").adopt(wrong)


def test_equal_values_have_a_scale_of_one(tmp_path):
    path = tmp_path / "equal.csv"
    table(path)
    text = path.read_text().splitlines()
    path.write_text("\n".join([f"{text[0]},same", *(f"{line},7" for line in text[1:])]))
    found = data(str(path))
    found.setup()
    learnt = found.transforms()
    place = [*learnt["features"]].index("same") + 1  # kind is two columns
    assert learnt["moments"]["x"][1][place] == 1.0
    again = joined(str(path), learnt)
    rows = torch.arange(3)
    assert not again.split(0, "train").batch(rows).x[:, place].any()
