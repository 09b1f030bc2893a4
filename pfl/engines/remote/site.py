"""A site: one client with its data and its kept states, which answers a server's messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from pfl.core.data import info_of
from pfl.core.elsewhere import Reference
from pfl.core.failure import ExplainedError, error_line, failure_line
from pfl.core.state import to
from pfl.core.types import Broadcast, Job, Result, Scores, Split, State
from pfl.disk import canonical
from pfl.disk.container import ContainerError
from pfl.engines.remote import facts, wire
from pfl.engines.remote.data import OneClient
from pfl.engines.remote.states import KeptVersions
from pfl.engines.remote.transport import LostStateError
from pfl.passage.coding import unpacked
from pfl.training import client_round
from pfl.training.context import Context


class Refusal(Exception):  # noqa: N818
    """The site refuses a request; the message says why."""


class Site:
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
        tested: Callable[[Context], None] = lambda _: None,
        charge: Callable[[Context, Job], None] | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.client, self._context, self._counts = client, context, counts
        self._tested, self._charge, self._tell = tested, charge, tell
        context.data = OneClient(context.data, client if local is None else local, client)
        self._info = info_of(context.data, client)
        self._facts = facts.facts(context)
        self._data = str(context.data.description().get("hash", ""))
        run = canonical.digest({**self._facts, "data": self._data, "client": client})
        self._kept = KeptVersions(folder / run)
        # One message at a time: a server may have been killed and started again meanwhile.
        self._lock = threading.Lock()

    def close(self) -> None:
        """Release the folder of the client's states."""
        self._kept.close()

    def answer(self, verb: str, content: bytes) -> bytes:
        """Return the answer to a message, which may be an error in words."""
        verbs = {"hello": self._hello, "train": self._train, "test": self._test, "bye": self._bye}
        try:
            if verb not in verbs:
                raise Refusal(f"there is no verb {verb[:20]!r}; the verbs are {', '.join(verbs)}")
            with self._lock:
                return verbs[verb](content)
        except LostStateError as error:
            failure = wire.Failure("lost", str(error))
        except (Refusal, ContainerError) as error:
            failure = wire.Failure("refused", str(error))
        except ExplainedError as error:
            failure = wire.Failure("failed", str(error))
        except Exception as error:
            failure = wire.Failure("failed", failure_line(error) or error_line(error))
        self._tell(f"{failure.kind} {verb}: {failure.message}")
        return wire.written("error", failure)

    def _hello(self, content: bytes) -> bytes:
        hello, _ = wire.asked("hello", wire.Hello, content)
        if apart := facts.differences(self._facts, hello.facts):
            raise Refusal(f"the server has other settings: {apart}")
        if hello.counts and not self._counts:
            raise Refusal(
                "this method's server needs to know how many samples of each class there are, "
                "which the owner does not allow"
            )
        counts = self._info.label_counts if hello.counts else None
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
        result = client_round.train(self._context, job)
        if order.splits and result.finite:
            self._tested(self._context)
        kept = None
        if result.kept:
            kept = self._kept.store(result.kept, order.round, order.kept)
        answer = wire.written("train", _report(result, kept), result.upload)
        self._tell(f"round {order.round}: trained, {len(answer):,} bytes to send")
        return answer

    def _test(self, content: bytes) -> bytes:
        order, tensors = wire.asked("test", wire.Order, content)
        scores = client_round.test(self._context, self._job(order, tensors))
        # A method whose personalised models equal the global one has that one tested alone.
        if order.model == "personal" or self._context.module.personal_is_global():
            self._tested(self._context)
        return wire.written("test", wire.Marks(_plain(scores)))

    def _bye(self, content: bytes) -> bytes:
        wire.asked("bye", wire.Empty, content)
        return wire.written("bye", wire.Empty())

    def _job(self, order: wire.Order, tensors: wire.Tensors) -> Job:
        """Return the job of an order, with the state that the client keeps here."""
        if order.client != self.client:
            raise Refusal(f"this is the site of client {self.client}, not of {order.client}")
        if torch.get_num_threads() != order.op_threads:
            torch.set_num_threads(order.op_threads)
        device = self._context.fabric.device
        kept: State = {} if order.kept is None else self._kept.load(order.kept)
        info = self._info
        if order.sample_level is not None:
            info = replace(info, label_counts=None)
        shared = to(tensors.shared, device)
        if order.codec is not None:
            shared = unpacked(shared, order.codec, self._context.template)
        sent = Broadcast(shared, to(tensors.extra, device))
        return Job(
            info=replace(info, round=order.round, rounds=order.rounds),
            kept=to(kept, device),
            broadcast=sent if order.sent else None,
            seed=order.seed,
            splits=tuple(order.splits),
            model=order.model,
            sending=order.sending,
            sample_level=order.sample_level,
        )


def _report(result: Result, kept: Reference | None) -> wire.Report:
    return wire.Report(
        client=result.client,
        steps=result.steps,
        samples=result.samples,
        finite=result.finite,
        train=wire.Numbers.of(result.train),
        logged=wire.Numbers.of(result.logged),
        scores=_plain(result.scores),
        upload=None if result.upload is None else result.upload.samples,
        kept=kept,
    )


def _plain(scores: Scores) -> dict[wire.SplitName, wire.Numbers]:
    return {split: wire.Numbers.of(values) for split, values in scores.items()}
