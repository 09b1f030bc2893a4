"""Tables: which column is what, what training samples teach, and where a bad value stands."""

import csv
import json
import sys

import numpy as np
import pytest

from datamodules import IID, ByColumn, ByDomain, TabularData, TensorData, Unseen
from pfl.core.task import Binary, Classification, MultiLabel, Regression
from tests.helpers.data import batch, held
from tests.helpers.messages import parts

PATIENTS = """age,city,site,when,sick
10,Rome,2,2020-01-01,yes
20,Oslo,10,2020-01-02,no
30,,2,2020-01-03,no
,Rome,10,2020-01-04,yes
50,Bonn,2,2020-01-05,no
60,Bonn,10,2020-01-06,yes
"""
# Each site trains on its two earlier patients and is tested on the latest.
SITES = {
    "client_column": "site",
    "time_column": "when",
    "test_protocol": "future",
    "features": ["age", "city"],
}
WARDS = "age,ward,died\n60,b,yes\n20,a,no\n30,a,no\n70,b,no\n50,c,yes\n40,c,no\n"


@pytest.fixture
def table(write):
    def table(text=PATIENTS, num_clients=1, partition=None, target="sick", **options):
        return TabularData(write(text), target, num_clients, partition or IID(), **options)

    return table


@pytest.fixture
def sites(table):
    return lambda **options: table(num_clients=2, partition=ByDomain(), **SITES | options)


@pytest.fixture
def wards(write):
    def wards(text=WARDS, target="died", **options):
        options = {"client_column": "ward", "task": "binary", "test_fraction": 0.5, **options}
        return TabularData(write(text), target, **options)

    return wards


def inputs(data, client, name="train"):
    return batch(data, client, name).x


def ages(data, name):
    return [inputs(data, client, name)[:, 0].tolist() for client in range(data.num_clients)]


def test_words_are_classes_and_categories_in_the_order_of_the_alphabet(sites):
    """Of the cities Oslo and Rome are trained on; the patient without one has zeros."""
    data = sites(missing="mean")
    assert (data.class_names, data.input_shape) == (["no", "yes"], (3,))
    assert inputs(data, 0)[:, 1:].tolist() == [[0, 1], [0, 0]]
    assert inputs(data, 1)[:, 1:].tolist() == [[1, 0], [0, 1]]
    assert data.split(0, "train").targets.tolist() == [1, 0]
    # Nobody trains on a patient from Bonn.
    assert [inputs(data, c, "test")[:, 1:].tolist() for c in (0, 1)] == [[[0, 0]]] * 2
    assert data.blank(5).shape == (5, 3)
    # Names that are numbers stand in their order.
    assert data.contents.domain_names == ("2", "10")
    assert (held(data).tolist(), held(data, 1, "test").tolist()) == ([0, 2], [5])


def test_clients_that_are_held_out_teach_no_value(sites):
    """Without the site 10, only Rome is known, and its own patient from Rome has it too."""
    data = sites(missing="mean", unseen=Unseen(clients=["10"]))
    assert data.input_shape == (2,)
    assert inputs(data, 0)[:, 1:].tolist() == [[1], [0]]
    assert inputs(data, 1)[:, 1:].tolist() == [[0], [1]]


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["9007199254740993", "9007199254740992"], ["9007199254740992", "9007199254740993"]),
        (["2" * 20, "1" * 20], ["1" * 20, "2" * 20]),
        (["7", "007"], ["007", "7"]),
        (["1000", "1e3"], ["1000", "1e3"]),
        # As tables write numbers.
        (["10", "9.0", "9"], ["9", "10"]),
        (["10.5", "9.5"], ["9.5", "10.5"]),
        (["010", "009"], ["9", "10"]),
        ([" 10", "10", "9"], ["9", "10"]),
    ],
)
def test_different_texts_are_different_clients_classes_and_categories(table, ids, names):
    """But 9 and 9.0 are one, and numbers stand in their order."""
    rows = "".join(f"{n},{who},{who},{who}\n" for n, who in enumerate(2 * ids))
    uses = {"target": "y", "task": "classification", "client_column": "who"}
    options = {"features": ["kind"], "categories": ["kind"], **uses}
    data = table(f"n,who,kind,y\n{rows}", len(names), ByDomain(), **options)
    data.setup()
    assert [*data.client_names] == [*data.class_names] == names
    for client in range(len(names)):
        assert inputs(data, client, "test").argmax(1).unique().tolist() == [client]
        assert inputs(data, client, "test").sum(1).unique().tolist() == [1]


