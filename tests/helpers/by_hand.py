"""Federated training written out: common parts of the plain loops in tests of methods.

Only data, initial values and the order of samples come from the project, so that a method can be
compared with a loop that follows its paper. Everything is in float64.

How far the two may be apart is measured, since it depends on the federation: batch norms and the
units that rounding switches on or off can make ten thousand units in the last place of one. So
:func:`up_to_rounding` runs the test again while each step of the loop rounds otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import wraps

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from pfl.core.seeds import generator
from pfl.core.state import named
from pfl.testing.compare import distance
from pfl.training import client_round
from pfl.verification.rounding import DRAWS, moved
from tests.helpers.federation import Federation, sgd
from tests.helpers.toy import blobs, normed

SIZES = (10, 6, 7, 8)
COHORTS = {"all": [(0, 1, 2, 3)] * 3, "half": [(0, 1), (2, 3), (0, 2)]}
"""The participants of three rounds."""
# No bias before the batch norm: its gradient would be rounding noise.
NET = normed(bias=False).double()
OPTIMIZER = sgd(0.03, momentum=0.9, weight_decay=0.01)
# If distances are normal, one is this many times the largest of three in one of a million cases.
FACTOR = 100
# A formula that is wrong by one part in a million has to be found.
LARGEST = 1e-7


@dataclass
class Play:
    """A run of a test: what it has compared, and the draw that moves its loop, if there is one."""

    rounding: torch.Generator | None = None
    found: list[dict[str, torch.Tensor]] = field(default_factory=list)
    expected: list[dict[str, torch.Tensor]] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)
    """Those of the federation's clients, in order."""


_play: Play | None = None


def up_to_rounding(test):
    """Make a test of what it compares by :func:`compare`, as closely as rounding allows.

    The test runs once as it is, and again for each draw, which moves the values of its loop by one
    unit in the last place at the start and in each step. The largest distance that this makes
    between two loops is the federation's radius. The federation's clients train only once:
    after the first run, what is found is not looked at.
    """

    @wraps(test)
    def run(**parameters):
        plain = _played(test, Play(), parameters)
        others = [
            _played(test, Play(generator(draw, "rounding")), parameters, plain.answers)
            for draw in range(DRAWS)
        ]
        pairs = [pair for o in others for pair in zip(o.expected, plain.expected, strict=True)]
        radius = max(distance(*pair)[0] for pair in pairs)
        apart, name = max(map(distance, plain.found, plain.expected))
        assert 0 < FACTOR * radius < LARGEST
        assert apart <= FACTOR * radius, f"{name!r}; rounding alone makes {radius:.1e}"

    return run


def _played(test, play, parameters, answers=()):
    """Run a test, in which clients train and are tested, or give the answers of a former run."""
    global _play
    _play, left = play, iter(answers)

    def answering(own):
        def answer(*job):
            play.answers.append(next(left) if answers else own(*job))
            return play.answers[-1]

        return answer

    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("train", "test"):
                patch.setattr(client_round, name, answering(getattr(client_round, name)))
            test(**parameters)
    finally:
        _play = None
    return play


def rounded(state):
    """Return the values of a loop after an operation, which a draw moves by a unit."""
    if _play is None or _play.rounding is None:
        return state
    return {n: moved(v, _play.rounding) for n, v in state.items()}


def compare(found, expected):
    """Compare what a federation has, tensors or states of any form, with what the loop has."""
    for values, play in ((found, _play.found), (expected, _play.expected)):
        # What a module has is what it will train.
        play.append({n: v.detach().clone() for n, v in named(values).items()})


def compare_tested(fed, client, w, stem="net."):
    """Compare a client's tested network, and its outputs, with ``w``."""
    x, _ = samples(fed, client, "test")
    found = predicted(fed, client)
    compare((of(fed.module.state_dict(), stem), found), (w, outputs(w, x)))


def federation(method, **options):
    """Return a federation in float64 with two local epochs, on a network with a batch norm."""
    module = method(normed(bias=False), **{"optimizer": OPTIMIZER, "epochs": 2, **options})
    return Federation(module, blobs(SIZES), rounds=3, precision="64-true")


