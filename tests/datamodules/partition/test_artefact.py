"""The partition as a file: what one run writes, another reads."""

import json

import pytest

from datamodules import IID, ByDomain, Digits, Dirichlet, Shards, Synthetic
from tests.helpers.messages import parts


@pytest.fixture
def saved(tmp_path):
    data = Digits(num_clients=4, partition=Dirichlet(0.3), val_fraction=0.1, max_samples=500)
    path = tmp_path / "partition.json"
    path.write_text(json.dumps(data.description()))
    return path


def change(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def digits(path, num_clients=4):
    return Digits(num_clients=num_clients, partition=str(path))


def test_a_file_gives_back_the_same_partition(saved):
    assert digits(saved).description() == json.loads(saved.read_text())


@pytest.mark.parametrize("protocol", ["pooled", "official_classes", "matched", "global"])
def test_every_protocol_round_trips(tmp_path, protocol):
    path = tmp_path / "partition.json"
    data = Digits(num_clients=4, partition=Shards(2), test_protocol=protocol)
    path.write_text(json.dumps(data.description()))
    again = digits(path)
    assert again.description() == data.description()
    for client in range(4):
        for name in ("train", "val", "test"):
            assert again.split(client, name).targets.equal(data.split(client, name).targets)


def test_the_recipe_is_written_as_a_config_writes_it():
    data = Synthetic(num_clients=2, partition=ByDomain(within=Shards(2)))
    assert data.description()["partition"] == {
        "class_path": "datamodules.partition.partitioner.ByDomain",
        "init_args": {
            "within": {
                "class_path": "datamodules.partition.partitioner.Shards",
                "init_args": {"shards_per_client": 2},
            }
        },
    }


def test_another_data_set_is_refused(saved):
    data = Synthetic(num_clients=4, partition=str(saved))
    with pytest.raises(ValueError, match=parts("partition.json ~ Digits, 1797 ~ 1000 samples")):
        data.setup()


def test_another_number_of_clients_is_refused(saved):
    with pytest.raises(ValueError, match=parts("num_clients ~ 5 ~ partition.json ~ 4 clients")):
        digits(saved, num_clients=5).setup()


def test_a_missing_file_may_be_a_misspelt_partitioner():
    with pytest.raises(FileNotFoundError, match=parts("partition: ~ Dirichelt ~ list partitions")):
        digits("Dirichelt").setup()


def test_what_is_not_json_is_refused(saved):
    saved.write_text(saved.read_text()[:-20])
    with pytest.raises(ValueError, match=parts("partition.json ~ damaged")):
        digits(saved).setup()


def test_what_is_too_deep_is_refused(saved):
    saved.write_text("[" * 200_000)
    with pytest.raises(ValueError, match=parts("partition.json ~ 50 levels")):
        digits(saved).setup()


def test_another_json_is_refused(saved):
    saved.write_text("{}")
    with pytest.raises(ValueError, match=parts('partition.json ~ "format": "pfl-partition-1"')):
        digits(saved).setup()


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([{"train": [0], "val": []}] * 4, "partition.json ~ damaged"),
        ([{"train": ["a"], "val": [], "test": []}] * 4, "partition.json ~ damaged"),
        (None, "partition.json ~ damaged"),
        ([], "damaged ~ clients"),
        ([None] * 4, "partition.json ~ damaged"),
        ([{"train": 5, "val": [], "test": []}] * 4, "damaged ~ clients.0.train"),
        ([{"train": [[0]], "val": [], "test": []}] * 4, "damaged ~ clients.0.train.0"),
        ([{"train": [0.5], "val": [], "test": []}] * 4, "damaged ~ clients.0.train.0"),
        ([{"train": [True], "val": [], "test": []}] * 4, "damaged ~ clients.0.train.0"),
        ([{"train": [2**70], "val": [], "test": []}] * 4, "partition.json ~ damaged"),
        ([{"train": [0], "val": [], "test": [1797]}], "partition.json ~ 0..1796"),
        ([{"train": [0], "val": [], "test": [5000]}], "partition.json ~ 0..1796"),
        ([{"train": [0], "val": [], "test": []}] * 4, "training sample ~ two clients"),
        ([{"train": [0], "val": [1], "test": [1]}], "tests ~ training samples"),
    ],
)
def test_damage_is_noticed(saved, clients, message):
    change(saved, clients=clients)
    with pytest.raises(ValueError, match=parts(message)):
        digits(saved).setup()


def test_a_common_test_set_with_training_samples_is_refused(saved):
    change(saved, pooled_test=[json.loads(saved.read_text())["clients"][0]["train"][0]])
    with pytest.raises(ValueError, match=parts("partition.json ~ tests ~ training samples")):
        digits(saved).setup()


def test_a_sample_in_another_place_is_noticed(saved):
    """Numbers that could be a partition, but are not the one of the file's hash."""
    clients = json.loads(saved.read_text())["clients"]
    clients[0]["train"][0], clients[1]["train"][0] = clients[1]["train"][0], clients[0]["train"][0]
    change(saved, clients=clients)
    with pytest.raises(ValueError, match=parts("partition.json ~ damaged ~ samples ~ hash")):
        digits(saved).setup()


def test_hashes_tell_partitions_and_data_apart():
    one = Digits(num_clients=4, partition=IID()).description()
    two = Digits(num_clients=5, partition=IID()).description()
    other = Synthetic(num_clients=4, partition=IID()).description()
    assert one["content_hash"] == two["content_hash"] != other["content_hash"]
    assert len({one["hash"], two["hash"], other["hash"]}) == 3