def test_features_are_all_columns_without_another_use(table):
    text = "a,b,c,y\n1,2,3,p\n4,5,6,q\n7,8,9,q\n"
    assert inputs(table(text, target="y"), 0).shape == (2, 3)
    some = table(text, target="y", features=["c", "a"])
    row = held(some)[0]
    assert inputs(some, 0)[0].tolist() == [3 + 3 * row, 1 + 3 * row]


def test_a_number_may_be_a_class_or_a_category(table):
    """Of 2, 10 and 9 the columns are 2, 9, 10; fractions as classes may be a mistake."""
    data = table("code,y\n" + "2,p\n10,q\n9,q\n" * 2, target="y", categories=["code"])
    assert inputs(data, 0).tolist() == np.eye(3)[[0, 2, 1] * 2][held(data)].tolist()
    data = table("x,y\n" + "1,1.5\n2,1.2\n" * 2, target="y", task="classification")
    with pytest.warns(UserWarning, match=parts("'y' ~ fractional ~ each of the 2 ~ regression")):
        data.setup()
    assert data.class_names == ["1.2", "1.5"]


@pytest.mark.parametrize(
    ("standardise", "train", "test"),
    [
        # The mean of the ages that train, 10, 20 and 30, is 20.
        ("none", [[10, 30], [20, 20]], [[50], [60]]),
        # Their variance is 200 / 3.
        ("train", [[-1.2247, 1.2247], [0, 0]], [[3.6742], [4.8990]]),
        # 20 and deviation 10 at one site; 20, from one patient, and no deviation at the other.
        ("client", [[-1, 1], [0, 0]], [[3], [40]]),
    ],
)
def test_only_training_samples_are_looked_at(sites, standardise, train, test):
    data = sites(missing="mean", standardise=standardise)
    for found, expected in ((ages(data, "train"), train), (ages(data, "test"), test)):
        assert np.array(found) == pytest.approx(np.array(expected), abs=1e-4)
    assert inputs(data, 0)[:, 1:].tolist() == [[0, 1], [0, 0]]


def test_a_client_without_any_value_of_its_own_takes_everybodys(sites):
    """One site trains on 10 and 30, mean 20 and deviation 10; the other is tested on 60."""
    text = PATIENTS.replace("20,Oslo", ",Oslo")
    data = sites(text=text, missing="mean", standardise="client")
    assert (ages(data, "train")[1], ages(data, "test")[1]) == ([0, 0], [4])


@pytest.mark.parametrize(("standardise", "expected"), [("train", 1), ("client", 1), ("none", 99.6)])
def test_a_column_of_equal_values_is_only_centred(table, standardise, expected):
    """The mean of three temperatures of 98.6 is rounded; the last patient has a degree more."""
    text = "heat,sick,when\n98.6,a,0\n98.6,a,1\n98.6,a,2\n99.6,b,3\n"
    options = {"test_protocol": "future", "time_column": "when", "features": ["heat"]}
    data = table(text, standardise=standardise, **options)
    assert ages(data, "test") == [[pytest.approx(expected, abs=1e-5)]]


def test_rows_with_missing_values_are_dropped(table):
    data = table(missing="drop", features=["age", "city"])
    assert len(data.contents.targets) == 4
    assert sorted(ages(data, "train")[0] + ages(data, "test")[0]) == [10, 20, 50, 60]
    # Missing where nobody looks.
    assert len(table(missing="drop", features=["site"]).contents.targets) == 6


