"""The engine whose clients are at sites: it sends jobs as messages, and reads the answers."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch

from pfl.core.checks import at_least_one, one_of
from pfl.core.data import FederatedData
from pfl.core.elsewhere import reference_of
from pfl.core.failure import JobError
from pfl.core.types import Job, Result
from pfl.engines.absences import OnError, tolerated
from pfl.engines.transport import wire
from pfl.engines.transport.engine import CarriedEngine, FormT, Task
from pfl.extras.sites import answers
from pfl.extras.sites.correspondence import Correspondence
from pfl.extras.sites.data import at_sites
from pfl.extras.sites.facts import facts
from pfl.extras.sites.transport import GoneError, LostStateError, SiteError, Transport
from pfl.training.context import Context


class RemoteEngine(CarriedEngine):
    """An engine that has each client's jobs run at the client's site.

    What clients keep stays there: a result has a reference instead
    (:mod:`pfl.core.elsewhere`). A job of nobody's site, such as a test on the common test set, runs
    here. A transport's engine implements :meth:`connect`.

    Attributes:
        name: What the run's header calls it.

    Args:
        on_lost: What happens if a site no longer has its client's state: ``stop`` ends the run,
            ``initial`` lets the client start again from the initial values, with a warning.
        workers: Sites that are asked at a time; ``None`` asks all sites of a round.
        min_sites: Sites of a round that have to answer; without enough of them the run ends. A
            round goes on without sites that are silent. ``None`` needs all, or none if ``on_error``
            is ``absent``.
        on_error: ``stop`` ends the run if a client's job fails at its site; with ``absent`` the
            round goes on without that client, whatever the reason: an error, a refusal, silence or
            a damaged answer. Who is absent uploads nothing, has no scores, and is asked again in
            the next round.

    Raises:
        ValueError: ``workers`` or ``min_sites`` is below one, or ``on_lost`` or ``on_error`` is
            another word.
    """

    name: str = "remote"
    simulates: bool = False
    # A site may be working for a server that was killed.
    waits: ClassVar[bool] = True

    def __init__(
        self,
        on_lost: Literal["stop", "initial"] = "stop",
        workers: int | None = None,
        min_sites: int | None = None,
        on_error: OnError = "stop",
    ) -> None:
        one_of("on_lost", on_lost, ("stop", "initial"))
        at_least_one(workers=workers, min_sites=min_sites)
        self.on_lost, self.workers, self.min_sites = on_lost, workers, min_sites
        silent = () if min_sites is None else (GoneError,)
        super().__init__(*silent, *tolerated(on_error, SiteError, JobError))
        self._post: Correspondence | None = None

    @abstractmethod
    def connect(self, context: Context) -> Transport:
        """Return the transport of a run, connected to all of its sites."""

    def meet(self, context: Context, config: str | None) -> FederatedData:
        """Connect to the sites and greet each of them; return the data as they describe them.

        Raises:
            SiteError: A site cannot be reached, or refuses the run, or is missing.
        """
        self.begin(context)
        counts = context.module.server().needs_label_counts
        hello = wire.written("hello", wire.Hello(facts(context), counts, config))
        post = self._post = Correspondence(self.connect(context), self.workers)
        self._threads = post.pool
        check = partial(answers.check_introduction, context.data)

        def greet(client: int) -> wire.Introduction:
            return post.ask(client, "hello", wire.Introduction, hello, check)[0]

        clients = sorted(post.sites)
        return at_sites(
            context.data, dict(zip(clients, post.pool.map(greet, clients), strict=True))
        )

    def setup(self, context: Context) -> str:
        """Note the settings of this process that the sites need for the same numbers."""
        if self._post is None:
            context.data = self.meet(context, None)
        post = self._connected()
        # Greetings are no round's.
        post.counted()
        self._op_threads = torch.get_num_threads()
        least = f", of which {self.min_sites} must answer" if self.min_sites else ""
        return f"{self.name}: {len(post.sites)} sites{least}; what clients keep stays there"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round; leave out those that fail, if the run goes on then.

        Raises:
            SiteError: Too few sites answer, or one refuses or has lost its client's state.
            JobError: The method failed at a site.
        """
        yield from super().train(jobs)
        least = min(self.min_sites or 0, len(jobs))
        if (left := sum(job.info.client not in self._absences for job in jobs)) < least:
            raise SiteError(f"{left} of {len(jobs)} sites answered, but min_sites is {least}")

    def measured(self) -> Mapping[str, float]:
        """Return the bytes of all messages since the last call."""
        return {} if self._post is None else self._post.counted()

    def close(self) -> None:
        """Say goodbye to the sites that can be reached."""
        post, self._post = self._post, None
        if post is None:
            return

        def leave(client: int) -> None:
            with suppress(SiteError):
                post.ask(client, "bye", wire.Empty, wire.written("bye", wire.Empty()))

        # An iterator that is left to the end of the program is closed when no thread can start.
        if threading.main_thread().is_alive():
            present = [client for client in sorted(post.sites) if client not in self._absences]
            list(post.pool.map(leave, present))
        post.close()

    def reaches(self, job: Job) -> bool:
        """Return whether a job's client has a site.

        Raises:
            SiteError: Its state is here, and not at the site.
        """
        client = job.info.client
        if client not in self._connected().sites:
            return False
        if job.kept and reference_of(job.kept) is None:
            raise SiteError(
                f"client {client} keeps its state at its site: it can neither be set from here, "
                "nor come from a run whose clients were not at sites"
            )
        return True

    def ask(
        self, job: Job, task: Task, form: type[FormT], common: wire.Common
    ) -> tuple[FormT, wire.Tensors]:
        """Have a site run a job; return its record, and the tensors that it sent.

        Raises:
            SiteError: The site does not answer, refuses, or has lost its client's state.
            JobError: The method failed there.
        """
        post, client, order = self._connected(), job.info.client, self.order(job)
        check = partial(answers.CHECKS[task], self._context, job)
        try:
            return post.ask(client, task, form, wire.written(task, order, job.broadcast), check)
        except LostStateError as error:
            if self.on_lost == "stop":
                raise
            warnings.warn(f"{error}; it starts again from the initial values", stacklevel=2)
            order = replace(order, kept=None)
            return post.ask(client, task, form, wire.written(task, order, job.broadcast), check)

    def _connected(self) -> Correspondence:
        if self._post is None:
            raise RuntimeError("setup has not been called")
        return self._post
