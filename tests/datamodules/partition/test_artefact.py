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
    with pytest.raises(
        FileNotFoundError,
        match=parts("Dirichelt; ~ partition file or a partitioner ~ list partitions"),
    ):
        digits("Dirichelt").setup()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "pfl', "partition.json ~ damaged"),
        ("[" * 200_000, "partition.json ~ 50 levels"),
        ("{}", 'partition.json ~ "format": "pfl-partition-1"'),
    ],
)
def test_what_is_no_partition_is_refused(saved, text, message):
    saved.write_text(text)
    with pytest.raises(ValueError, match=parts(message)):
        digits(saved).setup()


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("clients", [{"train": [0], "val": []}] * 4, "partition.json ~ damaged"),
        ("clients", None, "partition.json ~ damaged"),
        ("clients", [], "damaged ~ clients"),
        ("clients", [{"train": ["a"], "val": [], "test": []}] * 4, "damaged ~ clients.0.train.0"),
        ("clients", [{"train": [2**70], "val": [], "test": []}] * 4, "partition.json ~ damaged"),
        ("clients", [{"train": [0], "val": [], "test": [1797]}], "partition.json ~ 0..1796"),
        ("clients", [{"train": [0], "val": [], "test": []}] * 4, "training sample ~ two clients"),
        ("clients", [{"train": [0], "val": [1], "test": [1]}], "tests ~ training samples"),
        ("pooled_test", [*range(1797)], "partition.json ~ tests ~ training samples"),
    ],
)
def test_damage_is_noticed(saved, entry, value, message):
    change(saved, **{entry: value})
    with pytest.raises(ValueError, match=parts(message)):
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
