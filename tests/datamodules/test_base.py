"""The data module as the loop, the engines and a plain Trainer use it."""

import pickle

import lightning as L
import numpy as np
import pytest
import torch

from datamodules import IID, CropFlip, Digits, Dirichlet, Shards, Synthetic
from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import SplitNet
from tests.helpers.data import held
from tests.helpers.messages import parts


def digits(**arguments):
    return Digits(**{"num_clients": 5, "partition": Dirichlet(0.5)} | arguments)


def test_shape_and_classes_are_known_before_setup():
    data = digits()
    assert (data.num_classes, data.input_shape) == (10, (1, 8, 8))
    assert "_prepared" not in vars(data)


@pytest.mark.parametrize("protocol", ["pooled", "global"])
def test_digits_are_sixteenths_in_minus_one_to_one(protocol):
    """Grey value v of 16 becomes round(255 v / 16) / 255 * 2 - 1; never off by over 1 / 255."""
    from sklearn.datasets import load_digits

    images, labels = torch.from_numpy(load_digits().images / 8 - 1).float(), load_digits().target
    data = digits(max_samples=300, test_protocol=protocol)
    views = [(data.split(client, "train"), held(data, client)) for client in range(5)]
    if protocol == "global":
        views.append((data.pooled_test(), data.division.pooled_test))
    for view, ids in views:
        batch = view.batch(torch.arange(len(view)))
        assert (batch.x[:, 0] - images[ids]).abs().max() <= 1 / 255 + 1e-6
        assert batch.y.tolist() == labels[ids].tolist() == view.targets.tolist()


def test_batches_follow_the_default_float_type():
    view = digits().split(0, "train")
    single = view.batch(torch.arange(3)).x
    torch.set_default_dtype(torch.float64)
    try:
        double = view.batch(torch.arange(3)).x
    finally:
        torch.set_default_dtype(torch.float32)
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    assert torch.allclose(single.double(), double, atol=1e-6)
    # In double precision the arithmetic is exact to the last bits.
    assert torch.allclose((double + 1) / 2 * 255, ((double + 1) / 2 * 255).round(), atol=1e-10)


def test_nothing_comes_from_or_goes_to_a_global_stream():
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1]
    first = digits().description()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    torch.manual_seed(1)
    assert digits().description() == first


def test_only_training_batches_drawn_with_an_rng_are_augmented():
    data = digits(augment=CropFlip(padding=2))
    train, test = data.split(0, "train"), data.split(0, "test")
    assert train.augmented
    assert not test.augmented
    positions = torch.arange(len(train))
    rng = torch.Generator().manual_seed(0)
    plain = train.batch(positions).x
    assert not torch.equal(train.batch(positions, rng).x, plain)
    assert torch.equal(train.batch(positions).x, plain)
    test_rng = torch.Generator().manual_seed(0)
    assert torch.equal(test.batch(torch.arange(3), test_rng).x, test.batch(torch.arange(3)).x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clients": 1798}, "num_clients ~ 1798 ~ 1797 samples"),
        ({"mean": [0.5, 0.5]}, "mean ~ 2 ~ 1 channels"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(arguments, message):
    with pytest.raises(ValueError, match=parts(message)):
        digits(partition=IID(), **({"num_clients": 5} | arguments)).setup()


def test_a_federation_without_any_test_sample_is_refused():
    """Four clients of one sample each keep it for training."""
    message = parts("4 clients ~ test sample ~ num_clients, max_samples ~ test_fraction")
    with pytest.raises(ValueError, match=message):
        digits(partition=IID(), num_clients=4, max_samples=4).setup()


@pytest.mark.parametrize("client", [5, -1])
def test_there_is_no_such_client(client):
    with pytest.raises(ValueError, match=parts(f"client {client} ~ 0 to 4")):
        digits().split(client, "train")


@pytest.mark.parametrize("client", [None, 1])
def test_it_serves_a_plain_trainer(client):
    data = digits(client=client, val_fraction=0.2, max_samples=400, drop_last=True)
    module = FedAvg(SplitNet(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data, verbose=False)
    assert trainer.global_step == 2 * len(data.train_dataloader())
    sizes = [len(data.split(c, "train")) for c in range(5)]
    expected = sum(sizes) if client is None else sizes[client]
    assert len(data.train_dataloader()) == expected // 32


@pytest.mark.parametrize("client", [None, 2])
def test_training_batches_come_in_stored_order_without_shuffle(client):
    data = digits(client=client, shuffle=False, max_samples=300)
    clients = range(5) if client is None else [client]
    stored = torch.cat([data.split(c, "train").targets for c in clients])
    for _ in range(2):
        assert torch.cat([batch.y for batch in data.train_dataloader()]).equal(stored)
    data.shuffle = True
    assert not torch.cat([batch.y for batch in data.train_dataloader()]).equal(stored)


def test_a_client_smaller_than_a_batch_is_not_dropped():
    data = digits(client=0, partition=IID(), num_clients=150, batch_size=32, drop_last=True)
    assert [len(batch.y) for batch in data.train_dataloader()] == [len(data.split(0, "train"))]


@pytest.mark.parametrize("kind", [Digits, Synthetic])
def test_another_process_gets_the_recipe_and_reads_for_itself(kind):
    data = kind(num_clients=3, partition=Shards(2), max_samples=300)
    unread = len(pickle.dumps(data))
    data.setup()
    sent = pickle.dumps(data)
    assert len(sent) == unread < 5000
    there = pickle.loads(sent)
    assert there.description() == data.description()
    assert torch.equal(
        there.split(1, "train").batch(torch.arange(9)).x,
        data.split(1, "train").batch(torch.arange(9)).x,
    )


def test_drawn_clients_without_samples_are_told_by_number():
    data = Digits(num_clients=60, max_samples=400, partition=Dirichlet(0.05, min_samples=0))
    data.prepare_data()
    with pytest.warns(UserWarning, match="have no sample") as told:
        data.setup()
    empty = [client for client in range(60) if not len(data.split(client, "train"))]
    assert len(empty) > 3
    first = ", ".join(map(str, empty[:3]))
    said = (
        f"{len(empty)} of 60 clients have no sample to train on ({first} and {len(empty) - 3} more)"
    )
    assert any(str(one.message).startswith(said) for one in told)
