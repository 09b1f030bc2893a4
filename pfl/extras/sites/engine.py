"""The engine of remote clients: it sends jobs as messages and reads the answers."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import torch

from pfl.core.checks import at_least_one, one_of
from pfl.core.data import FederatedData
from pfl.core.failure import JobError
from pfl.core.types import Broadcast, Job, Result
from pfl.disk.container import ContainerError
from pfl.engines.absences import OnError, tolerated
from pfl.engines.transport import wire
from pfl.engines.transport.engine import CarriedEngine, FormT, Task
from pfl.extras.sites import answers
from pfl.extras.sites.answers import AnswerError
from pfl.extras.sites.data import Known, at_sites
from pfl.extras.sites.facts import facts
from pfl.extras.sites.keeper import SitesKeeper
from pfl.extras.sites.transport import GoneError, LostStateError, SiteError, Transport, Verb
from pfl.training.contexts import Contexts
from pfl.training.reported import Reported

RecordT = TypeVar("RecordT", bound=wire.Answer)


class RemoteEngine(CarriedEngine):
    """An engine that runs each client's jobs at the client's site.

    Client state stays there: jobs and results have a ticket instead. Jobs without a site, such as a
    test on the pooled test set, run here. A transport's engine implements :meth:`open_transport`.

    Attributes:
        name: Name in the run's header.
        real: Whether the clients are real ones, and not those of a simulation.

    Args:
        on_lost: Reaction if a site no longer has its client's state: ``stop`` ends the run,
            ``initial`` restarts the client from the initial values, with a warning.
        workers: Number of sites that work at a time; ``None`` for all sites of a round.
        min_sites: With ``on_error: absent``, the number of sites that must answer in a round; with
            fewer, the run ends. ``None`` for no minimum.
        on_error: ``stop`` ends the run if a client's job fails at its site; ``absent`` continues
            the round without that client, whatever the reason: an error, a refusal, a timeout or a
            damaged answer. An absent client uploads nothing, has no scores, and is called again in
            the next round.

    Raises:
        ValueError: ``workers`` or ``min_sites`` is below one, ``on_lost`` or ``on_error`` is
            unknown, or ``min_sites`` is given with ``on_error: stop``.
    """

    name: str = "remote"
    real: bool = True
    keeper = SitesKeeper
    # A site may still be working for a server that was killed.
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
        super().__init__(*tolerated(on_error, SiteError, JobError))
        if min_sites is not None and on_error == "stop":
            raise ValueError(
                f"min_sites={min_sites} needs on_error: absent; with stop, all sites must answer"
            )
        self.on_lost, self.workers, self.min_sites = on_lost, workers, min_sites
        self._transport: Transport | None = None
        self._addresses: Mapping[int, str] = {}
        self._lock, self._sent, self._received = threading.Lock(), 0, 0

    @abstractmethod
    def open_transport(self, contexts: Contexts) -> Transport:
        """Return a run's transport, connected to all sites."""

    def connect(self, contexts: Contexts, config: str | None) -> FederatedData:
        """Connect to the sites, greet each, and return the data that they describe.

        Raises:
            SiteError: A site is missing, cannot be reached or refuses the run.
        """
        self.begin(contexts)
        self._reported = Reported(contexts)
        counts, ours = contexts.module.server().needs_label_counts, facts(contexts)
        self._transport = self.open_transport(contexts)
        self._addresses = dict(self._transport.sites())
        self._threads = ThreadPoolExecutor(self.workers or max(1, len(self._addresses)), "pfl-site")
        check = partial(answers.check_introduction, contexts.data, counts)

        def greet(client: int) -> Known:
            hello = wire.Hello(
                run=self._key, client=client, round=0, facts=ours, counts=counts, config=config
            )
            told, _ = self._call(client, "hello", wire.Introduction, hello, check)
            return Known(told.sizes, told.label_counts, told.data)

        clients = sorted(self._addresses)
        known = dict(zip(clients, self._threads.map(greet, clients), strict=True))
        return at_sites(contexts.data, known, self.real)

    def setup(self, contexts: Contexts) -> str:
        """Store the settings of this process that the sites need for equal numbers."""
        if self._transport is None:
            contexts.data = self.connect(contexts, None)
        # Greetings do not belong to a round.
        self._sent = self._received = 0
        self._op_threads = torch.get_num_threads()
        least = f", of which {self.min_sites} must answer" if self.min_sites else ""
        count = len(self._addresses)
        return f"{self.name}: {count} sites{least}; what clients keep stays there"

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round; with ``on_error: absent``, skip those that fail.

        Raises:
            SiteError: Too few sites answer, or one refuses or has lost its state.
            JobError: The method failed at a site.
        """
        yield from super().train(jobs)
        least = min(self.min_sites or 0, len(jobs))
        if (left := sum(job.info.client not in self._absences for job in jobs)) < least:
            raise SiteError(f"{left} of {len(jobs)} sites answered, but min_sites is {least}")

    def measured(self) -> Mapping[str, float]:
        """Return the bytes of all messages to and from sites since the last call."""
        with self._lock:
            counts = {"comm/wire_down": float(self._sent), "comm/wire_up": float(self._received)}
            self._sent = self._received = 0
        return counts

    def close(self) -> None:
        """Send a goodbye to all reachable sites, whatever they answer."""
        if self._transport is None:
            return

        def leave(client: int) -> None:
            with suppress(SiteError, JobError):
                goodbye = wire.Question(run=self._key, client=client, round=0)
                self._call(client, "bye", wire.Answer, goodbye)

        if self._threads is not None:
            # Iterators left open at exit are closed when no thread can start any more.
            if threading.main_thread().is_alive():
                present = [one for one in sorted(self._addresses) if one not in self._absences]
                list(self._threads.map(leave, present))
            self._threads.shutdown()
        self._transport.close()
        self._transport = self._threads = None

    def reaches(self, job: Job) -> bool:
        """Return whether a job's client has a site, which only trains and tests."""
        return job.work is None and job.info.client in self._addresses

    def ask(
        self, job: Job, task: Task, form: type[FormT], common: wire.Common
    ) -> tuple[FormT, wire.Tensors]:
        """Run a job at a site; return its record and tensors.

        Raises:
            SiteError: The site does not answer, refuses or has lost its state.
            JobError: The method failed there.
        """
        assert task != "work"  # Work runs here; see :meth:`reaches`.
        client, order = job.info.client, self.order(job)
        check = partial(answers.CHECKS[task], self._reported, job)
        try:
            return self._call(client, task, form, order, check, job.broadcast)
        except LostStateError as error:
            if self.on_lost == "stop" or job.ticket is None:
                raise
            warnings.warn(f"{error}; it restarts from the initial values", stacklevel=2)
            return self.ask(replace(job, ticket=None), task, form, common)

    def _call(
        self,
        client: int,
        verb: Verb,
        form: type[RecordT],
        question: wire.Question,
        check: Callable[[Any, wire.Tensors], None] = lambda record, tensors: None,
        sent: Broadcast | None = None,
    ) -> tuple[RecordT, wire.Tensors]:
        """Send a message to a site and read its answer as a record.

        ``check`` raises :class:`AnswerError` if the answer does not fit the message.

        Raises:
            GoneError: The answer is missing, damaged or does not fit.
            LostStateError: The site does not have the client's state.
            SiteError: The site refuses.
            JobError: The method failed at the site.
        """
        assert self._transport is not None
        address = self._addresses[client]
        where = f"the site of client {client} ({address})"
        content = wire.written(verb, question, sent)
        asked = wire.identity(question, content)
        try:
            data = self._transport.call(client, verb, content)
            with self._lock:
                self._sent += len(content)
                self._received += len(data)
            record, tensors = wire.answered(verb, form, data, asked)
            if not isinstance(record, wire.Failure):
                answers.checked(check, record, tensors)
                return record, tensors
        except (ContainerError, AnswerError) as error:
            raise GoneError(f"{where} sent no answer to {verb}: {error}") from error
        except SiteError as error:
            raise GoneError(f"site {client} is gone ({address}): {error}") from error
        if record.kind == "failed":
            raise JobError(f"{record.message}, at {where}")
        if record.kind == "lost":
            raise LostStateError(
                f"{where} has lost what client {client} keeps: {record.message}; put its files "
                "back, or set on_lost to initial"
            )
        raise SiteError(f"{where} refuses {verb}: {record.message}")
