"""Tables: which column is what, what training samples teach, and where a bad value stands."""

import csv
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

from datamodules import IID, ByColumn, ByDomain, Shards, TabularData, Unseen
from lightning_modules.fedavg import FedAvg
from lightning_modules.local import Local
from pfl.core.task import Classification, MultiLabel, Regression
from tests.helpers.federation import fit, sgd
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


def table(tmp_path, text=PATIENTS, num_clients=1, partition=None, target="sick", **options):
    file = tmp_path / "patients.csv"
    file.write_text(text, encoding="utf-8")
    return TabularData(str(file), target, num_clients, partition or IID(), **options)


def sites(tmp_path, **options):
    return table(tmp_path, num_clients=2, partition=ByDomain(), **SITES | options)


def inputs(data, client, name):
    view = data.split(client, name)
    return view.batch(torch.arange(len(view))).x


def ages(data, name):
    return [inputs(data, client, name)[:, 0].tolist() for client in range(data.num_clients)]


def test_words_are_classes_and_categories_in_the_order_of_the_alphabet(tmp_path):
    data = sites(tmp_path, missing="mean")
    assert (data.class_names, data.input_shape) == (["no", "yes"], (3,))
    # Oslo, Rome; the patient without a city has zeros.
    assert inputs(data, 0, "train")[:, 1:].tolist() == [[0, 1], [0, 0]]
    assert inputs(data, 1, "train")[:, 1:].tolist() == [[1, 0], [0, 1]]
    assert data.split(0, "train").targets.tolist() == [1, 0]


def test_a_value_in_test_samples_alone_has_zeros_in_all_columns(tmp_path):
    """Nobody trains on a patient from Bonn."""
    data = sites(tmp_path, missing="mean")
    for client in (0, 1):
        assert inputs(data, client, "test")[:, 1:].tolist() == [[0, 0]]
    assert data.blank(5).shape == (5, 3)


def test_clients_that_are_held_out_teach_no_value(tmp_path):
    """Without the site 10, only Rome is known, and its own patient from Rome has it too."""
    data = sites(tmp_path, missing="mean", unseen=Unseen(clients=["10"]))
    assert data.input_shape == (2,)
    assert inputs(data, 0, "train")[:, 1:].tolist() == [[1], [0]]
    assert inputs(data, 1, "train")[:, 1:].tolist() == [[0], [1]]


def test_a_table_whose_training_samples_have_no_value_is_refused(tmp_path):
    text = PATIENTS.replace("Rome", "").replace("Oslo", "")
    with pytest.raises(ValueError, match=parts("csv: ~ training sample ~ feature")):
        sites(tmp_path, text=text, missing="mean", features=["city"]).setup()


def test_clients_whose_names_are_numbers_stand_in_their_order(tmp_path):
    data = sites(tmp_path, missing="mean")
    assert data.contents.domain_names == ("2", "10")
    assert data.division.holdings[0].train.tolist() == [0, 2]
    assert data.division.holdings[1].test.tolist() == [5]


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
def test_different_texts_are_different_clients_classes_and_categories(tmp_path, ids, names):
    """But 9 and 9.0 are one, and numbers stand in their order."""
    rows = "".join(f"{n},{who},{who},{who}\n" for n, who in enumerate(2 * ids))
    uses = {"target": "y", "task": "classification", "client_column": "who"}
    uses |= {"test_protocol": "future", "time_column": "n"}
    text, options = f"n,who,kind,y\n{rows}", {"features": ["kind"], "categories": ["kind"], **uses}
    data = table(tmp_path, text, num_clients=len(names), partition=ByDomain(), **options)
    data.setup()
    assert [*data.client_names] == [*data.class_names] == names
    for client in range(len(names)):
        assert inputs(data, client, "test").argmax(1).unique().tolist() == [client]
        assert inputs(data, client, "test").sum(1).unique().tolist() == [1]


