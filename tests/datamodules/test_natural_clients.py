"""Tables with a positive class, natural clients that need not be counted, and losses from YAML."""

from __future__ import annotations

import json

import pytest
import torch

from datamodules import IID, ByDomain, Digits, TabularData, TensorData
from pfl.__main__ import main
from pfl.core.task import Binary, Classification, Regression
from tests.helpers.messages import parts

WARDS = "age,ward,died\n60,b,yes\n20,a,no\n30,a,no\n70,b,no\n50,c,yes\n40,c,no\n"


def table(tmp_path, text=WARDS, target="died", **options):
    file = tmp_path / "wards.csv"
    file.write_text(text)
    options = {"client_column": "ward", "task": "binary", "test_fraction": 0.5, **options}
    return TabularData(str(file), target, **options)


def test_the_positive_class_is_named_and_comes_last(tmp_path):
    data = table(tmp_path, positive="no")
    assert data.task == Binary()
    assert list(data.class_names) == ["yes", "no"]
    assert (data.outputs, data.num_classes) == (2, 2)
    assert data.contents.targets.labels.tolist() == [0, 1, 1, 1, 0, 1]


def test_each_natural_client_is_one(tmp_path):
    data = table(tmp_path, positive="yes")
    assert (data.num_clients, data.partition) == (3, ByDomain())
    assert data.division.sizes.sum(1).tolist() == [2, 2, 2]
    assert data.contents.domain_names == ("a", "b", "c")


def test_merging_natural_clients_is_told(tmp_path):
    """Two clients of three wards are one ward, and a pair."""
    with pytest.warns(UserWarning, match=parts("num_clients: 2 ~ 3 clients ~ first")) as w:
        table(tmp_path, positive="yes", num_clients=2).setup()
    assert " + " in str(w[0].message)


@pytest.mark.parametrize("options", [{}, {"max_samples": 2}])
def test_natural_clients_are_those_of_the_samples_that_are_divided(options):
    """Client c has only official test samples, or none of the two samples of client a is used."""
    given = {"x": torch.zeros(6, 1), "y": [0, 1] * 3, "client": [*"aaabbb"]}
    if not options:
        given |= {"x_test": torch.zeros(2, 1), "y_test": [0, 1], "client": [*"aaabbbcc"]}
    data = TensorData(given, test_protocol="matched", test_fraction=0.4, **options)
    trained = {name for ids in data.division.holdings for name in domains(data, ids.train)}
    assert data.num_clients == len(trained)
    assert list(data.client_names) == sorted(trained)


def domains(data, ids):
    return [data.contents.domain_names[d] for d in data.contents.targets.domains[ids]]


@pytest.mark.parametrize("options", [{}, {"num_clients": 5}])
@pytest.mark.filterwarnings("error::UserWarning")
def test_nothing_is_told_where_no_client_is_merged(tmp_path, options):
    table(tmp_path, positive="yes", **options).setup()


def test_a_partition_file_says_the_number_of_clients(tmp_path):
    made = table(tmp_path, positive="yes", num_clients=2, partition=ByDomain())
    file = tmp_path / "partition.json"
    file.write_text(json.dumps(made.description()))
    again = table(tmp_path, positive="yes", partition=str(file))
    assert again.num_clients == 2
    assert again.description()["hash"] == made.description()["hash"]


def test_data_that_name_no_clients_need_their_number():
    with pytest.raises(ValueError, match=parts("clients: ~ num_clients")):
        TensorData({"x": torch.zeros(4, 1), "y": [0, 1, 0, 1]}, partition=IID()).setup()


def test_several_values_are_positive(tmp_path):
    """Heart disease is coded from 0, none, to 4."""
    text = "age,ward,ill\n1,a,0\n2,a,3\n3,a,1\n4,a,0\n"
    data = table(tmp_path, text, "ill", positive=[1, 3.0])
    assert data.contents.targets.labels.tolist() == [0, 1, 1, 0]
    assert list(data.class_names) == ["0", "1 or 3"]


