"""An audit of a site's epsilon against the server that it is for.

The server owns weights, clip, sigma, rate, sizes of batches, epochs, network and codec; the site
has two data sets that differ in one record, of which one has a record without a gradient in its
place. The server sends one message again and again, and guesses from the answers
which of the two it is.

Half of the answers choose its rule: a threshold of one of several numbers of an answer, such as how
far the weights moved along the difference that the data sets make in the mean. The other half
bounds epsilon from below (Clopper and Pearson, at 95 %): ``ln((true - delta) / false)``, in both
directions. It must not be above what the site charged for one message.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch import nn

from lightning_modules.fedavg import FedAvg
from pfl.core.seeds import scoped
from pfl.core.state import clone
from pfl.disk import container
from pfl.extras.codecs.coding import codec_of, codec_text, make_codec
from pfl.extras.privacy import accountant
from pfl.extras.privacy.budget import Budget
from pfl.extras.sites.site import Allowed, Site
from pfl.testing.toy import ToyNet
from tests.extras.sites.asking import RUN
from tests.extras.sites.hosts import Looks
from tests.helpers.federation import contexts
from tests.helpers.toy import ToyData, mlp

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.campaign

DELTA, ALPHA = 1e-3, 0.025
DIM, CLASSES = 5, 3
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Attack:
    """What a hostile server sends, and the record by which the two data sets differ.

    Attributes:
        record: The features and the class of the record, and of the one in its place.
        weights: Changes the entries that are sent, in place.
        others: Features and class of each other record.
        level: What the message says of privacy, whatever its ranges are.
        lr: The rate.
        batch_size: Of the run; all records are in one batch by default.
        net: The network.
        up: The codec of uploads.
        epochs: How often the client goes through its records.
        scores: Whether the server looks at losses and scores as well.
        runs: Answers of each data set.
        least: The site must not answer with a plain refusal, and the rule must reach this epsilon:
            what shows that the audit sees what there is to see.
    """

    record: tuple[list[float], int]
    instead: tuple[list[float], int] = ([0.0] * DIM, 0)
    weights: Callable[[dict[str, torch.Tensor]], None] = lambda entries: None
    others: list[tuple[list[float], int]] = field(default_factory=list)
    level: dict[str, Any] = field(default_factory=lambda: {"clip": 1.0, "sigma": 2.0})
    lr: float = 1.0
    batch_size: int = 100
    net: Callable[[], nn.Module] = mlp
    up: str | None = None
    scores: bool = False
    epochs: int = 1
    runs: int = 400
    least: float = -math.inf


def underflow(entries):
    """Squares of gradients of the class with the large bias are zero in float32: no clip."""
    entries["net.backbone.0.weight"].zero_()
    entries["net.backbone.0.bias"].fill_(1e-22)
    entries["net.head.weight"].copy_(torch.linspace(-1, 1, 18).view(3, 6))
    entries["net.head.bias"].copy_(torch.tensor([53.0, 0.0, 0.0]))


def overflow(entries):
    """The outputs of a record with a feature above one are not finite."""
    for value in entries.values():
        value.zero_()
    entries["net.backbone.0.weight"][:, 0] = LARGEST / 2
    entries["net.head.weight"].fill_(0.3)


def sparse(entries):
    """All hidden units see the first feature alone, and have a gradient only where it is set."""
    for value in entries.values():
        value.zero_()
    entries["net.backbone.0.weight"][:, 0] = 1
    entries["net.head.weight"][0] = 1


def plain(entries):
    """What the head receives has all bits of its gradient and the noise."""
    sparse(entries)
    entries["net.head.weight"].zero_()


def large(entries):
    for value in entries.values():
        value.mul_(1e18)


def looks():
    with scoped(1):
        return ToyNet(Looks(), nn.Linear(6, CLASSES))


ONE, ZERO = [1.0, 0.0, 0.0, 0.0, 0.0], [0.0] * DIM
OTHERS = [([0.3, -1.0, 0.5, 2.0, 0.1 * i], 1 + i % 2) for i in range(15)]
MUCH = {"clip": 1.0, "sigma": 8.0}
ATTACKS = {
    "a clip whose square is zero": Attack(
        (ONE, 0), (ZERO, 1), underflow, OTHERS, {"clip": 1e-38, "sigma": 1e6}
    ),
    "a small clip": Attack((ONE, 0), (ZERO, 1), underflow, OTHERS, {"clip": 1e-12, "sigma": 2.0}),
    "weights at the end of float32": Attack((ONE, 0), (ZERO, 0), overflow, OTHERS, lr=1e-30),
    "a loss that is not finite": Attack(
        ([4.0, 0.0, 0.0, 0.0, 0.0], 0), (ONE, 0), overflow, OTHERS, lr=1e-30
    ),
    "the last bits of the noise": Attack((ONE, 1), (ZERO, 1), plain, net=partial(mlp, hidden=4000)),
    "losses and scores": Attack((ONE, 0), (ZERO, 1), others=OTHERS, scores=True),
    "a network that fails for a record": Attack(
        ([11.0, 0.0, 0.0, 0.0, 0.0], 1), (ONE, 1), net=looks, others=[(ONE, 1)] * 9
    ),
    "large weights": Attack((ONE, 0), (ZERO, 1), large, OTHERS, lr=1e18),
    "a large clip": Attack((ONE, 1), (ZERO, 1), sparse, level={"clip": 1e12, "sigma": 2.0}),
    "batches of two of ten records": Attack(
        (ONE, 1), (ZERO, 1), sparse, [(ZERO, 1)] * 9, {"clip": 1.0, "sigma": 1.0}, batch_size=2
    ),
    "twenty epochs": Attack((ONE, 1), (ZERO, 1), sparse, lr=0.01, epochs=20, level=MUCH),
    "little noise": Attack((ONE, 1), (ZERO, 1), sparse, level={"clip": 0.1, "sigma": 0.5}, least=1),
    "a codec of signs": Attack((ONE, 1), (ZERO, 1), sparse, up="sign"),
    "a codec that quantises": Attack((ONE, 1), (ZERO, 1), sparse, up="qsgd"),
    "a codec of large numbers": Attack((ONE, 1), (ZERO, 1), sparse, up="topk"),
}


def numbers(attack, answer, sent):
    """Return the numbers of an answer by which the server may tell the data sets apart."""
    content, tensors = container.unpack(answer)
    if "failure" in content:
        return {"error": 1.0, "words": float(len(content["failure"]["message"]))}
    report = content["train"]
    found = {
        "error": 0.0,
        "finite": float(report["finite"]),
        "samples": float(report["samples"]),
        "steps": float(report["steps"]),
    }
    if attack.scores:
        found["bytes"] = float(len(answer))
    told = {kind: report[kind] for kind in ("train", "logged")} | report["scores"]
    for kind, values in told.items() if attack.scores else ():
        for name, value in zip(*values.values(), strict=True):
            found[f"{kind} {name}"] = float(value)
    moved = {}
    for name, before in sent.items():
        if attack.up is None:
            change = tensors[f"shared:{name}"].double() - before.double()
        else:
            own = {k.partition(f"{name}:")[2]: v for k, v in tensors.items() if f"{name}:" in k}
            change = codec_of(codec_text(make_codec(attack.up))).decode(own, before).double()
        moved[name] = change.flatten().numpy() / attack.lr
        # Of a sum with noise that is nearly zero: they are zero if it was not so without.
        small = moved[name][(moved[name] != 0) & (np.abs(moved[name]) < 2.0**-9)]
        bits = (np.abs(np.frexp(small)[0]) * 2**24).astype(np.int64)
        found[f"last bits {name}"] = float(np.mean(bits & 7 == 0)) if len(bits) else 1.0
    whole = np.concatenate([*moved.values()])
    whole = whole[np.isfinite(whole)]
    found["size"] = float(np.linalg.norm(whole))
    found["largest"] = float(np.abs(whole).max(initial=0))
    return found | {"moved": whole}


def step(name, **values):
    return {"name": f"pfl.extras.{name}", "values": values}


def answers(attack, record, tmp_path):
    """Return the numbers of each answer, and the epsilon that the site charged for one."""
    rows = [record, *attack.others]
    x, y = (torch.tensor(column) for column in zip(*rows, strict=True))
    data = ToyData([(x, y)], [(x, y)], outputs=CLASSES, batch_size=attack.batch_size)
    method = FedAvg(
        attack.net(), optimizer=partial(torch.optim.SGD, lr=attack.lr), epochs=attack.epochs
    )
    found = contexts(method, data)
    ledger = tmp_path / "spent.json"
    budget = Budget(ledger, 1e9, DELTA)
    allowed = Allowed(class_counts=True, scores=False, budget=budget)
    site = Site(found, 0, tmp_path / str(record), allowed=allowed)
    sent = clone({name: found.first.template[name] for name in found.module.shared_names()})
    attack.weights(sent)
    # Not an Order, which would check what a hostile server sends.
    order = {
        **{"run": RUN, "client": 0, "round": 1, "rounds": 1, "seed": 7, "splits": ["test"]},
        **{"model": "personal", "sent": True, "op_threads": 1, "codec": None, "kept": None},
        "steps": [step("privacy.sample_level.PrivateSamples", **attack.level, system=True)],
    }
    if attack.up is not None:
        codec = codec_text(make_codec(attack.up))
        order["steps"].append(step("codecs.coding.Encoded", codec=codec, names=list(sent)))
    message = container.pack({"train": order}, {f"shared:{n}": v for n, v in sent.items()})
    told, charged = [], 0.0
    for _ in range(attack.runs):
        ledger.unlink(missing_ok=True)
        told.append(numbers(attack, site.answer("train", message), sent))
        if not charged and ledger.exists():
            charged = accountant.of_parts(
                tuple(
                    (1 / k["batches"], k["sigma"], k["steps"])
                    for k in json.loads(ledger.read_text())["spent"]
                ),
                DELTA,
            )
    site.close()
    return told, charged


def shares(told, name, threshold, above):
    values = np.array([row.get(name, math.nan) for row in told])
    hits = values >= threshold if above else values < threshold
    return int(hits.sum()), len(told)


def projected(pairs, pilots):
    """Turn each answer's change of weights into one number: along the difference of the means."""
    longest = max(len(row.get("moved", ())) for one in pilots for row in one)

    def vector(row):
        moved = row.get("moved", np.zeros(0))
        return np.pad(moved, (0, longest - len(moved)))[:longest]

    first, second = (np.mean([vector(row) for row in one], axis=0) for one in pilots)
    for one in pairs:
        for row in one:
            along = float(vector(row) @ (first - second))
            row.pop("moved", None)
            row["along"] = along if math.isfinite(along) else 0.0


