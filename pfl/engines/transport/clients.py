"""Clients in another process, which answer a server's messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from pfl.core.data import info_of
from pfl.core.failure import ExplainedError, error_line, failure_line
from pfl.core.state import to
from pfl.core.types import NO_CLIENT, Broadcast, ClientInfo, Job, Result, Scores, State
from pfl.disk import container
from pfl.disk.container import ContainerError
from pfl.engines.transport import wire
from pfl.training import client_round
from pfl.training.contexts import Contexts
from pfl.training.gradients import carried
from pfl.training.received import check_entries


class Refusal(Exception):  # noqa: N818
    """A request is refused; the message says why."""


class Clients:
    """Clients that compute in another process and store nothing there: kept states travel too.

    Args:
        contexts: The method with its initial values, the data and the device.
    """

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._packed, self._common = b"", dict[str, Tensor]()
        self._infos: dict[int, ClientInfo] = {}
        # One message at a time: a server may have been killed and restarted meanwhile.
        self._lock = threading.Lock()

    @property
    def verbs(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """The verbs of messages, with their handlers."""
        return {"train": self._train, "test": self._test}

    def answer(self, verb: str, content: bytes, common: bytes = b"") -> bytes:
        """Return the answer to a message, which may be an error in words.

        Args:
            verb: The request.
            content: The message.
            common: Tensors of this message and of others; see :class:`~.wire.Common`.
        """
        try:
            if verb not in self.verbs:
                known = ", ".join(self.verbs)
                raise Refusal(f"there is no verb {verb[:20]!r}; the verbs are {known}")
            with self._lock:
                if common != self._packed:
                    self._common = container.unpack(common)[1] if common else {}
                    self._packed = common
                return self.verbs[verb](content)
        except Exception as error:
            return self._failed(verb, error, content, common)

    def _failed(self, verb: str, error: Exception, content: bytes, common: bytes) -> bytes:
        """Return the answer to a message that was not fulfilled."""
        return wire.failed(verb, content, common, *self._failure(verb, error))

    def _failure(self, verb: str, error: Exception) -> tuple[wire.FailureKind, str]:
        """Return why a request was not fulfilled, as a kind and in words."""
        if isinstance(error, Refusal | ContainerError):
            return "refused", str(error)
        return "failed", in_words(error)

    def _train(self, content: bytes) -> bytes:
        order, tensors = wire.asked("train", wire.Order, content)
        job = self._job(order, tensors)
        result = client_round.train(self._contexts.of(job.info.client), job)
        report = report_of(result, wire.identity(order, content, self._packed))
        return wire.written("train", report, result.upload, result.kept)

    def _test(self, content: bytes) -> bytes:
        order, tensors = wire.asked("test", wire.Order, content)
        job = self._job(order, tensors)
        scores = client_round.test(self._contexts.of(job.info.client), job)
        identity = wire.identity(order, content, self._packed)
        return wire.written("test", wire.Marks(**identity, scores=plain(scores)))

    def _info(self, order: wire.Order) -> ClientInfo:
        client = order.client
        if client not in self._infos:
            self._infos[client] = info_of(self._contexts.data, client)
        info = self._infos[client]
        return replace(info, client=NO_CLIENT) if "pooled" in order.splits else info

    def _kept_of(self, order: wire.Order, tensors: wire.Tensors) -> State:
        return tensors.kept

    def _job(self, order: wire.Order, tensors: wire.Tensors) -> Job:
        """Return the job of an order.

        Raises:
            Refusal: What the server sends does not fit the method.
        """
        if torch.get_num_threads() != order.op_threads:
            torch.set_num_threads(order.op_threads)
        device = self._contexts.fabric.device
        info = self._info(order)
        for key, value in self._common.items():
            part, _, name = key.partition(":")
            getattr(tensors, part)[name] = value
        try:
            steps = tuple(record.step() for record in order.steps)
            carried(steps)  # Refuses two rules of gradients.
            shared, template = to(tensors.shared, device), self._contexts.first.template
            if order.codec is not None:
                shared = order.codec.step().unpacked(shared, template)
            check_entries(shared, template)
        except ValueError as error:
            raise Refusal(f"what the server sends does not fit the method: {error}") from error
        for step in steps:
            info = step.training_info(info)
        sent = Broadcast(shared, to(tensors.extra, device))
        return Job(
            info=replace(info, round=order.round, rounds=order.rounds),
            kept=to(self._kept_of(order, tensors), device),
            broadcast=sent if order.sent else None,
            seed=order.seed,
            splits=tuple(order.splits),
            model=order.model,
            steps=steps,
        )


def in_words(error: Exception) -> str:
    """Return an error in one line."""
    if isinstance(error, ExplainedError):
        return str(error)
    return failure_line(error) or error_line(error)


def report_of(result: Result, identity: wire.Identity) -> wire.Report:
    """Return a result without its tensors, as the answer to a question."""
    return wire.Report(
        **identity,
        steps=result.steps,
        samples=result.samples,
        finite=result.finite,
        train=wire.Numbers.of(result.train),
        logged=wire.Numbers.of(result.logged),
        scores=plain(result.scores),
        upload=None if result.upload is None else result.upload.samples,
        withheld=result.withheld,
        drawn=[*result.drawn],
    )


def plain(scores: Scores) -> dict[wire.SplitName, wire.Numbers]:
    """Return scores in the form of a message."""
    return {split: wire.Numbers.of(values) for split, values in scores.items()}
