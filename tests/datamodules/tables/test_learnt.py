"""Tables of clients that join later are read with what the run learnt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from datamodules import IID, HeartDisease, TabularData, TimeSeries
from datamodules.tables.learnt import LearntTable
from tests.helpers.data import adopted, batch
from tests.helpers.messages import parts

# Ages 1 and 3 train and 9 is tested on (mean 2, deviation 1), as the time column says.
OLD = "age,kind,y,who,t\n1,a,no,x,0\n3,b,yes,x,1\n9,b,no,x,2\n"
OPTIONS = {"time_column": "t", "client_column": "who", "test_protocol": "future"}
# As many clients as one, whatever the table says.
ALONE = {"num_clients": 1, "partition": IID()}


@pytest.fixture
def table(write):
    def table(text=OLD, name="old.csv", **options):
        return TabularData(write(text, name), "y", **{**OPTIONS, **options})

    return table


@pytest.fixture
def read(table):
    def read(text, old=OLD, **options):
        """Return other data as a run on the old ones reads them."""
        return adopted(table(old, **options), table(text, "new.csv", **options))

    return read


def everything(data, client=0):
    train, test = (batch(data, client, name) for name in ("train", "test"))
    return torch.cat([train.x, test.x]), torch.cat([train.y, test.y])


def test_moments_categories_and_classes_are_the_runs(read):
    """By hand: (age - 2) / 1, categories a and b, and "yes" stays class 1 though it is alone."""
    # Other columns in another order; an age is missing, and c is a new kind.
    text = "t,y,colour,kind,age\n0,yes,red,b,4\n1,yes,red,c,\n2,yes,red,a,2\n"
    with pytest.warns(UserWarning, match=parts("new.csv: 1 rows ~ 'kind' ~ (c) ~ missing")):
        new = read(text, standardise="train", missing="mean")
    x, y = everything(new)
    assert x.tolist() == [[2, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert y.tolist() == [1, 1, 1]
    assert new.class_names == ["no", "yes"]
    # No column names the clients: all rows are one client's.
    assert new.num_clients == 1


def test_each_clients_own_moments_stay_its_own(read):
    text = "age,kind,y,who,t\n4,a,no,v,0\n8,a,no,v,1\n6,a,no,v,2\n"
    x, _ = everything(read(text, standardise="client"))
    assert x[:, 0].tolist() == [-1, 1, 0]


def test_classes_that_are_numbers_are_compared_as_numbers(read):
    old = "x,y,who,t\n1,0.5,a,0\n2,1,a,1\n3,2,a,2\n4,2,a,3\n"
    new = read("x,y,who,t\n1,2,a,0\n2,1,a,1\n3,2,a,2\n4,1,a,3\n", old, task="classification")
    assert everything(new)[1].tolist() == [2, 1, 2, 1]


def test_a_category_of_leading_zeros_is_compared_as_a_text(read):
    """Only 007 is in the training samples, so a later 7 is new."""
    rows = "kind,y,t\n007,no,0\n008,yes,1\n8,yes,2\n7,no,3\n"
    with pytest.warns(UserWarning, match=parts("new.csv: 1 rows ~ 'kind' ~ (7)")):
        new = read(rows, rows, categories=["kind"], client_column=None, **ALONE)
    x, _ = everything(new)
    assert x.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]


ANSWERS = {
    "words": (["yes", "no", "perhaps"], "yes", {"yes"}),
    "many": (["a", "b", "c", "d", "e", "f"], ["a", "f"], {"a", "f"}),
    "numbers": (["2", "0", "1"], [2], {"2"}),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_each_value_of_a_binary_task_keeps_its_class_and_no_other_has_one(read, case):
    values, positive, marked = ANSWERS[case]
    negative = [v for v in values if v not in map(str, np.atleast_1d(positive))]

    def answers(given):
        rows = "".join(f"{n},{value},a,{n}\n" for n, value in enumerate(2 * given))
        return f"x,y,who,t\n{rows}"

    options = {"old": answers(values), "task": "binary", "positive": positive, "negative": negative}
    for some in (values[1:], values[:1]):
        new = read(answers(some), **options)
        assert everything(new)[1].tolist() == [v in marked for v in 2 * some]
    for other in ("ja", "3"):
        with pytest.raises(ValueError, match=parts(f"line 3, column 'y': '{other}' ~ class")):
            read(answers([values[0], other]), **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,kind,y,who,t\n1,a,maybe,v,0\n3,a,no,v,1\n", "line 2, column 'y': 'maybe' ~ no, yes"),
        ("kind,y,who,t\na,no,v,0\na,no,v,1\n", "new.csv ~ 'age' ~ kind, y, who, t"),
        ("age,kind,y,who,t\nold,a,no,v,0\n3,a,no,v,1\n", "column 'age': 'old' ~ categories"),
        ("age,kind,y,who,t\n1,a,no,v,0\n3,a,no,u,1\n4,a,no,u,2\n", "v ~ 1 samples"),
    ],
    ids=["class", "column", "word", "one"],
)
def test_what_cannot_be_read_as_the_run_read_its_data_is_refused(read, text, message):
    with pytest.raises(ValueError, match=parts(message)):
        read(text, standardise="train")


def test_series_are_standardised_by_the_runs_moments(write):
    """By hand: 1 and 3 train, and so a value v becomes v - 2; predictions are in its units."""
    rows = "".join(f"a,{value}\n" for value in (1, 3, 9))
    options = {"client_column": "who", "past": 1, "test_fraction": 0.4}
    run = TimeSeries(write(f"who,v\n{rows}", "old.csv"), "v", **options)
    text = "who,v\n" + "".join(f"b,{value}\n" for value in (5, 6, 7))
    new = adopted(run, TimeSeries(write(text, "new.csv"), "v", **options))
    x, _ = everything(new)
    assert x.flatten().tolist() == [3, 4]
    assert run.task == new.task


def test_a_fifth_hospital_brings_a_table_with_a_header(write):
    """No file of the four hospitals is needed for it."""
    head = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak"
    features = dict.fromkeys(head.split(",")) | {"cp": ["1", "4"], "restecg": ["0"]}
    moments, classes = {"x": ([0.0] * 11, [1.0] * 11)}, [["0"], ["1", "2", "3", "4"]]
    learnt = LearntTable("Binary", ["healthy", "ill"], [], moments, features, classes)
    rows = [f"{age},1,4,120,0,0,0,140,0,{age / 10},{age % 3},?" for age in range(50, 58)]
    text = f"{head},num,slope\n" + "\n".join(rows) + "\n"
    new = HeartDisease(write(text, "fifth.csv"), test_protocol="matched")
    new.adopt(learnt.content())
    new.setup()
    x, y = everything(new)
    assert x[:, :4].tolist() == [[age, 1, 0, 1] for age in x[:, 0].tolist()]
    assert y.tolist() == [int(age % 3 > 0) for age in x[:, 0].tolist()]


def test_damaged_transforms_are_refused(table):
    data = table(standardise="train")
    sound = data.transforms()
    damage = [("format", "other"), ("task", 3), ("class_names", "no"), ("class_names", [1])]
    damage += [("features", {"age": 3}), ("features", []), ("class_weights", ["1"])]
    damage += [("class_values", [["no"]]), ("features", {"kind": ["x"] * 1001})]
    damage += [("moments", {"x": [[value] * 3]}) for value in (float("nan"), 10**400)]
    for name, value in (*damage, ("moments", None)):
        with pytest.raises(ValueError, match=name):
            data.adopt({**sound, name: value})
    fewer = replace(LearntTable.of(sound), moments={"x": ([1.0], [1.0])}).content()
    new = table(standardise="train")
    new.adopt(fewer)
    with pytest.raises(ValueError, match=parts("moments ~ 3 columns of x")):
        new.setup()


def test_a_table_of_many_columns_is_read_in_time_that_grows_as_they_do(write):
    """Comparing the names in pairs would take minutes."""
    names = [f"c{n}" for n in range(20_000)]
    cells = ",".join("1" * len(names))
    file = write(f"{','.join(names)},y,who\n{cells},no,a\n{cells},yes,a\n", "wide.csv")
    assert len(TabularData(file, "y", client_column="who")._used.columns) == 20_002


@pytest.mark.parametrize("how", ["none", "train"])
@pytest.mark.parametrize("missing", ["refuse", "mean"])
def test_a_number_that_is_not_finite_as_an_input_is_refused(read, how, missing):
    """1e308 is finite in a table and infinite in a network: it is named with line and column."""
    text = "age,kind,y,who,t\n1e308,a,no,x,0\n3,b,yes,x,1\n9,b,no,x,2\n"
    with pytest.raises(ValueError, match=parts("line 2, column 'age': '1e308' is too large")):
        everything(read(text, standardise=how, missing=missing))


def test_a_deviation_that_makes_inputs_infinite_is_refused(table):
    """Of 3 and 9, by a run's file in which ages deviate by 1e-300."""
    content = table(standardise="train").transforms()
    content["moments"]["x"][1][0] = 1e-300
    new = table(standardise="train")
    new.adopt(content)
    with pytest.raises(ValueError, match=parts("after standardisation ~ not finite ~ sample 0")):
        new.setup()