def test_features_are_all_columns_without_another_use(tmp_path):
    text = "a,b,c,y\n1,2,3,p\n4,5,6,q\n7,8,9,q\n"
    assert inputs(table(tmp_path, text, target="y"), 0, "train").shape == (2, 3)
    some = table(tmp_path, text, target="y", features=["c", "a"])
    row = some.division.holdings[0].train[0]
    assert inputs(some, 0, "train")[0].tolist() == [3 + 3 * row, 1 + 3 * row]


@pytest.mark.parametrize(
    ("one", "other"), [("2020-01-02", "2020-01-01T12:00:00+01:00"), ("3", "2.5")]
)
def test_times_are_numbers_or_dates(tmp_path, monkeypatch, one, other):
    """A day is 86,400 seconds, and 2020 began 1,577,836,800 after 1970, wherever the machine is."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    text = f"x,t,y\n1,{one},p\n2,{other},q\n"
    data = table(tmp_path, text, target="y", time_column="t", test_protocol="future")
    found = data.contents.targets.column("time").tolist()
    assert found in ([1577836800 + 86400, 1577836800 + 11 * 3600], [3, 2.5])
    monkeypatch.undo()
    time.tzset()


def test_classes_may_be_fractions(tmp_path):
    data = table(tmp_path, "x,y\n1,1.5\n2,1.2\n", target="y", task="classification")
    with pytest.warns(UserWarning, match=parts("'y' ~ not whole ~ each of the 2 ~ regression")):
        assert data.class_names == ["1.2", "1.5"]


def test_a_number_may_be_a_category(tmp_path):
    """Of 2, 10 and 9 the columns are 2, 9, 10."""
    text = "code,y\n" + "2,p\n10,q\n9,q\n" * 2
    data = table(tmp_path, text, target="y", categories=["code"])
    ids = data.division.holdings[0].train
    expected = np.eye(3)[[0, 2, 1] * 2]
    assert inputs(data, 0, "train").tolist() == expected[ids].tolist()


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
def test_only_training_samples_are_looked_at(tmp_path, standardise, train, test):
    data = sites(tmp_path, missing="mean", standardise=standardise)
    for found, expected in ((ages(data, "train"), train), (ages(data, "test"), test)):
        assert np.array(found) == pytest.approx(np.array(expected), abs=1e-4)
    assert inputs(data, 0, "train")[:, 1:].tolist() == [[0, 1], [0, 0]]


def test_a_client_without_any_value_of_its_own_takes_everybodys(tmp_path):
    """One site trains on 10 and 30, mean 20 and deviation 10; the other is tested on 60."""
    text = PATIENTS.replace("20,Oslo", ",Oslo")
    data = sites(tmp_path, text=text, missing="mean", standardise="client")
    assert (ages(data, "train")[1], ages(data, "test")[1]) == ([0, 0], [4])


@pytest.mark.parametrize(("standardise", "expected"), [("train", 1), ("client", 1), ("none", 99.6)])
def test_a_column_of_equal_values_is_only_centred(tmp_path, standardise, expected):
    """The mean of three temperatures of 98.6 is rounded; the last patient has a degree more."""
    rows = ["98.6,a,0", "98.6,a,1", "98.6,a,2", "99.6,b,3"]
    data = table(
        tmp_path,
        "\n".join(["heat,sick,when", *rows]),
        standardise=standardise,
        test_protocol="future",
        time_column="when",
        features=["heat"],
    )
    assert ages(data, "test") == [[pytest.approx(expected, abs=1e-5)]]


def test_clients_are_not_standardised_alone_where_test_samples_are_shared(tmp_path):
    options = {"missing": "drop", "standardise": "client", "test_protocol": "global"}
    options["features"] = ["age"]
    with pytest.raises(
        ValueError,
        match=parts("standardise: client ~ test_protocol: pooled or future ~ standardise: train"),
    ):
        table(tmp_path, **options).setup()


def test_rows_with_missing_values_are_dropped(tmp_path):
    data = table(tmp_path, missing="drop", features=["age", "city"])
    assert len(data.contents.targets) == 4
    assert sorted(ages(data, "train")[0] + ages(data, "test")[0]) == [10, 20, 50, 60]
    # Missing where nobody looks.
    assert len(table(tmp_path, missing="drop", features=["site"]).contents.targets) == 6


def test_columns_with_a_number_in_every_row_order_clients(tmp_path):
    data = table(
        tmp_path, num_clients=3, partition=ByColumn("site"), features=["age"], missing="mean"
    )
    holdings = [{*h.train.tolist(), *h.test.tolist()} for h in data.division.holdings]
    assert holdings == [{0, 2}, {1, 4}, {3, 5}]
    with pytest.raises(ValueError, match=parts("'age' ~ site")):
        table(tmp_path, partition=ByColumn("age"), features=["age"], missing="mean").setup()


@pytest.mark.parametrize(
    ("target", "task", "kind", "y"),
    [
        ("a", "regression", Regression(), [[0], [2], [1]]),
        (["c", "a"], "regression", Regression(), [[1, 0], [0, 2], [1, 1]]),
        (["c", "d"], "multilabel", MultiLabel(), [[1, 1], [0, 1], [1, 0]]),
        ("a", "classification", Classification(), [0, 2, 1]),
        ("word", None, Classification(), [1, 0, 1]),
    ],
)
def test_numbers_are_predicted_as_the_task_says(tmp_path, target, task, kind, y):
    text = "a,c,d,word,x\n0,1,1,two,1\n2,0,1,one,2\n1,1,0,two,3\n"
    data = table(tmp_path, text, target=target, task=task, features=["x"])
    assert data.task == kind
    held = data.division.holdings[0]
    for name, ids in (("train", held.train), ("test", held.test)):
        assert data.split(0, name).targets.tolist() == [y[i] for i in ids]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,y\n1,p\n2,q,r\n", {}, "csv: Expected 2 fields in line 3, saw 3"),
        ("a,b,y\n1,2,p\n\n2,q\n", {}, "csv, line 4: 2 values ~ 3 columns"),
        ('a,y\n1,p\n"2,q\n', {}, "csv: EOF inside string"),
        ('a,y\n"1\n",p\nx,q\n', {}, "csv, line 4, column 'a': 'x' ~ finite ~ categories"),
        ("a,y\n1,p\n\n1_0,q\n", {}, "csv, line 4, column 'a': '1_0' ~ finite"),
        ("a,y\n1,p\ninf,q\n", {}, "csv, line 3, column 'a': 'inf' ~ finite"),
        ("a,y\n1,p\n?,q\n", {}, "line 3, column 'a': '?' ~ missing: drop ~ missing: mean"),
        ("a,y\n1,p\n2,\n", {"missing": "mean"}, "line 3, column 'y': '' ~ missing: drop"),
        ("a,y\nNA,p\n1,\n", {"missing": "drop"}, "csv: each row ~ missing"),
        ("a,y\n1,0\n2,1\n", {}, "'y' ~ task: classification, multilabel or regression"),
        ("a,y\n1,0\n2,z\n", {"task": "regression"}, "line 3, column 'y': 'z' ~ finite"),
        ("a,y\n1,0\n2,3\n", {"task": "multilabel"}, "line 3, column 'y': '3' ~ 0 nor 1"),
        ("a,y\n1,p\n2,q\n", {"target": "z"}, "csv ~ 'z' ~ a, y"),
        ("a,y\n1,p\n2,q\n", {"target": ["y", "y"]}, "target ~ twice: y, y"),
        ("a,y\n1,p\n2,q\n", {"features": ["b"]}, "csv ~ 'b' ~ a, y"),
        ("a,y\n1,p\n2,q\n", {"features": ["y"]}, "'y' ~ feature ~ target"),
        ("a,y\n1,p\n2,q\n", {"features": ["a", "a"]}, "features ~ 'a' twice"),
        ("a,y\n1,p\n2,q\n", {"categories": ["y"]}, "categories ~ 'y' ~ feature"),
        ("a,y\n1,p\n2,q\n", {"time_column": "y", "target": "a"}, "csv ~ features ~ a, y"),
        ("a,t,y\n1,2020-13-01,p\n", {"time_column": "t"}, "line 2, column 't': '2020-13-01'"),
        ("a,a,y\n1,2,p\n", {}, "csv, line 1: two columns ~ 'a'"),
        (",a,y\n0,1,p\n", {}, "csv, line 1: column 1 ~ no name; pandas ~ index=False"),
        ("a;y\n1;p\n", {}, "csv, line 1: ~ ';', not by ',' ~ separator: ';'"),
        ("a,y\n", {}, "csv ~ no rows"),
        ("", {}, "csv ~ no rows"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_file_line_and_column(tmp_path, text, options, message):
    with pytest.raises(ValueError, match=parts(message)):
        table(tmp_path, text, **{"target": "y"} | options).setup()


def test_blanks_around_a_word_do_not_count(tmp_path):
    text = 'age, site ,sick\n1, A,p\n2,A ,q\n3,"B", p \n4, "B",q\n'
    data = table(tmp_path, text, num_clients=None, client_column="site", partition=ByDomain())
    assert (data.client_names, list(data.class_names)) == (("A", "B"), ["p", "q"])


def test_comments_of_arff_may_have_an_apostrophe(tmp_path):
    file = tmp_path / "iris.arff"
    head = (
        "% Fisher's data\n@relation iris\n@attribute 'petal width' real\n@attribute kind {p, q}\n"
    )
    file.write_text(f"{head}@data\n% it's here\n1, p\n2,q\n3,p\n4,q\n")
    data = TabularData(str(file), "kind", 1, IID())
    data.setup()
    assert (list(data.class_names), len(data.contents.targets)) == (["p", "q"], 4)


def test_a_category_with_too_many_values_is_refused(tmp_path):
    text = "name,y\n" + "".join(f"n{i},{'pq'[i % 2]}\n" for i in range(1001)) * 2
    with pytest.raises(ValueError, match=parts("csv: 'name' ~ 1,001")):
        table(tmp_path, text, target="y").setup()


def test_numbers_with_a_comma_are_a_category_only_if_it_is_named(tmp_path):
    text = 'x,y\n"1,5",a\n"-2,25",b\n"1,5",a\n'
    with pytest.raises(
        ValueError, match=parts("'x' ~ such as '1,5': give decimal or thousands ~ categories")
    ):
        table(tmp_path, text, target="y").setup()
    data = table(tmp_path, text, target="y", categories=["x"])
    assert data.input_shape == (2,)


def test_files_that_cannot_be_read_are_refused(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=parts("no file ~ none.csv")):
        TabularData(str(tmp_path / "none.csv"), "y", 1, IID()).setup()
    (tmp_path / "latin.csv").write_bytes("a,y\n1,\xe9\n".encode("latin1"))
    with pytest.raises(ValueError, match=parts("latin.csv ~ UTF-8")):
        TabularData(str(tmp_path / "latin.csv"), "y", 1, IID()).setup()
    (tmp_path / "some.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=parts("pyarrow: pip install 'pfl-lightning[parquet]'")):
        TabularData(str(tmp_path / "some.parquet"), "y", 1, IID()).setup()


def test_parquet_holds_the_same_as_csv(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = list(csv.DictReader(PATIENTS.splitlines()))
    columns = {name: [row[name] or None for row in rows] for name in rows[0]}
    for name in ("age", "site"):
        columns[name] = [None if value is None else int(value) for value in columns[name]]
    file = tmp_path / "patients.parquet"
    parquet.write_table(pyarrow.table(columns), file)
    read = TabularData(str(file), "sick", 2, ByDomain(), missing="mean", **SITES)
    assert read.description() == sites(tmp_path, missing="mean").description()
    broken = TabularData(str(file), "sick", 2, ByDomain(), **SITES)
    with pytest.raises(ValueError, match=parts("parquet, row 4, column 'age': ~ missing")):
        broken.setup()
    file.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=parts("patients.parquet ~ Parquet")):
        TabularData(str(file), "sick", 2, ByDomain(), **SITES).setup()


# Real data, which scikit-learn carries.


def written(path, x, names, target):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "target"])
        writer.writerows([*row, y] for row, y in zip(x.tolist(), target.tolist(), strict=True))
    return str(path)


def test_breast_cancer_is_told_apart_by_a_linear_network(tmp_path):
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    names = found.target_names[found.target]
    path = written(tmp_path / "cancer.csv", found.data, found.feature_names, names)
    data = TabularData(
        path,
        "target",
        5,
        Shards(),
        standardise="train",
        batch_size=32,
        metrics=["torchmetrics.AUROC"],
    )
    assert (data.class_names, data.input_shape) == (["benign", "malignant"], (30,))
    ids = np.concatenate([h.train for h in data.division.holdings])
    x = torch.cat([inputs(data, client, "train") for client in range(5)])
    own = (found.data[ids] - found.data[ids].mean(0)) / found.data[ids].std(0)
    assert torch.allclose(x, torch.tensor(own, dtype=torch.float32), atol=1e-5)
    run = fit(FedAvg(nn.Linear(30, 2), optimizer=sgd(0.1)), data, rounds=5)
    assert run.summary["test/personal/acc/last"] > 0.93
    assert run.summary["test/personal/auroc/last"] > 0.97


def loss(x, y, weights):
    return float(np.square(np.hstack([x, np.ones((len(x), 1))]) @ weights - y).mean())


def optimum(x, y):
    """Return the weights, the offset last, of least squared error."""
    return np.linalg.lstsq(np.hstack([x, np.ones((len(x), 1))]), y, rcond=None)[0]


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory):
    """The progress of diabetes in four age groups, and the training samples of each."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    path = written(
        tmp_path_factory.mktemp("tables") / "diabetes.csv",
        found.data, found.feature_names, found.target,
    )  # fmt: skip
    options = {"task": "regression", "standardise": "train", "batch_size": 442}
    data = TabularData(path, "target", 4, ByColumn("age"), **options)
    views = [data.split(client, "train") for client in range(4)]
    batches = [view.batch(torch.arange(len(view))) for view in views]
    return data, [(batch.x.double().numpy(), batch.y.double().numpy()) for batch in batches]


def linear(state):
    return torch.cat([state["net.weight"], state["net.bias"][:, None]], 1).T.double().numpy()


def test_age_groups_reach_the_optimum_of_all_with_fedavg(diabetes):
    """One full batch a round: the average of the clients' steps is a step on all samples."""
    data, parts = diabetes
    module = FedAvg(nn.Linear(10, 1), task=Regression(), optimizer=sgd(0.15))
    run = fit(module, data, rounds=150, engine="sequential", evaluate_every=150)
    x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    best = loss(x, y, optimum(x, y))
    found = loss(x, y, linear(run.server.shared))
    assert best < 0.6 * y.var()
    assert best - 1e-6 < found < 1.05 * best


def test_age_groups_reach_their_own_optima_alone(diabetes):
    data, parts = diabetes
    module = Local(nn.Linear(10, 1), task=Regression(), optimizer=sgd(0.15), epochs=300)
    run = fit(module, data, rounds=1, engine="sequential")
    for client, (x, y) in enumerate(parts):
        best = loss(x, y, optimum(x, y))
        assert best - 1e-6 < loss(x, y, linear(run.kept[client])) < 1.05 * best
