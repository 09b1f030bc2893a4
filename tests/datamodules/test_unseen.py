"""Clients that are held out, and the names of natural clients."""

from __future__ import annotations

import json

import numpy as np
import pytest
from jsonargparse import ArgumentParser

from datamodules import IID, ByDomain, Digits, Dirichlet, TensorData, Unseen
from tests.helpers.messages import parts

HOSPITALS = ("Basel", "Cleveland", "Hungary", "Long Beach")


def digits(unseen=None, **options):
    return Digits(num_clients=10, partition=Dirichlet(1.0), unseen=unseen, **options)


def hospitals(unseen=None, num_clients=4, **options):
    rng = np.random.default_rng(0)
    tensors = {
        "x": rng.normal(size=(80, 2)).astype(np.float32),
        "y": np.arange(80) % 2,
        "client": np.repeat(HOSPITALS, 20),
    }
    return TensorData(tensors, num_clients, ByDomain(), unseen=unseen, **options)


def test_no_clients_samples_change():
    whole, parted = digits(), digits(Unseen(share=0.3, validation=0.3))
    for one, other in zip(whole.division.holdings, parted.division.holdings, strict=True):
        for name in ("train", "val", "test"):
            assert (one.of(name) == other.of(name)).all()
    assert len(parted.apart["unseen"]) == 2
    assert len(parted.apart["validation"]) == 1
    assert not set(parted.apart["unseen"]) & set(parted.apart["validation"])


def test_the_seed_draws_at_least_one():
    draws = [str(digits(Unseen(share=0.2, seed=seed)).apart) for seed in (1, 1, 2, 3)]
    assert len({*draws}) == 3
    assert len(digits(Unseen(share=0.01)).apart["unseen"]) == 1


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ({"clients": [4]}, {}, "unseen: ~ client 4 ~ 0 to 3"),
        ({"clients": ["Zurich"]}, {}, "unseen: ~ 'Zurich' ~ Basel, Cleveland"),
        ({"clients": [0, 1, 2, 3]}, {}, "unseen: every client"),
        ({"share": 0.5}, {"test_protocol": "global"}, "unseen: no client ~ training and test"),
        ({"clients": [1]}, {"test_protocol": "global"}, "unseen: client 1 ~ training or test"),
    ],
)
def test_clients_that_cannot_be_held_out_are_named(rule, options, message):
    with pytest.raises(ValueError, match=parts(message)):
        hospitals(Unseen(**rule), **options).setup()


def test_clients_by_number_and_by_name():
    held = hospitals(Unseen(clients=["Hungary", 0])).apart
    assert (held["unseen"], held["validation"]) == ((0, 2), ())


def test_a_number_in_quotes_is_a_name():
    """Hospitals 1 to 4 are the clients 0 to 3; only what is no name is read as a number."""
    tensors = {"x": np.zeros((40, 2)), "y": np.arange(40) % 2, "client": np.repeat([*"1234"], 10)}

    def unseen(text):
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(Unseen, "unseen")
        rule = Unseen(**vars(parser.parse_string(f"unseen: {{clients: {text}}}").unseen))
        return TensorData(tensors, 4, ByDomain(), unseen=rule).apart["unseen"]

    assert unseen('["1"]') == (0,)
    with pytest.warns(UserWarning, match="the client named 1 has the number 0"):
        assert unseen("[1]") == (1,)


def test_a_hospital_stands_for_all_its_clients():
    data = hospitals(Unseen(clients=["Hungary"]), num_clients=8)
    assert data.apart["unseen"] == (2, 6)
    assert data.client_names[2] == "Hungary (1)"
    assert data.client_names[6] == "Hungary (2)"


def test_by_domain_holds_out_whole_domains():
    held = hospitals(Unseen(by="domain"), num_clients=8).apart
    (one, other) = held["unseen"]
    assert other == one + 4
    held = hospitals(Unseen(by="domain", share=0.5, validation=0.5), num_clients=8).apart
    assert len(held["unseen"]) == len(held["validation"]) == 2


def test_the_partition_file_stores_who_is_held_out(tmp_path):
    data = digits(Unseen(share=0.3))
    file = tmp_path / "partition.json"
    file.write_text(json.dumps(data.description()))
    again = Digits(num_clients=10, partition=str(file))
    assert again.apart == data.apart
    assert again.description()["hash"] == data.description()["hash"]
    # Another choice of clients is another division; none leaves the hash as it is.
    assert digits(Unseen(clients=[1])).description()["hash"] != data.description()["hash"]
    assert "held_out" not in digits().description()
    changed = data.description()
    changed["held_out"]["unseen"] = [11]
    file.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=parts("partition.json ~ holds out ~ client")):
        Digits(num_clients=10, partition=str(file)).setup()


def test_a_plain_trainer_does_not_see_them():
    data = hospitals(Unseen(clients=[3]))
    assert sum(len(batch.y) for batch in data.train_dataloader()) == 45
    assert sum(len(batch.y) for batch in data.test_dataloader()) == 15


def test_names_of_natural_clients():
    assert tuple(hospitals().client_names) == HOSPITALS
    merged = hospitals(num_clients=2).client_names
    assert sorted(" + ".join(merged).split(" + ")) == sorted(HOSPITALS)
    rng = np.random.default_rng(0)
    mixed = {"x": rng.normal(size=(40, 2)), "y": np.arange(40) % 2, "client": np.arange(40) % 4}
    assert tuple(TensorData(mixed, 3, IID()).client_names) == ()
    assert tuple(digits().client_names) == ()
