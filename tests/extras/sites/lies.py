"""Lies of a site, which can be read and are not right."""

from __future__ import annotations

import math

import torch

from pfl.disk import container
from pfl.federation.run import Callback
from tests.extras.sites.sites import Recorded

WEIGHT = "shared:net.backbone.0.weight"


class Liar(Recorded):
    """Client 1 answers the questions of one kind in round 2 with a lie.

    Attributes:
        lies: The answers that it gave then.

    Args:
        folder: The sites' folder.
        lie: Makes of an answer and the earlier answers to the verb another one.
        verb: The verb of the questions.
    """

    def __init__(self, folder, lie, verb="train", **options):
        super().__init__(folder, after=self.told, **options)
        self.lie, self.verb, self.earlier, self.lies = lie, verb, [], []

    def told(self, client, verb, content, answer):
        if verb != self.verb:
            return answer
        question = container.unpack(content)[0][verb]
        if (client, question["round"]) == (1, 2 if verb != "hello" else 0):
            self.lies.append(self.lie(answer, self.earlier))
            return self.lies[-1]
        self.earlier.append((client, answer))
        return answer


class Rounds(Callback):
    """Remembers why clients failed in each round."""

    def __init__(self):
        self.failed = []

    def on_round_end(self, run, result):
        self.failed.append(dict(result.failed))


def says(**changes):
    """Return a lie about some values of a record; a function gets the right one."""

    def lie(answer, earlier):
        content, tensors = container.unpack(answer)
        (record,) = content.values()
        for key, new in changes.items():
            record[key] = new(record[key]) if callable(new) else new
        return container.pack(content, tensors)

    return lie


def sends(edit):
    """Return a lie in the tensors of an answer."""

    def lie(answer, earlier):
        content, tensors = container.unpack(answer)
        edit(tensors)
        return container.pack(content, tensors)

    return lie


def fills(value, *kinds):
    """Return a lie in which all numbers of some kinds of entries are one value."""

    def edit(tensors):
        for name, tensor in tensors.items():
            if name.partition(":")[0] in kinds and tensor.is_floating_point():
                tensor.fill_(value)

    return sends(edit)


def entry(name, value):
    return sends(lambda tensors: tensors.update({name: value(tensors.get(name))}))


def numbers(**values):
    return {"names": [*values], "values": [*values.values()]}


def one_more(values, name="local/invented"):
    return {"names": [*values["names"], name], "values": [*values["values"], 0.5]}


def first(value):
    return lambda values: {**values, "values": [value, *values["values"][1:]]}


def of(part, change):
    """Change the scores on a split."""
    return lambda scores: {**scores, part: change(scores[part])}


def is_replaced(part, value):
    """Replace one score."""

    def change(values):
        found = dict(zip(values["names"], values["values"], strict=True))
        return numbers(**{**found, part: value})

    return change


def fails(**changes):
    """Return a failure that would restart the client, if it were one of the question."""

    def lie(answer, earlier):
        ((_, record),) = container.unpack(answer)[0].items()
        known = {key: record[key] for key in ("run", "client", "round", "question")}
        failure = {**known, "kind": "lost", "message": "gone", **changes}
        return container.pack({"failure": failure}, {})

    return lie


def again(client):
    """Return the answer of a client to an earlier question of this kind."""
    return lambda answer, earlier: next(told for who, told in earlier if who == client)


