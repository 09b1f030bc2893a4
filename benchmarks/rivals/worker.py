"""What runs in the environment of another simulator; of this project it imports nothing.

``worker.py NAME FILE`` reads a workload, says that it is ready, with the versions of what it runs,
and then trains a round for each line that it is given.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

READY, GO, DONE = "ready", "go\n", "done\n"
LR = 0.005


def cnn() -> nn.Module:
    """Return the network of 1.6 million parameters."""
    features = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    hidden = [nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU()]
    return nn.Sequential(*features, *hidden, nn.Dropout(0.5), nn.Linear(128, 10))


def lenet() -> nn.Module:
    """Return LeNet-5 with ReLU for images of 28 x 28."""
    features = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
    features += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(
        *features, nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
    )


def logistic() -> nn.Module:
    """Return a linear classifier."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"cnn": cnn, "lenet": lenet, "logistic": logistic}


class Work:
    """A workload as it was written.

    Attributes:
        net: The network at the initial values that all variants have.
        clients: (N,) pairs of (samples, ...) inputs and (samples,) classes.
        sizes: ``cohort``, ``epochs``, ``batch_size`` and ``device``.

    Args:
        file: What ``benchmarks.rivals`` wrote.
        channels_last: Whether channels are innermost in memory.
    """

    def __init__(self, file: str, channels_last: bool) -> None:
        self.sizes = torch.load(file)
        self.net = NETWORKS[self.sizes["kind"]]()
        own = self.net.state_dict()
        for value, given in zip(own.values(), self.sizes["start"], strict=True):
            value.copy_(given.reshape(value.shape))
        device = torch.device(self.sizes["device"])
        x, y = self.sizes["x"].to(device), self.sizes["y"].to(device)
        self.net = self.net.to(device)
        if channels_last and self.sizes["kind"] != "logistic":
            self.net = self.net.to(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
        per = self.sizes["samples"]
        self.clients = list(zip(x.split(per), y.split(per), strict=True))

    def __getitem__(self, name: str) -> int:
        number: int = self.sizes[name]
        return number


def fedlab(file: str, wait: Callable[[str], None]) -> None:
    """Run rounds of FedLab, which cannot train the CNN with channels innermost."""
    work = Work(file, channels_last=False)
    trainers = import_module("fedlab.contrib.algorithm.basic_client")
    handlers = import_module("fedlab.contrib.algorithm.basic_server")
    data, device = torch.utils.data, work.sizes["device"]
    cuda = device != "cpu"

    def loader(client: int, batch_size: int) -> Iterable[Any]:
        samples = data.TensorDataset(*work.clients[client])
        return data.DataLoader(samples, batch_size, shuffle=True)

    trainer = trainers.SGDSerialClientTrainer(work.net, len(work.clients), cuda, device)
    trainer.setup_dataset(types.SimpleNamespace(get_dataloader=loader))
    trainer.setup_optim(work["epochs"], work["batch_size"], LR)
    share = (work["cohort"] + 0.5) / len(work.clients)  # It is rounded down.
    handler = handlers.SyncServerHandler(work.net, 10**9, min(1.0, share), cuda, device)
    handler.num_clients = trainer.num_clients
    wait(f"{READY} fedlab {version('fedlab')}, torch {version('torch')}\n")
    while True:
        drawn = handler.sample_clients()
        trainer.local_process(handler.downlink_package, drawn)
        for upload in trainer.uplink_package:
            handler.load(upload)
        wait(DONE)


def pfl_research(file: str, wait: Callable[[str], None]) -> None:
    """Run rounds of pfl-research."""
    work = Work(file, channels_last=True)
    data, sampling = import_module("pfl.data"), import_module("pfl.data.sampling")
    metrics, weighting = import_module("pfl.metrics"), import_module("pfl.aggregate.weighting")
    hyper, algorithm = import_module("pfl.hyperparam"), import_module("pfl.algorithm.base")
    averaging = import_module("pfl.algorithm.federated_averaging")

    def loss(self: nn.Module, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return F.cross_entropy(self(x), y)

    def measured(self: nn.Module, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
        with torch.no_grad():
            value = F.cross_entropy(self.eval()(x), y, reduction="sum")
        return {"loss": metrics.Weighted(value.item(), len(y))}

    named: Any = work.net
    named.loss, named.metrics = types.MethodType(loss, named), types.MethodType(measured, named)
    sampler = sampling.get_user_sampler("random", range(len(work.clients)))
    users = data.FederatedDataset.from_slices(work.clients, sampler)
    backend = import_module("pfl.aggregate.simulate").SimulatedBackend(
        training_data=users, val_data=users, postprocessors=[weighting.WeightByUser()]
    )

    def after(self: object, *args: object, **kwargs: object) -> tuple[bool, Any]:
        wait(DONE)
        return False, metrics.Metrics()

    callback = import_module("pfl.callback.base").TrainingProcessCallback
    pause = type("Pause", (callback,), {"after_central_iteration": after})
    wait(f"{READY} pfl-research {version('pfl')}, torch {version('torch')}\n")
    averaging.FederatedAveraging().run(
        algorithm_params=algorithm.NNAlgorithmParams(10**6, 10**7, work["cohort"], 0),
        backend=backend,
        model=import_module("pfl.model.pytorch").PyTorchModel(
            named, torch.optim.SGD, torch.optim.SGD(named.parameters(), lr=1.0)
        ),
        model_train_params=hyper.NNTrainHyperParams(
            local_learning_rate=LR,
            local_num_epochs=work["epochs"],
            local_batch_size=work["batch_size"],
        ),
        model_eval_params=hyper.NNEvalHyperParams(local_batch_size=500),
        callbacks=[pause()],
        send_metrics_to_platform=False,
    )


def main() -> None:
    """Run the rounds of the simulator that was named."""
    # Simulators print, too: what they say goes where errors go.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def wait(word: str) -> None:
        """Say a word, and wait for the next round; end when nobody asks for one."""
        answers.write(word)
        answers.flush()
        if sys.stdin.readline() != GO:
            os._exit(0)

    {"fedlab": fedlab, "pfl_research": pfl_research}[sys.argv[1]](sys.argv[2], wait)


if __name__ == "__main__":
    main()
