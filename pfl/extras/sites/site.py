"""A site: one client with its data and its kept states, which answers a server's messages."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from pfl.training import client_round
from pfl.training.context import Context


class Budget(Protocol):
    """What may be learnt of single samples, over all runs; it comes from the extra of privacy."""

    def check(self, run: Mapping[str, Any]) -> None:
        """Refuse a run that does not say that it keeps single samples private.

        Raises:
            Refusal: It does not.
        """

    def charge(self, context: Context, job: Job) -> None:
        """Write down the steps of a job that is about to train.

        Raises:
            Refusal: They do not keep samples private, or exceed the budget.
        """


@dataclass(frozen=True)
class Allowed:
    """What the owner of a site allows a server.

    Attributes:
        methods: The methods that a server may ask for, by the names of their classes.
        upload_megabytes: Largest size of an answer; ``None`` for any.
        class_counts: Whether the server may know how many samples of each class there are.
        scores: Whether the server may know losses and scores.
        most_rounds: The last round that the site takes part in; ``None`` for any.
        budget: What may be learnt of single samples; ``None`` does not keep them private.
    """

    methods: tuple[str, ...] = ()
    upload_megabytes: float | None = None
    class_counts: bool = False
    scores: bool = True
    most_rounds: int | None = None
    budget: Budget | None = None


MEGABYTE = 10**6
EVERYTHING = Allowed(class_counts=True)


class Site(Clients):
    """One client at its own place; it lives as long as the run, or longer.

    It holds the client's data and kept states, neither of which it sends, until :meth:`close`.

    Attributes:
        client: Index of the client, as the server counts.

    Args:
        context: The method with its initial values, the data and the device.
        client: Index of the client, as the server counts.
        folder: Where the client's states are kept: those of each method and data in a folder of
            their own.
        local: Index of the client in the data; ``None`` is that of the server.
        allowed: What the owner allows.
        tested: Called with the context after each test of the client's personalised model, which
            the module then is.
        notify: Called with a line of what happens, for the owner.

    Raises:
        BusyError: Another site uses the folder.
    """

    def __init__(
        self,
        context: Context,
        client: int,
        folder: Path,
        local: int | None = None,
        allowed: Allowed = EVERYTHING,
        tested: Callable[[Context], None] = lambda _: None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(context)
        self.client, self._allowed, self._scores = client, allowed, allowed.scores
        self._budget, self._tested, self._notify = allowed.budget, tested, notify
        context.data = one_client(context.data, client if local is None else local, client)
        self._own = info_of(context.data, client)
        self._facts = facts.facts(context)
        data = str(context.data.description().get("hash", ""))
        run = {**self._facts, "data": data, "client": client}
        if self._budget is not None:
            # A state that was kept without noise is never resumed from.
            run["private"] = True
        self._kept = KeptVersions(folder / canonical.digest(run))
        # Without a key, somebody who knows all samples but one could try out the last.
        self._data = hmac.digest(_secret(folder / "secret"), data.encode(), "sha256").hex()

    def close(self) -> None:
        """Release the folder of the client's states."""
        self._kept.close()

    @property
    def verbs(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """What a server may ask for."""
        return {"hello": self._hello, **super().verbs, "bye": self._bye}

    def answer(self, verb: str, content: bytes, common: bytes = b"") -> bytes:
        """Return the answer to a message, unless it is larger than the owner allows."""
        answer, limit = super().answer(verb, content, common), self._allowed.upload_megabytes
        if limit is None or len(answer) <= limit * MEGABYTE:
            return answer
        size = f"the answer to {verb} has {len(answer) / MEGABYTE:g} MB"
        too_large = Refusal(f"the owner allows {limit:g} MB; {size}")
        return wire.written("error", self._failure(verb, too_large))

    def _failure(self, verb: str, error: Exception) -> wire.Failure:
        failure = super()._failure(verb, error)
        if isinstance(error, LostStateError):
            failure = wire.Failure("lost", str(error))
        self._notify(f"{failure.kind} {verb}: {failure.message}")
        if failure.kind == "failed" and self._budget is not None:
            # The words may be of a sample.
            return replace(failure, message="it failed; only the site's owner is told why")
        return failure

    def _hello(self, content: bytes) -> bytes:
        hello, _ = wire.asked("hello", wire.Hello, content)
        if apart := facts.differences(self._facts, hello.facts):
            raise Refusal(f"the server has other settings: {apart}")
        if hello.counts and not self._allowed.class_counts:
            raise Refusal(
                "this method's server needs to know how many samples of each class there are, "
                "which the owner does not allow"
            )
        counts = self._own.label_counts if hello.counts else None
        splits: tuple[Split, ...] = ("train", "val", "test")
        data = self._context.data
        introduction = wire.Introduction(
            data=self._data,
            sizes={name: len(data.split(self.client, name)) for name in splits},
            label_counts=None if counts is None else counts.tolist(),
        )
        return wire.written("hello", introduction)

    def _train(self, content: bytes) -> bytes:
        order, tensors = wire.asked("train", wire.Order, content)
        job = self._job(order, tensors)
        if self._budget is not None:
            self._budget.charge(self._context, job)
        result = client_round.train(self._context, job if self._scores else replace(job, splits=()))
        if not self._scores:
            result = replace(result, train={}, logged={})
        if order.splits and result.finite:
            if not self._scores:
                with torch.no_grad():
                    self._context.module.personalise(None, job.info)
            self._tested(self._context)
        kept = None
        if result.kept:
            kept = self._kept.store(result.kept, order.round, order.kept)
        answer = wire.written("train", replace(report_of(result), kept=kept), result.upload)
        self._notify(f"round {order.round}: trained, {len(answer):,} bytes to send")
        return answer

    def _test(self, content: bytes) -> bytes:
        order, tensors = wire.asked("test", wire.Order, content)
        job, scores = self._job(order, tensors), Scores()
        try:
            if self._scores:
                scores = client_round.test(self._context, job)
            else:
                client_round.become_tested(self._context, job)
        except Exception as error:
            if self._scores:
                raise
            # Whether a test fails may reveal a sample, as a score would.
            self._notify(f"failed test: {in_words(error)}")
        else:
            # A method whose personalised models equal the global one has that one tested alone.
            if order.model == "personal" or self._context.module.personal_is_global():
                self._tested(self._context)
        return wire.written("test", wire.Marks(plain(scores)))

    def _bye(self, content: bytes) -> bytes:
        wire.asked("bye", wire.Empty, content)
        return wire.written("bye", wire.Empty())

    def _info(self, order: wire.Order) -> ClientInfo:
        if order.client != self.client:
            raise Refusal(f"this is the site of client {self.client}, not of {order.client}")
        most = self._allowed.most_rounds
        if most is not None and order.round > most:
            raise Refusal(f"the owner allows {most} rounds; this is round {order.round}")
        return self._own

    def _kept_of(self, order: wire.Order, tensors: wire.Tensors) -> State:
        """Return the state that the client keeps here."""
        return {} if order.kept is None else self._kept.load(order.kept)


def _secret(file: Path) -> bytes:
    """Return the key of a site's folder, which is made when it is missing."""
    if (known := text(file)) is None:
        known = secrets.token_hex(32)
        with written(file, synced=True) as stream:
            stream.write(known.encode())
    return known.encode()
