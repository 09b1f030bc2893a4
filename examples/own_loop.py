"""Your own loop: a growing cohort, a server that averages over rounds, early stopping."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from datamodules import Digits, Dirichlet
from lightning_modules import MLP, FedPer
from pfl import FederatedLoop
from pfl.core.seeds import scoped
from pfl.core.types import Cohort
from pfl.federation.sampling import Sampler


class WarmUp(Sampler):
    """Samples three clients in the first round and one more in each later round."""

    def __call__(self, clients: Sequence[int], rng: torch.Generator, round: int) -> Cohort:
        """Return the clients of a round, drawn with the round's generator."""
        order = torch.randperm(len(clients), generator=rng).tolist()
        chosen = tuple(sorted(clients[place] for place in order[: round + 2]))
        return Cohort(trains=chosen, uploads=chosen)


data = Digits(num_clients=10, partition=Dirichlet(0.3), batch_size=16)
with scoped(3):
    net = MLP(data.outputs, data.input_shape)
method = FedPer(net, optimizer=partial(torch.optim.SGD, lr=0.05))
loop = FederatedLoop(rounds=10, sampler=WarmUp(), progress=False)

average: dict[str, torch.Tensor] = {}
for run, result in loop.rounds_of(method, data):
    shared = run.server.shared
    average = {name: 0.5 * average.get(name, value) + 0.5 * value for name, value in shared.items()}
    run.server = replace(run.server, shared=average)  # the next round broadcasts the average
    accuracy = result.metrics["test/personal/acc"]
    print(f"round {result.round}: {accuracy:.2f}, {len(run.kept)} clients keep a head")
    if accuracy > 0.75:
        break