MANY = numbers(**{f"column {number}": 1.0 for number in range(40_000)})
SCORES = {
    "an accuracy of 2": is_replaced("acc", 2.0),
    "an accuracy below 0": is_replaced("acc", -0.5),
    "an error below 0": is_replaced("loss", -1.0),
    "an infinite error": is_replaced("loss", "inf"),
    "an error of 1e308": is_replaced("loss", 1e308),
    "some scores that are NaN": is_replaced("f1", "nan"),
    "a calibration error of 7": is_replaced("ece", 7),
    "a score that is a truth value": is_replaced("acc", True),
    "a score of a name that is not declared": is_replaced("invented", 0.5),
    "no accuracy": lambda values: {key: one[1:] for key, one in values.items()},
    "fewer numbers than names": lambda values: {**values, "values": values["values"][1:]},
    "a score twice": lambda values: {key: one[:1] + one for key, one in values.items()},
}
TRAINING = {
    "another client": says(client=0),
    "another round": says(round=1),
    "another run": says(run="f" * 32),
    "another question": says(question="f" * 64),
    "the last round's answer": again(1),
    "another client's answer": again(0),
    "10**15 steps": says(steps=10**15),
    "a step more than its plan has": says(steps=lambda steps: steps + 1),
    "a step fewer than its plan has": says(steps=lambda steps: steps - 1),
    "no steps": says(steps=0),
    "10**15 samples": says(samples=10**15),
    "a sample more than it has": says(samples=lambda samples: samples + 1),
    "a sample fewer than it has": says(samples=lambda samples: samples - 1),
    "no samples": says(samples=0),
    "a negative number of steps": says(steps=-1),
    "half a step": says(steps=1.5),
    "a heavier upload": says(upload=10**6),
    "no upload after training": says(upload=None),
    "a loss of 1e308": says(train=first(1e308)),
    "a loss of 1e99 in single precision": says(train=first(1e99)),
    "a loss that is NaN": says(train=first("nan")),
    "a loss that is infinite": says(train=first("-inf")),
    "a loss of a term that is not declared": says(train=one_more),
    "a loss of a phase that is not declared": says(train=lambda v: one_more(v, "other/ce")),
    "40,000 logged columns": says(logged=MANY),
    "a logged column that is not declared": says(logged=numbers(invented=1.0)),
    "a column of a long name": says(logged=numbers(**{"x" * 5000: 1.0})),
    "no kept state": says(kept=None),
    "the kept state of an earlier round": says(kept=lambda kept: {**kept, "round": 1}),
    "a kept state of no hash": says(kept=lambda kept: {**kept, "digest": "../../etc"}),
    "an upload that a step withheld": says(withheld="Privacy"),
    "an upload withheld by a step that does not exist": says(withheld="Privacy", upload=None),
    "a key that does not exist": says(weight=1e9),
    "a truth value in words": says(finite="yes"),
    "weights that are NaN": fills(math.nan, "shared"),
    "weights that are infinite": fills(-math.inf, "shared"),
    "weights of 1e30": fills(1e30, "shared"),
    "weights of another type": entry(WEIGHT, torch.Tensor.double),
    "weights of another shape": entry(WEIGHT, lambda value: value[:1]),
    "weights that are missing": sends(lambda tensors: tensors.pop(WEIGHT)),
    "weights of a part that stays": entry("shared:net.head.weight", lambda _: torch.zeros(3, 6)),
    "something in addition": entry("extra:images", lambda _: torch.zeros(9, 5)),
    "its kept state": entry("kept:net.head.weight", lambda _: torch.zeros(3, 6)),
    "a failure of an unknown kind": fails(kind="sleepy"),
    "a failure of another question": fails(question="f" * 64),
    "a failure of another round": fails(round=1),
    "a failure of another client": fails(client=0),
    "a failure of another run": fails(run="f" * 32),
    "a failure that belongs to nothing": lambda *_: container.pack(
        {"failure": {"kind": "lost", "message": "gone"}}, {}
    ),
    "that it could not read the question": lambda *_: container.pack(
        {"unread": {"message": "damaged"}}, {}
    ),
    "the record of a test": lambda *_: container.pack({"test": {"scores": {}}}, {}),
    "noise": lambda *_: b"noise",
    "nothing": lambda *_: b"",
}
# Lies by a little of how long a client trains.
OF_LENGTH = [name for name in TRAINING if name.startswith(("a step ", "a sample "))]
TESTING = {
    "another client": says(client=0),
    "another round": says(round=1),
    "another question": says(question="f" * 64),
    "the last round's scores": again(1),
    "another client's scores": again(2),
    "scores of fewer splits": says(scores=lambda s: {n: v for n, v in s.items() if n != "val"}),
    "scores of a split that is not asked for": says(scores=lambda s: {**s, "pooled": s["test"]}),
    "tensors": entry("shared:x", lambda _: torch.zeros(2)),
    **{name: says(scores=of("test", change)) for name, change in SCORES.items()},
}
