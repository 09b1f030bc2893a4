"""FedAvg by hand: a Trainer of Lightning for each client's round, and a mean."""

import copy

import lightning as L
import torch

from pfl.core.seeds import derive, generator
from pfl.training.lightning_loops import Batches

OPTIONS = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "precision": "64-true",
}
SEED, EPOCHS, ROUNDS = 42, 2, 2


def by_trainers(net, toy, kept=(), rounds=ROUNDS):
    """Return the mean after the last round, and each client's scores of its model.

    Args:
        net: The LightningModule.
        toy: The data, with batches of four samples.
        kept: Names of the entries that stay with each client; in the mean they are its last one's.
        rounds: Number of rounds.
    """
    wide = [(x.double(), y) for x, y in toy.splits["train"]]
    total, net = sum(len(y) for _, y in wide), copy.deepcopy(net).double()
    first = {name: net.state_dict()[name].clone() for name in kept}
    stay = [{**first} for _ in wide]
    for number in range(1, rounds + 1):
        states = []
        for client, (x, y) in enumerate(wide):
            own, job = copy.deepcopy(net), derive(SEED, "client", number, client)
            own.load_state_dict(stay[client], strict=False)
            orders = [
                torch.randperm(len(y), generator=generator(job, "order", "local", epoch))
                for epoch in range(EPOCHS)
            ]
            trainer = L.Trainer(max_epochs=EPOCHS, **OPTIONS)
            batches = Batches(
                lambda rows, x=x, y=y: [x[rows], y[rows]],
                [torch.split(order, 4) for order in orders],
                lambda trainer=trainer: trainer.current_epoch,
                y,
            )
            trainer.fit(own, batches)
            states.append(own.state_dict())
            stay[client] = {name: states[-1][name].clone() for name in kept}
        shares = [len(y) / total for _, y in wide]
        mean = {
            name: sum(share * state[name] for share, state in zip(shares, states, strict=True))
            for name, value in states[0].items()
            if value.is_floating_point()
        }
        net.load_state_dict(mean, strict=False)
    scores = []
    for (x, y), own in zip(toy.splits["test"], stay, strict=True):
        net.load_state_dict(own, strict=False)
        rows = torch.split(torch.arange(len(y)), toy.eval_batch_size)
        tests = Batches(lambda some, x=x, y=y: [x[some].double(), y[some]], [rows])
        (found,) = L.Trainer(**OPTIONS).test(copy.deepcopy(net), tests, verbose=False)
        scores.append(found)
    return mean, scores