def test_columns_with_a_number_in_every_row_order_clients(table):
    options = {"features": ["age"], "missing": "mean"}
    data = table(num_clients=3, partition=ByColumn("site"), **options)
    holdings = [{*h.train.tolist(), *h.test.tolist()} for h in data.division.holdings]
    assert holdings == [{0, 2}, {1, 4}, {3, 5}]
    with pytest.raises(ValueError, match=parts("'age' ~ site")):
        table(partition=ByColumn("age"), **options).setup()


@pytest.mark.parametrize(
    ("target", "task", "kind", "y"),
    [
        ("a", "regression", Regression(), [[0], [2], [1]]),
        (["c", "a"], "regression", Regression(), [[1, 0], [0, 2], [1, 1]]),
        (["c", "d"], "multilabel", MultiLabel(), [[1, 1], [0, 1], [1, 0]]),
        ("a", "classification", Classification(), [0, 2, 1]),
        ("c", "binary", Binary(), [1, 0, 1]),
        ("word", None, Classification(), [1, 0, 1]),
    ],
)
def test_numbers_are_predicted_as_the_task_says(table, target, task, kind, y):
    text = "a,c,d,word,x\n0,1,1,two,1\n2,0,1,one,2\n1,1,0,two,3\n"
    data = table(text, target=target, task=task, features=["x"])
    assert data.task == kind
    for name in ("train", "test"):
        assert data.split(0, name).targets.tolist() == [y[i] for i in held(data, 0, name)]


