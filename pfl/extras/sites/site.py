"""A site: one client with its data and kept states, which answers a server's messages."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from pfl.core.data import info_of
from pfl.core.types import ClientInfo, Job, Scores, Split, State
from pfl.disk import canonical
from pfl.disk.reading import text
from pfl.disk.writing import written
from pfl.engines.transport import wire
from pfl.engines.transport.clients import Clients, Refusal, in_words, plain, report_of
from pfl.extras.sites import facts
from pfl.extras.sites.data import one_client
from pfl.extras.sites.states import KeptVersions
from pfl.extras.sites.transport import LostStateError
from pfl.extras.sites.words import without_folders
from pfl.training import client_round
from pfl.training.context import Context
from pfl.training.contexts import Contexts


class Budget(Protocol):
    """A budget for single samples over all runs, implemented by :mod:`pfl.extras.privacy`."""

    def check(self, run: Mapping[str, Any]) -> None:
        """Reject a run that does not declare that it keeps single samples private.

        Raises:
            Refusal: There is no such declaration.
        """

    def charge(self, context: Context, job: Job) -> None:
        """Record the steps of a job before it trains.

        Raises:
            Refusal: The steps do not keep samples private, or exceed the budget.
        """


@dataclass(frozen=True)
class Allowed:
    """The owner's limits for servers.

    Attributes:
        methods: Class names of the methods that a server may run.
        upload_megabytes: Largest size of an answer; ``None`` for any.
        class_counts: Whether the server may know the number of samples of each class.
        scores: Whether the server may know losses and scores.
        most_rounds: Last round in which the site takes part; ``None`` for no limit.
        most_parameters: Largest number of a method's parameters and buffers; ``None`` for any.
        budget: Budget for single samples; ``None`` does not keep them private.
    """

    methods: tuple[str, ...] = ()
    upload_megabytes: float | None = None
    class_counts: bool = False
    scores: bool = True
    most_rounds: int | None = None
    most_parameters: int | None = None
    budget: Budget | None = None


MEGABYTE = 10**6
_SPLITS: tuple[Split, ...] = ("train", "val", "test")
EVERYTHING = Allowed(class_counts=True)


class Site(Clients):
    """One client at its own site, for one or more runs.

    It never sends the client's data and kept states. :meth:`close` releases them.

    Attributes:
        client: Index of the client for the server.

    Args:
        contexts: The method with its initial values, the data and the device.
        client: Index of the client for the server.
        folder: Folder of the client's kept states, with a subfolder for each method and data.
        local: Index of the client in the data; ``None`` for the server's.
        allowed: What the owner allows.
        tested: Called with the context after each test of the client's personalised model; the
            module then has its weights.
        notify: Called with messages for the owner.
    """

    def __init__(
        self,
        contexts: Contexts,
        client: int,
        folder: Path,
        local: int | None = None,
        allowed: Allowed = EVERYTHING,
        tested: Callable[[Context], None] = lambda _: None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(contexts)
        self.client, self._allowed, self._scores = client, allowed, allowed.scores
        self._budget, self._tested, self._notify = allowed.budget, tested, notify
        for one in contexts.each():
            # Seen on the first sample, which may be of a client that cannot be asked from here on.
            _ = one.drawing
        contexts.data = one_client(contexts.data, client if local is None else local, client)
        self._own = info_of(contexts.data, client)
        self._facts = facts.facts(contexts)
        data = str(contexts.data.description().get("hash", ""))
        run = {**self._facts, "data": data, "client": client}
        if self._budget is not None:
            # A state kept without noise is never resumed.
            run["private"] = True
        self._folder, self._states = folder, folder / canonical.digest(run)
        self._hash = data
        # The last run that sent hello.
        self._run: str | None = None

    @cached_property
    def _kept(self) -> KeptVersions:
        """The client's states; their folder is made once a request needs them."""
        return KeptVersions(self._states)

    def open(self, content: bytes) -> wire.Hello:
        """Return a hello, whose run may then begin; a refused one leaves nothing in the folder.

        Raises:
            Refusal: Server and site have other settings, or the server needs class counts.
            BusyError: Another site uses the folder.
        """
        hello, _ = wire.asked("hello", wire.Hello, content)
        self._check_client(hello)
        if apart := facts.differences(self._facts, hello.facts):
            raise Refusal(f"the server has other settings: {apart}")
        if hello.counts and not self._allowed.class_counts:
            raise Refusal(
                "this method's server needs the number of samples of each class, "
                "which the owner does not allow"
            )
        _ = self._kept
        self._run = hello.run
        return hello

    def close(self) -> None:
        """Release the folder of the client's states."""
        if "_kept" in vars(self):
            self._kept.close()

    @property
    def verbs(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """The requests that a server may send."""
        return {"hello": self._hello, **super().verbs, "bye": self._bye}

    def answer(self, verb: str, content: bytes, common: bytes = b"") -> bytes:
        """Return the answer to a message, unless it is larger than the owner allows."""
        answer, limit = super().answer(verb, content, common), self._allowed.upload_megabytes
        if limit is None or len(answer) <= limit * MEGABYTE:
            return answer
        size = f"the answer to {verb} has {len(answer) / MEGABYTE:g} MB"
        too_large = Refusal(f"the owner allows {limit:g} MB; {size}")
        return self._failed(verb, too_large, content, common)

    def _failure(self, verb: str, error: Exception) -> tuple[wire.FailureKind, str]:
        kind, message = super()._failure(verb, error)
        if isinstance(error, LostStateError):
            kind, message = "lost", str(error)
        self._notify(f"{kind} {verb}: {message}")
        if kind == "failed" and self._budget is not None:
            # The message may reveal a sample.
            return kind, "it failed; only the site's owner can see why"
        return kind, without_folders(message, [self._folder])

    def _hello(self, content: bytes) -> bytes:
        hello = self.open(content)
        # Without a key, a server that knows all samples but one could guess the last.
        secret = _secret(self._folder / "secret")
        counts = self._own.label_counts if hello.counts else None
        data = self._contexts.data
        sizes = {name: len(data.split(self.client, name)) for name in _SPLITS}
        introduction = wire.Introduction(
            **wire.identity(hello, content),
            data=hmac.digest(secret, self._hash.encode(), "sha256").hex(),
            sizes=wire.Sizes(**sizes),
            label_counts=None if counts is None else counts.tolist(),
        )
        return wire.written("hello", introduction)

    def _train(self, content: bytes) -> bytes:
        order, tensors = wire.asked("train", wire.Order, content)
        job, context = self._job(order, tensors), self._contexts.of(self.client)
        if self._budget is not None:
            self._budget.charge(context, job)
        result = client_round.train(context, job if self._scores else replace(job, splits=()))
        if not self._scores:
            result = replace(result, train={}, logged={})
        if order.splits and result.finite:
            if not self._scores:
                with torch.no_grad():
                    context.module.personalise(None, job.info)
            self._tested(context)
        kept = None
        if result.kept:
            kept = self._kept.store(result.kept, order.round, order.kept)
        report = replace(report_of(result, wire.identity(order, content)), kept=kept)
        answer = wire.written("train", report, result.upload)
        self._notify(f"round {order.round}: trained, {len(answer):,} bytes to send")
        return answer

    def _test(self, content: bytes) -> bytes:
        order, tensors = wire.asked("test", wire.Order, content)
        job, scores = self._job(order, tensors), Scores()
        context = self._contexts.of(job.info.client)
        try:
            if self._scores:
                scores = client_round.test(context, job)
            else:
                client_round.become_tested(context, job)
        except Exception as error:
            if self._scores:
                raise
            # Whether a test fails may reveal a sample, as a score would.
            self._notify(f"failed test: {in_words(error)}")
        else:
            # If personalised models equal the global one, only that one is tested.
            if order.model == "personal" or context.module.personal_is_global():
                self._tested(context)
        return wire.written(
            "test", wire.Marks(**wire.identity(order, content), scores=plain(scores))
        )

    def _bye(self, content: bytes) -> bytes:
        question, _ = wire.asked("bye", wire.Question, content)
        self._check_run(question)
        return wire.written("bye", wire.Answer(**wire.identity(question, content)))

    def _check_client(self, question: wire.Question) -> None:
        if question.client != self.client:
            raise Refusal(f"this is the site of client {self.client}, not of {question.client}")

    def _check_run(self, question: wire.Question) -> None:
        self._check_client(question)
        if self._run not in (None, question.run):
            raise Refusal("this is a message of another run than the last that sent hello")

    def _info(self, order: wire.Order) -> ClientInfo:
        self._check_run(order)
        most = self._allowed.most_rounds
        if most is not None and order.round > most:
            raise Refusal(f"the owner allows {most} rounds; this is round {order.round}")
        return self._own

    def _kept_of(self, order: wire.Order, tensors: wire.Tensors) -> State:
        """Return the client's state from this site."""
        return {} if order.kept is None else self._kept.load(order.kept)


def _secret(file: Path) -> bytes:
    """Return the key of a site's folder, creating it if missing."""
    if (known := text(file)) is None:
        known = secrets.token_hex(32)
        with written(file, synced=True) as stream:
            stream.write(known.encode())
    return known.encode()