def proven(told, rule):
    """Return the lower bound of epsilon that a rule proves."""
    (true, ran), (false, tried) = (shares(one, *rule) for one in told)
    if not true:
        return 0.0
    least = beta.ppf(ALPHA, true, ran - true + 1)
    most = beta.ppf(1 - ALPHA, false + 1, tried - false) if false < tried else 1.0
    return math.log(max(least - DELTA, 1e-300) / most)


def attacked(attack, tmp_path):
    """Return the epsilon that the server proves, its rule, and what the site charged."""
    pairs = [answers(attack, one, tmp_path) for one in (attack.record, attack.instead)]
    (told, charged), (others, also) = pairs
    fourth, half = attack.runs // 4, attack.runs // 2
    # A direction fits the answers from which it is taken.
    projected((told, others), (told[:fourth], others[:fourth]))
    pilot, rest = (
        [one[fourth:half] for one in (told, others)],
        [one[half:] for one in (told, others)],
    )
    best = (-math.inf, None)
    for name in {name for one in pilot for row in one for name in row}:
        values = np.array([row.get(name, math.nan) for one in pilot for row in one])
        values = values[np.isfinite(values)]
        for threshold in (
            np.unique(np.quantile(values, np.linspace(0, 1, 41))) if len(values) else ()
        ):
            for above in (True, False):
                for turned in (False, True):
                    rule = (name, threshold, above)
                    pair = pilot[::-1] if turned else pilot
                    best = max(best, (proven(pair, rule), (rule, turned)), key=lambda b: b[0])
    rule, turned = best[1]
    return proven(rest[::-1] if turned else rest, rule), rule, max(charged, also)


@pytest.mark.parametrize("name", ATTACKS)
def test_no_server_learns_more_of_a_record_than_is_charged(name, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    attack = ATTACKS[name]
    epsilon, rule, charged = attacked(attack, tmp_path)
    print(f"{name}: proves {epsilon:.2f} of {charged:.2f}, by {rule}")
    assert epsilon <= charged + 1e-9
    assert epsilon >= attack.least