NO_SHARED_TESTS = {"standardise": "client", "test_protocol": "global"}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,y\n1,p\n2,q,r\n", {}, "csv, line 3: 3 values for 2 columns ~ needs quotes"),
        ("a,b,y\n1,2,p\n\n2,q\n", {}, "csv, line 4: 2 values ~ 3 columns"),
        ('a,b,y\n1,"\n\n",p\n2,q\n', {}, "csv, line 5: 2 values for 3 columns"),
        (b"PK\x03\x04 a,y\n1,p\n", {"features": ["a"]}, "t.csv"),
        (b"a,y\n1\x00,p\n", {}, "t.csv ~ NUL"),
        ("a,\x1b[2Jb,y\n1,1,p\n", {}, "control character"),
        ("a,y\n=1+1,p\n2,q\n", {}, "line 2, column 'a': '=1+1' is not a finite number"),
        ('a,y\n1,p\n"2,q\n', {}, "csv, line 3: ~ quote that is never closed"),
        ('a,y\n"1\n",p\nx,q\n', {}, "csv, line 4, column 'a': 'x' ~ finite ~ categories"),
        ("a,y\n1,p\n\n1_0,q\n", {}, "csv, line 4, column 'a': '1_0' ~ finite"),
        ("a,y\n1,p\ninf,q\n", {}, "csv, line 3, column 'a': 'inf' ~ finite"),
        ("a,y\n1,p\n?,q\n", {}, "line 3, column 'a': '?' ~ missing: drop ~ missing: mean"),
        ("a,y\n1,p\n2,\n", {"missing": "mean"}, "line 3, column 'y': '' ~ missing: drop"),
        ("a,y\nNA,p\n1,\n", {"missing": "drop"}, "csv: every row ~ missing"),
        ("c,y\n,p\n,q\n", {"missing": "mean", "categories": ["c"]}, "csv: ~ training ~ feature"),
        ("a,y\n1,0\n2,1\n", {}, "'y' ~ task: classification, multilabel or regression"),
        ("a,y\n1,0\n2,z\n", {"task": "regression"}, "line 3, column 'y': 'z' ~ finite"),
        ("a,y\n1,0\n2,3\n", {"task": "multilabel"}, "line 3, column 'y': '3' ~ expected 0 or 1"),
        ("a,y\n1,p\n2,q\n", {"target": "z"}, "csv ~ 'z' ~ a, y"),
        ("a,y\n1,p\n2,q\n", {"target": ["y", "y"]}, "target ~ twice: y, y"),
        ("a,y\n1,p\n2,q\n", {"features": ["b"]}, "csv ~ 'b' ~ a, y"),
        ("a,y\n1,p\n2,q\n", {"features": ["y"]}, "'y' ~ feature ~ target"),
        ("a,y\n1,p\n2,q\n", {"features": ["a", "a"]}, "features ~ 'a' twice"),
        ("a,y\n1,p\n2,q\n", {"categories": ["y"]}, "categories ~ 'y' ~ feature"),
        ("a,y\n1,p\n2,q\n", {"time_column": "y", "target": "a"}, "csv ~ features ~ a, y"),
        ("a,y\n1,p\n2,q\n3,p\n", NO_SHARED_TESTS, "standardise: client ~ pooled or future ~ train"),
        ("a,t,y\n1,2020-13-01,p\n", {"time_column": "t"}, "line 2, column 't': '2020-13-01'"),
        ("a,a,y\n1,2,p\n", {}, "csv, line 1: two columns ~ 'a'"),
        (",a,y\n0,1,p\n", {}, "csv, line 1: column 1 ~ no name; pandas ~ index=False"),
        ("a;y\n1;p\n", {}, "csv, line 1: ~ ';', not by ',' ~ separator: ';'"),
        ("a,y\n", {}, "csv ~ no rows"),
        ('x,y\n"1,5",a\n"-2,25",b\n', {}, "'x' ~ '1,5': give decimal or thousands ~ categories"),
        ("n,y\n" + "".join(f"n{i},p\nn{i},q\n" for i in range(1001)), {}, "csv: 'n' ~ 1,001"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_file_line_and_column(table, text, options, message):
    with pytest.raises(ValueError, match=parts(message)):
        table(text, **{"target": "y"} | options).setup()


def test_blanks_around_a_word_do_not_count(table):
    text = 'age, site ,sick\n1, A,p\n2,A ,q\n3,"B", p \n4, "B",q\n'
    data = table(text, num_clients=None, client_column="site", partition=ByDomain())
    assert (data.client_names, list(data.class_names)) == (("A", "B"), ["p", "q"])


def test_an_arff_file_is_a_table(write):
    """Comments may have an apostrophe, and may stand among the rows."""
    head = "% made by the ward's nurse\n@relation wards\n\n@attribute 'age in years' numeric\n"
    head += "@ATTRIBUTE ward {a, b}\n@attribute died\n@data\n% it's here\n"
    file = write(head + "1,a,no\n?,a,yes\n\n3,b,no\n", "wards.arff")
    options = {"task": "binary", "positive": "yes", "client_column": "ward", "missing": "mean"}
    data = TabularData(file, "died", **options)
    assert data.num_clients == 2
    assert data.table().frame["age in years"].tolist() == ["1", "?", "3"]
    assert data.contents.targets.labels.tolist() == [0, 1, 0]


def test_files_that_cannot_be_read_are_refused(tmp_path, write, monkeypatch):
    with pytest.raises(FileNotFoundError, match=parts("no file ~ none.csv")):
        TabularData(str(tmp_path / "none.csv"), "y", 1, IID()).setup()
    file = write(b"PAR1", "some.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=parts("pyarrow: pip install 'pfl-lightning[parquet]'")):
        TabularData(file, "y", 1, IID()).setup()


def test_parquet_holds_the_same_as_csv(sites, parquet, write):
    rows = list(csv.DictReader(PATIENTS.splitlines()))
    columns = {name: [row[name] or None for row in rows] for name in rows[0]}
    for name in ("age", "site"):
        columns[name] = [None if value is None else int(value) for value in columns[name]]
    file = parquet(columns)
    read = TabularData(file, "sick", 2, ByDomain(), missing="mean", **SITES)
    assert read.description() == sites(missing="mean").description()
    with pytest.raises(ValueError, match=parts("parquet, row 4, column 'age': ~ missing")):
        TabularData(file, "sick", 2, ByDomain(), **SITES).setup()
    write(b"PAR1", "t.parquet")
    with pytest.raises(ValueError, match=parts("t.parquet ~ Parquet")):
        TabularData(file, "sick", 2, ByDomain(), **SITES).setup()


# A positive class, and clients that the table names.


def test_the_positive_class_is_named_and_comes_last_and_each_ward_is_a_client(wards):
    data = wards(positive="no")
    assert (data.task, [*data.class_names]) == (Binary(), ["yes", "no"])
    assert (data.outputs, data.num_classes) == (2, 2)
    assert data.contents.targets.labels.tolist() == [0, 1, 1, 1, 0, 1]
    assert (data.num_clients, data.partition) == (3, ByDomain())
    assert data.division.sizes.sum(1).tolist() == [2, 2, 2]
    assert data.contents.domain_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("options", "labels", "names"),
    [
        # Heart disease is coded from 0, none, to 4.
        ({"positive": [1, 3.0]}, [0, 1, 1, 0], ["0", "1 or 3"]),
        ({"positive": 3, "negative": [0, 1]}, [0, 1, 0, 0], ["0 or 1", "3"]),
    ],
)
def test_several_values_are_of_one_class(wards, options, labels, names):
    data = wards("age,ward,ill\n1,a,0\n2,a,3\n3,a,1\n4,a,0\n", "ill", **options)
    assert (data.contents.targets.labels.tolist(), [*data.class_names]) == (labels, names)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "'died' ~ no, yes ~ positive"),
        ({"positive": "dead"}, "positive: 'died' ~ 'dead' ~ no, yes"),
        ({"positive": ["yes", "no"]}, "positive: ~ 'died' ~ (no, yes)"),
        ({"positive": "yes", "negative": ["no", "yes"]}, "'died' is both positive and negative"),
        ({"positive": "yes", "task": None}, "positive ~ task: binary"),
        ({"target": ["died", "ward"], "positive": "yes"}, "task: binary ~ one target"),
    ],
)
def test_a_positive_class_that_is_none_is_refused(wards, options, says):
    with pytest.raises(ValueError, match=parts(says)):
        wards(**options).setup()


