"""Sites of one process whose traffic is recorded, and which can fail at will."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

from lightning_modules.fedper import FedPer
from pfl.core.held_out import members
from pfl.core.types import Cohort
from pfl.engines.remote.loopback import Loopback, LoopbackEngine, made
from tests.engines.agreement import fit, numbers
from tests.helpers.federation import SGD
from tests.helpers.toy import mlp

Call = namedtuple("Call", "client verb sent answer")


class Recorded(LoopbackEngine):
    """A loopback that records each call.

    Args:
        before: Called with client, verb and message before each call; what it raises, the transport
            raises, and what it returns the site gets instead.
        data: What the sites have, if that is not what the server is given.
    """

    def __init__(self, folder=None, before=None, data=None, **options):
        super().__init__(folder, **options)
        self.calls, self.before, self.data = [], before, data

    def connect(self, context):
        whole = context.replica(context.fabric, data=self.data)
        self.at = made(whole, members(whole.data), Path(self.folder))
        engine = self

        class Transport(Loopback):
            def call(self, client, verb, content):
                changed = engine.before and engine.before(client, verb, content)
                answer = super().call(client, verb, changed or content)
                engine.calls.append(Call(client, verb, content, answer))
                return answer

        return Transport(self.at)

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
        super().__init__(folder, **options)
        self.change, self.verb, self.turn, self.asked = change, verb, turn, 0

    def connect(self, context):
        engine, transport = self, super().connect(context)

        class Noisy(Loopback):
            def call(self, client, verb, content):
                answer = transport.call(client, verb, content)
                if (client, verb) != (1, engine.verb):
                    return answer
                engine.asked += 1
                return engine.change(answer) if engine.asked == engine.turn else answer

        return Noisy(self.at)


def everyone(eligible, rng, number):
    return Cohort(tuple(eligible), tuple(eligible))


def small(**options):
    return FedPer(mlp(), **{"optimizer": SGD, **options})


def same(one, other):
    """Return whether two runs have the same bits, but for the lengths of messages."""
    # As texts, in which the order of columns counts, and values that are not finite are equal.
    rows = [
        [{k: v for k, v in row.items() if not k.startswith("comm/wire")} for row in numbers(run)]
        for run in (one, other)
    ]
    return one.fingerprint == other.fingerprint and str(rows[0]) == str(rows[1])


__all__ = ["Garbles", "Recorded", "everyone", "fit", "same", "small"]
