"""Rules by which a client draws its batches and takes its gradients; a step may replace them."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from pfl.core.ranges import MOST
from pfl.core.state import Entries
from pfl.core.types import Batch, ClientStep, Drawn, Job, Outcome, Phase, State
from pfl.training.batching import Feed, Length, Step, epoch_steps
from pfl.training.context import Context


class Gradients(ABC):
    """The gradients of some clients in one phase, step by step.

    Attributes:
        tracks: Whether :meth:`backward` differentiates the loss.
    """

    tracks: ClassVar[bool] = False

    @abstractmethod
    def alone(self, batch: Batch, number: int, empty: bool) -> tuple[Outcome, State, State]:
        """Return the terms, gradients and logged numbers of one client's step.

        Args:
            batch: The step's batch, of at least one sample.
            number: The step.
            empty: Whether no sample of the batch counts.
        """

    @abstractmethod
    def sums(self, batch: Batch) -> Entries:
        """Return sums over a batch: of gradients, terms and logged numbers.

        It may be called under ``vmap`` over several clients.

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

    def backward(self, loss: Tensor, trained: Mapping[str, Tensor], given: State) -> None:
        """Set the gradients of a step.

        Args:
            loss: The sum of the step's terms.
            trained: The parameters that the phase trains, by name.
            given: The gradients from :meth:`alone` or :meth:`finish`.
        """
        for name, gradient in given.items():
            trained[name].grad = gradient

    def drawn(self, row: int, steps: int) -> Sequence[Drawn]:
        """Return the noise of a client's steps, as a witness of it; none by default.

        Args:
            row: The client's place among the jobs.
            steps: Number of steps that it took.

        Raises:
            ValueError: The noise that was drawn is not what it should be.
        """
        return ()

    def shown(self, feed: Feed, number: int, step: Step) -> Batch:
        """Return the batch of one client's step, as the module's hooks see it."""
        return feed.batch(number, step.positions)

    def of_step(
        self, feed: Feed, batch: Batch, number: int, step: Step
    ) -> tuple[Outcome, State, State]:
        """Return the same as :meth:`alone`, given what :meth:`shown` returned."""
        return self.alone(batch, number, step.empty)


class SecretGradients(Gradients):
    """Gradients of samples that nobody may see: neither hooks nor, by an error, the run."""

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

    def shown(self, feed: Feed, number: int, step: Step) -> Batch:
        """Return a batch of nobody: accounts cannot cover what hooks do with samples."""
        return Batch(torch.empty(0), torch.empty(0))

    def of_step(
        self, feed: Feed, batch: Batch, number: int, step: Step
    ) -> tuple[Outcome, State, State]:
        """Return the same as :meth:`hidden` for a step."""
        return self.hidden(partial(feed.read, number), step.positions, number, step.empty)


class GradientRule(ABC):
    """A rule by which a client draws its batches and takes its gradients."""

    @property
    def secret(self) -> bool:
        """Whether random choices come from the operating system, and samples are not held."""
        return False

    @property
    def final(self) -> bool:
        """Whether an upload is not to be changed after training, but by a codec."""
        return False

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

        Returns:
            :class:`SecretGradients`, if the rule is secret.
        """

    def sound(self, losses: Mapping[str, float]) -> bool:
        """Return ``True`` if a client with these mean losses counts: if they are finite.

        A number that no client may report is none.
        """
        return all(abs(value) <= MOST for value in losses.values())

    def steps(
        self, context: Context, job: Job, phase: Phase, length: Length, samples: int
    ) -> Iterator[Step]:
        """Yield the steps of a phase for a client with ``samples`` samples; none without samples.

        A client without batches takes no step, and a warning names it.
        """
        limit = length.epochs if length.steps is None else length.steps
        epoch = taken = 0
        while samples and (epoch if length.steps is None else taken) < limit:
            count = epoch_steps(context, phase, samples)
            batches = self.batches(job, phase, epoch, samples, count)
            if not batches:
                warnings.warn(
                    f"client {job.info.client} takes no step in phase {phase.name!r}: it has one "
                    "sample, but batch norm needs at least two. Give every client two samples "
                    "(min_samples of the partition), or use group norm in the network (norm: "
                    "group)",
                    stacklevel=2,
                )
                return
            used = len(batches)
            if length.steps is None:
                used = length.of_epoch(epoch, used)
            for index, positions in enumerate(batches[:used]):
                if taken == length.steps:
                    return
                last, counted = index == used - 1, len(positions)
                read = positions if counted else torch.zeros(1).long()
                if self.secret:
                    # So that the counts of an epoch sum to all samples.
                    counted = (index + 1) * samples // len(batches)
                    counted -= index * samples // len(batches)
                yield Step(epoch, index, last, read, counted, empty=len(positions) == 0)
                taken += 1
            epoch += 1


class GradientStep(ClientStep, GradientRule):
    """A step of the uplink that replaces how a client draws its batches and takes its gradients."""


def carried(steps: Sequence[ClientStep]) -> GradientRule | None:
    """Return the rule among a client's steps, if there is one.

    Raises:
        ValueError: There are two, of which one would be ignored.
    """
    rules = [step for step in steps if isinstance(step, GradientRule)]
    if len(rules) > 1:
        one, other = (type(step).__name__ for step in rules[:2])
        raise ValueError(f"{one} and {other} both replace how a client takes its gradients")
    return rules[0] if rules else None
