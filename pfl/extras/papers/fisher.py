"""Fisher information of clients' models over rounds, and the effect of its largest entries.

"FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024, Figs. 3a and 3b.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.func import functional_call

from pfl.callbacks.analysis import Analysis
from pfl.core.checks import at_least_one, one_of, within
from pfl.core.data import holders, members
from pfl.core.seeds import generator
from pfl.core.state import fingerprint
from pfl.core.types import RoundResult, State
from pfl.federation.run import Row, Run
from pfl.training import client_round
from pfl.training.batching import chunks
from pfl.training.context import Context

_SHARES = (0.0, 0.01, 0.05, 0.1, 0.2)
Replacement: TypeAlias = Literal["initial", "zero", "other"]


class FisherTraces(Analysis):
    """Fisher traces of all clients' personalised models, including absent clients.

    Traces are recomputed only for models that have changed. The columns of the file are
    ``round, client, samples, trained, trace``.
    """

    file = "fisher.csv"

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, float]] = {}

    def rows(self, run: Run, result: RoundResult) -> Iterator[Row]:
        """Yield a row for each client with training data."""
        trained = set(result.cohort.trains)
        for client in holders(run.data, "train"):
            context = run.personal(client)
            model = fingerprint([context.module.state_dict()])
            if self._known.get(client, ("", 0.0))[0] != model:
                information = fisher_information(context, client).values()
                self._known[client] = model, sum(float(values.sum()) for values in information)
            yield {
                "round": result.round,
                "client": client,
                "samples": len(run.data.split(client, "train")),
                "trained": client in trained,
                "trace": self._known[client][1],
            }


class ReplacedParameters(Analysis):
    """Test scores after replacing parameters of the clients' final personalised models.

    The parameters with the most Fisher information are replaced and, for comparison, as many random
    ones. The file has a row for each client, share and kind, with the columns ``round, client,
    share, highest`` (1, or 0 for random parameters), ``test_samples, score``.

    Args:
        shares: Shares of the parameters to replace, in [0, 1].
        by: New values: ``initial`` ones, ``zero``, or those of the next client (``other``).
        draws: Number of random choices, over which the score is averaged.

    Raises:
        ValueError: A number is out of range, or ``by`` is not one of these words.
    """

    file = "replaced.csv"

    def __init__(
        self, shares: Sequence[float] = _SHARES, by: Replacement = "initial", draws: int = 10
    ) -> None:
        for share in shares:
            within("[0, 1]", shares=share)
        one_of("by", by, get_args(Replacement))
        at_least_one(draws=draws)
        self.shares = shares
        self.by = by
        self.draws = draws

    def rows(self, run: Run, result: RoundResult) -> Iterable[Row]:
        """Return no rows: whether a round is the last may be decided after it."""
        return ()

    def on_fit_end(self, run: Run) -> None:
        """Write the rows of the last round."""
        clients = holders(run.data, "train", "test")
        rows = [row for client in clients for row in self._of_client(run, run.round, client)]
        if self._rows is not None:
            self._rows.replace(0, rows)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: checkpoints precede the rows."""
        return {}

    def _of_client(self, run: Run, number: int, client: int) -> Iterator[Row]:
        instead = self._instead(run, client)
        context = run.personal(client)
        information = fisher_information(context, client)
        names = list(information)
        flat = torch.cat([information[name].flatten() for name in names])
        order = flat.argsort(descending=True, stable=True)
        whole, others = (
            torch.cat([state[name].flatten() for name in names]).clone()
            for state in (context.entries, instead)
        )
        for share in self.shares:
            count = math.ceil(share * len(flat))
            streams = [generator(run.seed, "replaced", client, n) for n in range(self.draws)]
            drawn = [torch.randperm(len(flat), generator=one)[:count] for one in streams]
            for highest, choices in ((1, [order[:count]]), (0, drawn)):
                places = [chosen.to(whole.device) for chosen in choices]
                scores = [
                    self._score(context, client, names, whole.index_copy(0, place, others[place]))
                    for place in places
                ]
                yield {
                    "round": number,
                    "client": client,
                    "share": share,
                    "highest": highest,
                    "test_samples": len(run.data.split(client, "test")),
                    "score": sum(scores) / len(scores),
                }

    def _instead(self, run: Run, client: int) -> State:
        if self.by == "other":
            others = members(run.data)
            other = run.personal(others[(others.index(client) + 1) % len(others)])
            return {name: value.clone() for name, value in other.entries.items()}
        factor = 0 if self.by == "zero" else 1
        return {name: factor * value for name, value in run.template.items()}

    def _score(self, context: Context, client: int, names: list[str], values: Tensor) -> float:
        """Return the main score of the model with other parameters."""
        sizes = [context.entries[name].numel() for name in names]
        parts = zip(names, torch.split(values, sizes), strict=True)
        context.write({name: part.view_as(context.entries[name]) for name, part in parts})
        answers = client_round.on_splits(context, client, ("test",))
        (scores,) = context.scorer.scores([answers["test"]])
        return scores.get(next(iter(context.scorer.better)), math.nan)


def fisher_information(context: Context, client: int) -> State:
    """Return the diagonal of the empirical Fisher information of the module on a client's data.

    For parameter k it is ``sum_b (d mean_{j in b} loss_j / d W_k)^2`` over the batches b in stored
    order, in eval mode; its sum over parameters is the trace that FedAS's released code uses.

    There is a tensor for each parameter that affects the outputs; none without data.
    """
    module, data = context.module, context.data
    module.eval()
    values = {n: p.detach().requires_grad_() for n, p in module.named_parameters()}
    split = data.split(client, "train")
    information: State = {}
    for positions in chunks(len(split), data.batch_size):
        # In the precision of the run, as in a participant's own passes.
        with torch.enable_grad(), context.fabric.autocast():
            batch = split.batch(positions)
            outputs = functional_call(module, values, (batch.x,))
            loss = module.task.loss(outputs, batch.y, batch.weight)
        slopes = torch.autograd.grad(loss, list(values.values()), allow_unused=True)
        for name, slope in zip(values, slopes, strict=True):
            if slope is not None:
                information[name] = information.get(name, 0) + slope.square()
    return information
