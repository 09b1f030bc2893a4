"""The tables that there are: every cell parses, and finds the number that its paper reports."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from pfl.extras.papers import reported
from pfl.extras.papers.agreement import half_width
from pfl.extras.papers.cells import expand
from pfl.extras.papers.plan import parse, plan
from pfl.extras.papers.reader import read
from pfl.extras.papers.render import _is_share
from pfl.results.statistics import Estimate
from tests.test_configs import built

ROOT = Path(__file__).parents[3]
FILES = (path for home in ("configs", "examples") for path in ROOT.glob(f"{home}/tables/*.yaml"))
TABLES = sorted(path.relative_to(ROOT) for path in FILES)
every_table = pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
# Tables of which no paper prints numbers, and one that repeats the numbers of another.
PICTURES = {file.stem for file in TABLES} - {
    *("fedas_table2", "fedas_table3", "fedas_table4", "pfakd_table1", "pfakd_table2"),
    *("univarfl_table1", "univarfl_table2", "pfedvem_table1", "pfedvem_table2", "pfedvem_table3"),
    *("fedsimsup_table1", "fedsimsup_table2", "fedsimsup_table3", "fedsimsup_table4"),
    *("pfakd_networks", "pfakd_table3"),
}
REPEATED = {"pfakd_networks"}


pytestmark = pytest.mark.usefixtures("_in_the_repository")


@cache
def described(file):
    return read(file)


def telling_cells():
    """Of each table the first cell, and enough others for every word of any to be among them."""
    seen = set()
    for file in TABLES:
        cells = [cell for cell in expand(described(file)) if cell.skip is None]
        for number, cell in enumerate(cells):
            if number == 0 or not seen.issuperset(cell.words):
                seen.update(cell.words)
                yield file, cell


def names_of(table, cells):
    """Names of the runs of some cells, at the table's first seed."""
    return set(plan(table, cells, table.seeds[:1]).runs)


def test_the_example_of_the_documentation_is_a_part_of_the_table(tmp_path):
    text = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    (tmp_path / "t").mkdir()
    file = tmp_path / "t" / "t.yaml"
    file.write_text(text.split("```yaml")[1].split("```")[0], encoding="utf-8")
    shutil.copy("configs/fedas_cifar10.yaml", tmp_path)
    example = names_of(read(file), expand(read(file)))
    whole = described(Path("configs", "tables", "fedas_table4.yaml"))
    cells = expand(whole, ["PA alone", "PA and CS"], ["0.2", "1.0"])
    assert example == names_of(whole, cells)


@pytest.mark.parametrize(("name", "share"), [("later_digits", True), ("fifth_hospital", False)])
def test_gaps_are_shown_as_the_score_of_their_table(name, share):
    """Accuracies in per cent, and areas under curves as fractions."""
    assert _is_share("gap/sample", described(Path("configs", "tables", f"{name}.yaml"))) == share


@every_table
def test_the_first_line_is_the_command(file):
    assert file.read_text(encoding="utf-8").splitlines()[0] == f"# pfl table {file}"


@every_table
def test_every_number_of_the_paper_is_found_once(file):
    """But PFAKD's number of Local is that of three cells; of a picture none is looked for."""
    cells = [cell for cell in expand(described(file)) if not _repeats(cell)]
    found = [cell.reported for cell in cells if cell.reported is not None]
    if file.stem in PICTURES:
        assert not found
        return
    if file.stem in REPEATED:
        assert found
        return
    paper = described(file).common.reported
    rows = [row for row in reported._rows() if paper.items() <= row.items()]
    if file.stem == "pfakd_table1":
        rows += 2 * [row for row in rows if row["method"] == "Local"]
    printed = [f"{number.unit.factor * number.value:.{number.unit.digits}f}" for number in found]
    assert sorted(printed) == sorted(row["value"] for row in rows)


def _repeats(cell):
    """Columns of another partition or network repeat the numbers beside them."""
    return any(word in label for _, label in cell.column for word in ("by client", "small CNN"))