def test_merging_natural_clients_is_warned_of(wards, recwarn):
    """Two clients of three wards are one ward, and a pair."""
    for count in (None, 5):
        wards(positive="yes", num_clients=count).setup()
    (told,) = (str(one.message) for one in recwarn if one.category is UserWarning)
    assert "of 5 clients have no sample to be tested on" in told
    with pytest.warns(UserWarning, match=parts("num_clients: 2 ~ 3 natural clients ~ first ~ +")):
        wards(positive="yes", num_clients=2).setup()


def test_a_partition_file_says_the_number_of_clients(wards, write):
    made = wards(positive="yes", num_clients=2, partition=ByDomain())
    file = write(json.dumps(made.description()), "partition.json")
    again = wards(positive="yes", partition=file)
    assert (again.num_clients, again.description()["hash"]) == (2, made.description()["hash"])


@pytest.mark.parametrize("options", [{}, {"max_samples": 2}])
def test_natural_clients_are_those_of_the_samples_that_are_divided(options):
    """Client c has only official test samples, or none of the two samples of client a is used."""
    given = {"x": np.zeros((6, 1)), "y": [0, 1] * 3, "client": [*"aaabbb"]}
    if not options:
        given |= {"x_test": np.zeros((2, 1)), "y_test": [0, 1], "client": [*"aaabbbcc"]}
    data = TensorData(given, test_protocol="matched", test_fraction=0.4, **options)
    trained = {d for h in data.division.holdings for d in data.contents.targets.domains[h.train]}
    assert data.num_clients == len(trained)
    assert list(data.client_names) == [data.contents.domain_names[d] for d in sorted(trained)]


def test_data_that_name_no_clients_need_their_number():
    with pytest.raises(ValueError, match=parts("num_clients is required ~ natural clients")):
        TensorData({"x": np.zeros((4, 1)), "y": [0, 1, 0, 1]}, partition=IID()).setup()
