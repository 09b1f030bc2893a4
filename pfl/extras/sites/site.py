"""A site: one client with its data and its kept states, which answers a server's messages."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

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
        counts: Whether the server may know how many samples of each class there are.
        scores: Whether the server may know losses and scores.
        tested: Called with the context after each test of the client's personalised model, which
            the module then is.
        charge: Called with the context and a job before it trains; it may refuse the job.
        tell: Called with a line of what happens, for the owner.

    Raises:
        BusyError: Another site uses the folder.
    """

    def __init__(
        self,
        context: Context,
        client: int,
        folder: Path,
        local: int | None = None,
        counts: bool = True,
        scores: bool = True,
        tested: Callable[[Context], None] = lambda _: None,
        charge: Callable[[Context, Job], None] | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(context)
        self.client, self._counts, self._scores = client, counts, scores
        self._tested, self._charge, self._tell = tested, charge, tell
        context.data = one_client(context.data, client if local is None else local, client)
        self._own = info_of(context.data, client)
        self._facts = facts.facts(context)
        data = str(context.data.description().get("hash", ""))
        run = {**self._facts, "data": data, "client": client}
        if charge is not None:
            # What a client kept that trained without noise is never gone on from.
            run["private"] = True
        self._kept = KeptVersions(folder / canonical.digest(run))
        # Whoever knows all samples but one could try out the last with a hash without a key.
        self._data = hmac.digest(_secret(folder / "secret"), data.encode(), "sha256").hex()

    def close(self) -> None:
        """Release the folder of the client's states."""
        self._kept.close()

    @property
    def verbs(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """What a server may ask for."""
        return {"hello": self._hello, **super().verbs, "bye": self._bye}

    def _failure(self, verb: str, error: Exception) -> wire.Failure:
        failure = super()._failure(verb, error)
        if isinstance(error, LostStateError):
            failure = wire.Failure("lost", str(error))
        self._tell(f"{failure.kind} {verb}: {failure.message}")
        if failure.kind == "failed" and self._charge is not None:
            # The words may be of a sample.
            return replace(failure, message="it failed; only the site's owner is told why")
        return failure

    def _hello(self, content: bytes) -> bytes:
        hello, _ = wire.asked("hello", wire.Hello, content)
        if apart := facts.differences(self._facts, hello.facts):
            raise Refusal(f"the server has other settings: {apart}")
        if hello.counts and not self._counts:
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
        if self._charge is not None:
            self._charge(self._context, job)
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
        self._tell(f"round {order.round}: trained, {len(answer):,} bytes to send")
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
            # Whether a test fails may tell of a sample, as a score would.
            self._tell(f"failed test: {in_words(error)}")
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
