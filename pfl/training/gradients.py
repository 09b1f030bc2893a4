"""Steps of the uplink that draw batches and take gradients in a way of their own."""

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
        """Return the same where samples are secret.

        Args:
            read: Returns the samples at some positions.
            positions: Those of the step's batch, at least one.
            number: The step.
            empty: Whether no sample of the batch counts.
        """

    @abstractmethod
    def sums(self, batch: Batch) -> Entries:
        """Return sums over a batch: of gradients, terms and logged numbers.

        It is called under ``vmap``, of stacked clients.

        Args:
            batch: Its weights are one for a sample, zero for padding; without weights, all are one.
        """

    @abstractmethod
    def finish(self, sums: Entries, number: int) -> Entries:
        """Return the gradients, terms and logged numbers of a step of the first clients.

        Args:
            sums: Of :meth:`sums`, each with a leading axis of clients.
            number: The step.
        """


class GradientStep(ClientStep, ABC):
    """A step that takes the gradients of a client's training in a way of its own.

    Where it is ``secret``, samples are neither held nor shown to the module's hooks. Losses may be
    numbers that are not finite.
    """

    @abstractmethod
    def batches(self, job: Job, phase: Phase, epoch: int, samples: int, count: int) -> list[Tensor]:
        """Return the positions of an epoch's batches, of which some may be empty.

        Args:
            job: The client's job.
            phase: The phase.
            epoch: The number of the epoch.
            samples: How many samples the client has.
            count: How many batches an epoch has.
        """

    @abstractmethod
    def gradients(
        self, context: Context, phase: Phase, jobs: Sequence[Job], steps: int
    ) -> Gradients:
        """Return the gradients of clients in a phase, which is prepared.

        Args:
            context: The module and its data.
            phase: The phase.
            jobs: Of the clients, with the same steps.
            steps: How many optimiser steps there are, at most.
        """


def gradient_step(job: Job) -> GradientStep | None:
    """Return the step of a job that takes gradients in a way of its own, if there is one."""
    return next((step for step in job.steps if isinstance(step, GradientStep)), None)
