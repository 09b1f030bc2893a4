"""Sites of one process whose traffic is recorded, and which can fail at will."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

from lightning_modules.fedper import FedPer
from pfl.core.data import members
from pfl.core.types import Cohort
from pfl.engines import threads
from pfl.engines.transport import wire
from pfl.extras.sites.loopback import Loopback, LoopbackEngine, made
from pfl.extras.sites.transport import SiteError
from tests.engines.agreement import fit, numbers
from tests.helpers.federation import SGD
from tests.helpers.toy import mlp

Call = namedtuple("Call", "client verb sent answer")


class Recorded(LoopbackEngine):
    """A loopback that records each call.

    Args:
        before: Called with client, verb and message before each call; what it raises, the transport
            raises, and what it returns the site gets instead.
        after: Called with client, verb, message and answer; returns what the server gets.
        data: What the sites have, if that is not what the server is given.
    """

    def __init__(self, folder=None, before=None, after=None, data=None, **options):
        super().__init__(folder, **options)
        self.calls, self.before, self.after, self.data = [], before, after, data

    def open_transport(self, contexts):
        whole = contexts.replica(self.data)
        clients = members(whole.data)
        together = threads.unsupported_reason(whole, len(clients)) is None
        self.at = made(whole, clients, Path(self.folder), together)
        engine = self

        class Transport(Loopback):
            def call(self, client, verb, content):
                changed = engine.before and engine.before(client, verb, content)
                answer = super().call(client, verb, changed or content)
                engine.calls.append(Call(client, verb, content, answer))
                return engine.after(client, verb, content, answer) if engine.after else answer

        return Transport(self.at, together)

    def of(self, verb):
        return [call for call in self.calls if call.verb == verb]


class Garbles(Recorded):
    """One answer of client 1 is not what the site said: by default that to its second training.

    Args:
        change: Makes of the answer another one.
        verb: The verb of the answer.
        turn: Which one of this verb, from 1.
    """

    def __init__(self, folder, change, verb="train", turn=2, **options):
        super().__init__(folder, after=self.garbled, **options)
        self.change, self.verb, self.turn, self.asked = change, verb, turn, 0

    def garbled(self, client, verb, content, answer):
        if (client, verb) != (1, self.verb):
            return answer
        self.asked += 1
        return self.change(answer) if self.asked == self.turn else answer


KINDS = ("error", "refusal", "lost", "silence", "damaged message", "damaged answer")
FAILURES = {"error": "failed", "refusal": "refused", "lost": "lost"}


class Faulty(Recorded):
    """Some jobs fail at their sites.

    Args:
        faults: The kind of a job's fault, by client, round and verb.
    """

    def __init__(self, folder, faults, **options):
        super().__init__(folder, self.sent, self.answered, **options)
        self.faults = faults

    def kind(self, client, verb, content):
        if verb not in ("train", "test"):
            return None
        return self.faults.get((client, wire.asked(verb, wire.Order, content)[0].round, verb))

    def sent(self, client, verb, content):
        kind = self.kind(client, verb, content)
        if kind == "silence":
            raise SiteError("nobody is there")
        return content[:-1] + bytes([content[-1] ^ 1]) if kind == "damaged message" else content

    def answered(self, client, verb, content, answer):
        kind = self.kind(client, verb, content)
        if kind == "damaged answer":
            return answer[: len(answer) // 2]
        if kind in FAILURES:
            return wire.failed(verb, content, b"", FAILURES[kind], f"a {kind}\n=1+1")
        return answer


def everyone(eligible, rng, number):
    return Cohort(tuple(eligible), tuple(eligible))


def small(**options):
    return FedPer(mlp(), **{"optimizer": SGD, **options})


def same(one, other, apart=()):
    """Return whether two runs have the same bits, but for some columns and lengths of messages."""
    # As texts, in which the order of columns counts, and values that are not finite are equal.
    apart = ("comm/wire", *apart)
    rows = [
        [{k: v for k, v in row.items() if not k.startswith(apart)} for row in numbers(run)]
        for run in (one, other)
    ]
    return one.fingerprint == other.fingerprint and str(rows[0]) == str(rows[1])


__all__ = ["KINDS", "Faulty", "Garbles", "Recorded", "everyone", "fit", "same", "small"]