def initial(values=None):
    """Return the initial values of the network, or others, without counters of batch norms."""
    entries = (NET.state_dict() if values is None else values).items()
    return rounded({n: v.clone() for n, v in entries if v.is_floating_point()})


def of(state, stem):
    """Return the entries whose names begin with ``stem``, without that prefix."""
    found = {n.removeprefix(stem): v for n, v in state.items() if n.startswith(stem)}
    return {n: v for n, v in found.items() if v.is_floating_point()}


def outputs(w, x, train=False, net=NET):
    """Return the network's outputs; training updates the batch-norm statistics in ``w``."""
    return functional_call(net.train(train), w, (x,))


def samples(fed, client, split="train"):
    """Return a client's inputs and labels."""
    x, y = fed.data.splits[split][client]
    return x.double(), y


def batches(fed, client, epochs=2, phase="local", size=None, ahead=1):
    """Yield the batches of a phase of a client's next round, or of the test in the last one."""
    x, y = samples(fed, client)
    for rows in orders(fed, client, len(y), epochs, phase, size, ahead):
        yield x[rows], y[rows]


def orders(fed, client, count, epochs, phase, size=None, ahead=1):
    """Yield the positions of ``count`` samples in the batches of a phase."""
    seed = fed.job(client, fed.number + ahead).seed
    for epoch in range(epochs):
        rng = generator(seed, "order", phase, epoch)
        yield from torch.randperm(count, generator=rng).split(size or fed.data.batch_size)


def features(w, x, train=False):
    """Return the outputs of the network's backbone, as :func:`outputs` does the network's."""
    return functional_call(NET.backbone.train(train), of(w, "backbone."), (x,))


def class_means(fed, client, w):
    """Return a client's classes, and the mean features of each, after training."""
    x, y = samples(fed, client)
    classes = y.unique()
    return classes, torch.stack([features(w, x)[y == k].mean(0) for k in classes]).detach()


def cross_entropy_of(w, x, y):
    """Return the loss of a step of FedAvg."""
    return cross_entropy(outputs(w, x, True), y)


def descended(w, loss, steps, rate=0.03, momentum=0.9, decay=0.01):
    """Return the entries after steps of SGD with momentum and weight decay, from rest."""
    w, speed = {n: v.clone() for n, v in w.items()}, {}
    names = trained(w)
    for batch in steps:
        w = {n: v.detach().requires_grad_(n in names) for n, v in w.items()}
        slopes = torch.autograd.grad(loss(w, *batch), [w[n] for n in names])
        for n, slope in zip(names, slopes, strict=True):
            speed[n] = momentum * speed.get(n, 0.0) + slope + decay * w[n]
            w[n] = w[n] - rate * speed[n]
        w = rounded({n: v.detach() for n, v in w.items()})
    return {n: v.detach() for n, v in w.items()}


def stepped(w, loss, rate, *batch):
    """Return the entries after a step of plain SGD on all of them."""
    w = {n: v.detach().requires_grad_() for n, v in w.items()}
    slopes = torch.autograd.grad(loss(w, *batch), [*w.values()])
    pairs = zip(w.items(), slopes, strict=True)
    return rounded({n: (v - rate * s).detach() for (n, v), s in pairs})


def trained(w):
    """Return the names of the parameters."""
    return [n for n in w if "running" not in n]


def inner(one, other):
    """Return the inner product of the entries that two states have in common."""
    return sum((one[n] * other[n]).sum() for n in one.keys() & other.keys())


def vector(w):
    """Return all parameters as one vector, without statistics."""
    return torch.cat([w[n].flatten() for n in trained(w)])


def averaged(states, weights):
    """Return the weighted mean of some states; weights need not sum to one."""
    pairs = [*zip(states, weights, strict=True)]
    return rounded({n: sum(k * s[n] for s, k in pairs) / sum(weights) for n in states[0]})


def fedavg(fed, w, clients):
    """Return the network after a round of FedAvg."""
    sent = [descended(w, cross_entropy_of, batches(fed, c)) for c in clients]
    return averaged(sent, [SIZES[c] for c in clients])


def predicted(fed, client):
    """Return the outputs of a client's tested model on its test samples."""
    fed.test(client)
    return fed.module(samples(fed, client, "test")[0]).detach()