def test_ones_are_positive_among_zeros_and_ones(tmp_path):
    data = table(tmp_path, "age,ward,ill\n1,a,0\n2,a,1\n3,a,1\n4,a,0\n", "ill")
    assert data.contents.targets.labels.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "'died' ~ no, yes ~ positive"),
        ({"positive": "dead"}, "positive: 'died' ~ 'dead' ~ no, yes"),
        ({"positive": ["yes", "no"]}, "positive: ~ 'died' ~ (no, yes)"),
        ({"positive": "yes", "task": None}, "positive ~ task: binary"),
        ({"target": ["died", "ward"], "positive": "yes"}, "task: binary ~ one target"),
    ],
)
def test_a_positive_class_that_is_none_is_refused(tmp_path, options, says):
    target = options.pop("target", "died")
    with pytest.raises(ValueError, match=parts(says)):
        table(tmp_path, target=target, **options).setup()


def test_tensors_of_a_binary_task_are_zeros_and_ones():
    source = {"x": torch.zeros(4, 1), "y": [0, 0, 0, 0], "client": [0, 0, 1, 1]}
    data = TensorData(source, task="binary", test_fraction=0.5)
    assert (data.task, data.outputs, list(data.class_names)) == (Binary(), 2, ["0", "1"])
    with pytest.raises(ValueError, match=parts("binary ~ 0 and 1")):
        TensorData({**source, "y": [0, 1, 2, 1]}, task="binary").setup()


def test_an_arff_file_is_a_table(tmp_path):
    text = (
        "% made by hand\n@relation wards\n\n@attribute 'age in years' numeric\n"
        "@ATTRIBUTE ward {a, b}\n@attribute died\n@data\n% two wards\n1,a,no\n?,a,yes\n\n3,b,no\n"
    )
    (tmp_path / "wards.arff").write_text(text)
    data = TabularData(
        str(tmp_path / "wards.arff"),
        "died",
        task="binary",
        positive="yes",
        client_column="ward",
        missing="mean",
    )
    assert data.num_clients == 2
    assert data.table().frame["age in years"].tolist() == ["1", "?", "3"]
    assert data.contents.targets.labels.tolist() == [0, 1, 0]


def test_balanced_weights_count_the_training_samples_of_all_clients():
    """Three of class 0 and one of class 1 are trained on: 4 / (2 * 3) and 4 / (2 * 1)."""
    y = [0, 0, 0, 1, 1, 1]
    data = TensorData(
        {"x": torch.zeros(6, 1), "y": y, "num_train": 4},
        2,
        IID(),
        test_protocol="global",
        loss={"class_weights": "balanced"},
    )
    assert data.task == Classification(class_weights=(2 / 3, 2.0))


def test_a_class_in_which_nobody_trains_has_no_weight():
    source = {"x": torch.zeros(4, 1), "y": [0, 1, 1, 2], "num_train": 3}
    loss = {"class_weights": "balanced"}
    data = TensorData(source, 1, IID(), test_protocol="global", loss=loss)
    assert data.task == Classification(class_weights=(1.5, 0.75, 0.0))


def test_weights_are_as_many_as_classes():
    with pytest.raises(ValueError, match=parts("class_weights ~ balanced ~ 10 ~ [1.0, 2.0]")):
        Digits(2, IID(), loss={"class_weights": [1.0, 2.0]}).task  # noqa: B018


def test_quantiles_ask_for_more_outputs():
    source = {"x": torch.zeros(4, 1), "y": torch.zeros(4, 2)}
    data = TensorData(source, 2, IID(), loss={"quantiles": [0.1, 0.9]})
    assert data.task == Regression(quantiles=(0.1, 0.9))
    assert data.outputs == 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "value"), [("class_weights", "balanced"), ("label_smoothing", "0.2"), ("focal", "2")]
)
def test_a_loss_from_the_command_line_reaches_training(tmp_path, option, value):
    config = ["--config", "configs/quickstart.yaml", "--loop.rounds=1"]

    def losses(*more):
        folder = tmp_path / f"run{len(more)}"
        assert main(["fit", *config, f"--loop.default_root_dir={folder}", *more]) == 0
        (file,) = folder.rglob("metrics.csv")
        return file.read_text()

    assert losses() != losses(f"--data.init_args.loss.{option}={value}")


def test_an_unknown_option_of_the_loss_is_refused_by_name(capsys):
    argv = ["fit", "--config", "configs/quickstart.yaml", "--data.init_args.loss.smoothing=0.1"]
    assert main(argv) != 0
    assert "smoothing" in capsys.readouterr().err