@pytest.mark.parametrize(
    ("stem", "row", "column", "value"),
    [
        # As the papers print them.
        ("fedas_table3", "FedAS", {"beta": "0.1", "P": "1.0"}, "91.03"),
        ("fedas_table4", "PA and CS", {"P": "0.4"}, "90.60"),
        ("fedsimsup_table2", "FedAs", {"data": "CIFAR-100", "alpha": "0.5", "n": "50"}, "0.342"),
        ("pfakd_table1", "Local", {"data": "CIFAR-10", "E": "20"}, "68.70"),
        ("pfedvem_table1", "pFedVEM GM", {"data": "SUN397", "J": "200"}, "74.3"),
        ("pfedvem_table3", "pFedVEM", {"sizes": "equal sizes"}, "60.7"),
        ("univarfl_table1", "UniVarFL", {"data": "STL-10 mild"}, "59.9"),
    ],
)
def test_the_number_is_the_right_one(stem, row, column, value):
    cells = expand(described(Path("configs", "tables", f"{stem}.yaml")))
    (cell,) = [c for c in cells if c.row == row and dict(c.column) == column]
    unit = cell.reported.unit
    assert f"{unit.factor * cell.reported.value:.{unit.digits}f}" == value


@pytest.mark.long
def test_every_configuration_file_and_every_setting_parses_and_builds():
    """Two hundred cells are parsed and built as ``pfl fit`` does it: up to half a minute."""
    chosen = list(telling_cells())
    assert {file for file, _ in chosen} == set(TABLES)
    for file, cell in chosen:
        found = described(file)
        experiment = parse(found, cell)
        values = experiment.values
        assert built(experiment).plan()
        assert experiment.loop.rounds >= 1
        for key in (*found.seed_keys, *(found.scaling if cell.row == "FedSimSup" else ())):
            assert values.get(key) is not None, (cell.label, key)


@pytest.mark.slow
@every_table
def test_every_cell_parses(file):
    assert names_of(described(file), expand(described(file)))


def test_tables_share_their_runs():
    """The picture of data sizes is of the runs of Table 1, as its file says; PM and GM are one."""
    first = Path("configs", "tables", "pfedvem_table1.yaml")
    picture = Path("configs", "tables", "pfedvem_data_size.yaml")
    rows = ["Local PM", "FedRep PM", "pFedMe PM", "pFedMe GM", "pFedVEM PM", "pFedVEM GM"]
    cells = expand(described(first), rows, ["CIFAR-100", "J=100"])
    rows = ["Local", "FedRep", "pFedMe", "pFedVEM"]
    drawn = expand(described(picture), rows, ["CIFAR-100", "J=100"])
    assert names_of(described(picture), drawn) == names_of(described(first), cells)


def test_the_table_of_reported_numbers_is_well_formed():
    rows = reported._rows()
    assert len(rows) > 600
    assert {*rows[0]} == {*reported.KEYS, "metric", "value", "spread"}
    assert {row["metric"] for row in rows} <= {*reported._FACTORS}
    keys = [tuple(row[key] for key in reported.KEYS) for row in rows]
    assert len(set(keys)) == len(keys)


def test_a_printed_error_of_zero_stands_for_half_a_unit_of_its_last_digit():
    """84.6 ± 0.0 is 84.6 ± 0.05; one run has 2.776 sqrt(6) 0.05 = 0.34."""
    wanted = {"paper": "pFedVEM", "dataset": "Fashion-MNIST", "clients": "200"}
    found = reported.find({**wanted, "method": "Scaffold"})
    assert (found.value, found.error) == (0.846, 0)
    printed = reported.printed(found.paper, found.value, found.error)
    assert printed.error == pytest.approx(0.0005)
    assert half_width([printed.spread], 1, printed.count) == pytest.approx(0.0034, abs=1e-5)
    # The same ± as a standard deviation is smaller by the root of the five runs.
    other = reported.printed(found.paper, found.value, found.error, "standard deviation")
    assert other.spread.sd == pytest.approx(printed.error)
    # Of a paper that says nothing of its runs, it is one without a deviation.
    assert reported.printed("unknown", 0.846, 0.01) == Estimate(0.846, 1, None)
