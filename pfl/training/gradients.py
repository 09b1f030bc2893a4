"""Steps of the uplink that replace how batches are drawn and gradients computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor

from pfl.core.state import Entries
from pfl.core.types import Batch, ClientStep, Job, Outcome, Phase, State
from pfl.training.context import Context


class Gradients(ABC):
    """The gradients of some clients in one phase, step by step."""

    @abstractmethod
    def alone(self, batch: Batch, number: int, empty: bool) -> tuple[Outcome, State, State]:
        """Return the terms, gradients and logged numbers of one client's step.

        Args:
            batch: The step's batch, of at least one sample.
            number: The step.
            empty: Whether no sample of the batch counts.
        """

    @abstractmethod
    def hidden(
        self, read: Callable[[Tensor], Batch], positions: Tensor, number: int, empty: bool
    ) -> tuple[Outcome, State, State]:
        """Return the same as :meth:`alone` where samples are secret.

        Args:
            read: Returns the samples at some positions.
            positions: Positions of the step's batch, at least one.
            number: The step.
            empty: Whether no sample of the batch counts.
        """

    @abstractmethod
    def sums(self, batch: Batch) -> Entries:
        """Return sums over a batch: of gradients, terms and logged numbers.

        It is called under ``vmap`` over stacked clients.

        Args:
            batch: Its weights are one for a sample, zero for padding; without weights, all are one.
        """

    @abstractmethod
    def finish(self, sums: Entries, number: int) -> Entries:
        """Return the gradients, terms and logged numbers of a step of the first clients.

        Args:
            sums: Results of :meth:`sums`, each with a leading axis of clients.
            number: The step.
        """


class GradientStep(ClientStep, ABC):
    """A step that replaces how gradients are computed in a client's training.

    If it is ``secret``, samples are neither kept in memory nor shown to the module's hooks. Losses
    need not be finite.
    """

    @abstractmethod
    def batches(self, job: Job, phase: Phase, epoch: int, samples: int, count: int) -> list[Tensor]:
        """Return the positions of an epoch's batches, of which some may be empty.

        Args:
            job: The client's job.
            phase: The phase.
            epoch: The number of the epoch.
            samples: Number of the client's samples.
            count: Number of batches in an epoch.
        """

    @abstractmethod
    def gradients(
        self, context: Context, phase: Phase, jobs: Sequence[Job], steps: int
    ) -> Gradients:
        """Return the gradients of clients in a phase, with the module prepared for it.

        Args:
            context: The module and its data.
            phase: The phase.
            jobs: The clients' jobs, with the same steps.
            steps: Largest number of optimiser steps.
        """


def gradient_step(job: Job) -> GradientStep | None:
    """Return the gradient step among a job's steps, if there is one."""
    return next((step for step in job.steps if isinstance(step, GradientStep)), None)
