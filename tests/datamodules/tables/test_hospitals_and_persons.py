"""Heart disease and WISDM: FLamby's patients on the real files, later windows on made-up ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datamodules import WISDM, HeartDisease
from pfl.core.task import Binary
from tests.helpers.data import batch
from tests.helpers.messages import parts

SHARED = Path(__file__).parents[3] / "shared" / "data"
HEART = SHARED / "heart"

real_heart = pytest.mark.skipif(not HEART.is_dir(), reason="no data folder beside the project")
real_wisdm = pytest.mark.skipif(
    not (SHARED / "wisdm.arff").is_file(), reason="no data folder beside the project"
)


@pytest.fixture
def hearts(tmp_path):
    """Twelve patients a hospital, of whom a third are ill; in Switzerland two."""
    rng = np.random.default_rng(0)
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        lines = []
        for patient in range(12):
            cells = rng.integers(1, 90, 13).astype(str).tolist()
            cells[2], cells[6] = str(1 + patient % 4), str(patient % 3)
            cells[11] = "?"
            ill = patient % 3 == 0 and (hospital != "switzerland" or patient < 6)
            lines.append(",".join([*cells, str(1 + patient // 3) if ill else "0"]))
        lines.append(lines[0].replace(lines[0].split(",")[0], "?", 1))
        (tmp_path / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    return tmp_path


@real_heart
def test_the_patients_are_flambys():
    data = HeartDisease(str(HEART), test_protocol="matched")
    assert data.task == Binary()
    assert data.contents.domain_names == ("cleveland", "hungarian", "switzerland", "va")
    assert data.division.sizes.tolist() == [[199, 0, 104], [172, 0, 89], [30, 0, 16], [85, 0, 45]]
    labels = data.contents.targets.labels
    found = [np.concatenate([h.train, h.test]) for h in data.division.holdings]
    assert [len(ids) for ids in found] == [303, 261, 46, 130]
    assert [round(labels[ids].mean(), 3) for ids in found] == [0.459, 0.375, 0.978, 0.777]
    # All patients that train in Switzerland are ill.
    assert [int(labels[h.test].sum()) for h in data.division.holdings] == [48, 33, 15, 35]


@real_heart
def test_a_hospitals_test_patients_are_the_rows_that_scikit_learn_draws():
    """The first test patients of Cleveland, by age and blood pressure in the file."""
    from sklearn.model_selection import train_test_split

    lines = (HEART / "processed.cleveland.data").read_text().splitlines()
    rows = [line.split(",") for line in lines]
    ill = [float(row[-1]) > 0 for row in rows]
    _, drawn = train_test_split(
        np.arange(303), test_size=0.34, train_size=0.66, random_state=43, stratify=ill
    )
    table = HeartDisease(str(HEART)).table()
    own = table.frame[table.frame["hospital"] == "cleveland"].iloc[199:]
    found = [*zip(own["age"], own["chol"], strict=True)]
    assert found == [(rows[row][0], rows[row][4]) for row in drawn]


def test_patients_with_a_missing_value_are_left_out_and_columns_are_chosen_first(hearts):
    data = HeartDisease(str(hearts), test_protocol="matched")
    assert data.division.sizes.sum() == 48
    assert "ca" not in data.table().columns
    assert data.class_names == ["healthy", "ill"]
    assert data.input_shape == (15,)  # eight numbers, four kinds of pain, three electrocardiograms


def test_a_file_that_is_missing_or_damaged_is_named(hearts):
    with (hearts / "processed.va.data").open("a") as file:
        file.write("1,2,3\n")
    with pytest.raises(ValueError, match=parts("va.data, line 14: ~ 3 values ~ 14 columns")):
        HeartDisease(str(hearts)).setup()
    (hearts / "processed.va.data").unlink()
    right = "processed.va.data ~ processed.<hospital>.data ~ heart+disease.zip"
    with pytest.raises(FileNotFoundError, match=parts(right)):
        HeartDisease(str(hearts)).setup()
    with pytest.raises(FileNotFoundError, match=parts("nowhere.arff ~ cis.fordham.edu")):
        WISDM("nowhere.arff").setup()


def test_a_person_is_tested_on_the_later_windows_of_each_activity(write):
    """Person 1 walks eight windows and then sits four: the last two and the last one are tested."""
    names = "".join(f"@attribute {name} numeric\n" for name in ("UNIQUE_ID", "user", "X0", "class"))
    acts = ["walk"] * 8 + ["sit"] * 4
    rows = [f"{number},{user},{number},{act}" for user in (1, 2) for number, act in enumerate(acts)]
    file = write(f"@relation w\n{names}@data\n" + "\n".join(rows[::-1]) + "\n", "w.arff")
    data = WISDM(file, standardise="none")
    for client in (0, 1):
        held = {n: batch(data, client, n).x[:, 0].sort().values.tolist() for n in ("train", "test")}
        assert held == {"train": [0, 1, 2, 3, 4, 5, 8, 9, 10], "test": [6, 7, 11]}


@real_wisdm
def test_every_activity_that_is_tested_was_trained_by_the_same_person():
    data = WISDM(str(SHARED / "wisdm.arff"))
    labels = data.contents.targets.labels
    assert (data.num_clients, data.input_shape, len(labels)) == (36, (43,), 5418)
    assert np.bincount(labels).tolist() == [528, 1625, 306, 246, 632, 2081]
    for holding in data.division.holdings:
        assert np.isin(labels[holding.test], labels[holding.train]).all()
