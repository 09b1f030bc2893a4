"""The task of predicting risks from times to an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pfl.core.checks import one_of
from pfl.core.criteria import exact
from pfl.core.task import SHARE, Task

# Number of pairs of samples that are compared at a time.
_PART = 2**22

Ties: TypeAlias = Literal["breslow", "efron"]


@dataclass(frozen=True, repr=False)
class Survival(Task):
    """Times to an event or to the end of observation: (n, 2) times and events, (n, 1) log-risks.

    An event is 1 and a censored sample 0. The loss is Cox's negative logarithmic partial likelihood
    of the samples of a batch, divided by the number of its events; zero without any. As the risk
    set of a sample is the rest of its batch, there are no losses of single samples
    (:attr:`~pfl.core.task.Task.separable`), and large batches are better.

    The scores are Harrell's concordance (``cindex``): the share of comparable pairs whose earlier
    event has the larger risk, where equal risks count one half; and ``loss``, of all samples
    together. A client without a comparable pair, or without an event, lacks the score.

    Args:
        ties: How events at the same time are handled: ``breslow``, or ``efron``.

    Raises:
        ValueError: ``ties`` is something else.
    """

    ties: Ties = "breslow"

    loss_name = "cox"
    separable = False
    scores_better = {"cindex": True, "loss": False}  # noqa: RUF012
    scores_within = {"cindex": SHARE}  # noqa: RUF012
    may_lack = ("cindex", "loss")

    def __post_init__(self) -> None:
        one_of("ties", self.ties, ("breslow", "efron"))

    def of_targets(self, y: Tensor) -> tuple[Task, Tensor]:
        """Return the task, and (n, 2) times and events in double precision.

        Raises:
            ValueError: A time is negative, or an event neither 0 nor 1.
        """
        if y.dim() != 2 or y.shape[1] != 2:
            raise ValueError(
                f"survival needs (n, 2) targets, times and events, got shape {tuple(y.shape)}"
            )
        for wrong, what in (
            (~(y[:, 0] >= 0), "the time {}, which is not at least 0"),
            ((y[:, 1] != 0) & (y[:, 1] != 1), "the event {}, which is neither 0 nor 1"),
        ):
            if wrong.any():
                first = int(wrong.nonzero()[0])
                value = y[first, 1 if "event" in what else 0].item()
                raise ValueError(f"sample {first} has {what.format(value)}")
        return self, y.double()

    def outputs(self, targets: int) -> int:
        """Return 1."""
        return 1

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the negative logarithmic partial likelihood of an event of the batch."""
        risk, y = _risk(outputs), y.to(outputs.dtype)
        time, event = y.unbind(1)
        real = torch.ones_like(risk) if weight is None else weight
        event = event * real
        order = (time[None, :] >= time[:, None]).to(risk.dtype) * real
        # Of each sample, the sum of the risks of those that are still observed at its time.
        largest = risk.detach().amax()
        chances = (risk - largest).exp()
        at_risk = order @ chances
        if self.ties == "efron":
            tied = (time[None, :] == time[:, None]).to(risk.dtype) * event
            place = (tied.tril(-1).sum(1)) / tied.sum(1).clamp_min(1)
            at_risk = at_risk - place * (tied @ chances)
        tiny = torch.finfo(risk.dtype).tiny
        values = (at_risk.clamp_min(tiny).log() + largest - risk) * event
        return values.sum() / event.sum().clamp_min(1)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return (B, 3): log-risk, time and event."""
        return torch.cat([exact(_risk(outputs))[:, None], exact(y)], dim=1)

    def scores_of_rows(self, rows: Tensor) -> Tensor:
        """Return the (2,) scores; see :meth:`Task.scores`."""
        risk, time, event = rows.unbind(1)
        loss = self.loss(risk[:, None], rows[:, 1:])
        return torch.stack(
            [concordance(risk, time, event), torch.where(event.sum() > 0, loss, torch.nan)]
        )

    def example(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Return samples whose risks are in the order of their times, but for one."""
        time = 1 + torch.arange(32).double()
        risk = torch.where(time < 2, -40.0, -time)[:, None]
        return risk, torch.stack([time, (torch.arange(32) % 3 > 0).double()], dim=1)


def _risk(outputs: Tensor) -> Tensor:
    if outputs.dim() != 2 or outputs.shape[1] != 1:
        raise ValueError(f"survival needs outputs of shape (n, 1), got {tuple(outputs.shape)}")
    return outputs[:, 0]


def concordance(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """Return Harrell's concordance, NaN if no two samples can be compared.

    Two samples can be if the one with the earlier time has an event, or if only one of two with the
    same time has.

    Args:
        risk: (n,) risks.
        time: (n,) times.
        event: (n,) one for an event, zero for the end of observation.

    Example:
        >>> time, event = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 1.0])
        >>> concordance(torch.tensor([3.0, 5.0, 1.0]), time, event)
        tensor(0.5000)
    """
    right, pairs = risk.new_zeros(()), risk.new_zeros(())
    happened = event > 0
    size = max(1, _PART // len(risk))
    for own in torch.split(happened.nonzero().squeeze(1), size):
        later = (time > time[own, None]) | ((time == time[own, None]) & ~happened)
        apart = risk[own, None] - risk
        pairs = pairs + later.sum()
        right = right + ((apart > 0) & later).sum() + 0.5 * ((apart == 0) & later).sum()
    return right / pairs
