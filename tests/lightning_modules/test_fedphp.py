"""FedPHP: the invariants in docs/methods."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from lightning_modules.fedphp import FedPHP
from tests.helpers import by_hand, facts

FACTS = {
    FedPHP: facts.Facts(
        travels=("net.",),
        stays=("inherited.", "visits"),
        floats=facts.NET,
        variants=[{"regulariser": "mmd", "participation": 0.6}],
        stacks=[
            {"regulariser": "mmd", "first": "skip"},
            {"regulariser": "mmd_fixed", "first": "skip"},
        ],
        needs_classes=True,
    ),
}


@pytest.mark.parametrize(
    "options",
    [
        {"fallback_global": True},
        {"regulariser": "mmd", "participation": 0.5},
        {"regulariser": "mmd_fixed", "first": "skip"},
        {"schedule": "rounds", "momentum": 0.7},
    ],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(FedPHP, inherit_weight=0.3, **options), by_hand.initial()
    inherited, visits = [by_hand.initial() for _ in range(4)], [0] * 4
    most, last = options.get("momentum", 0.9), max(1, int(options.get("participation", 1) * 3))

    def features(w, x, train):
        # Statistics of the batch norm must not move twice.
        state = {n: v.clone() for n, v in by_hand.of(w, "backbone.").items()}
        return functional_call(by_hand.NET.backbone.train(train), state, (x,))

    def discrepancy(z, target):
        both, size = torch.cat([z, target]), len(z)
        apart = (both[:, None] - both).square().sum(-1)
        spread = apart.detach().sum() / (4 * size**2 - 2 * size) + 1e-8
        scales = [spread * 2.0 ** (i - 2) for i in range(5)]
        if options["regulariser"] == "mmd_fixed":
            scales = [2 * s for s in (10, 15, 20, 50)]
        kernels = sum(torch.exp(-apart / s) for s in scales)
        signs = torch.cat([torch.ones(size), -torch.ones(size)])
        return (torch.outer(signs, signs) * kernels).sum() / size**2

    for number, clients in enumerate(cohorts):
        sent = []
        for c in clients:
            v, share = inherited[c], 0.0 if "first" in options and not visits[c] else 0.3

            def loss(w, x, y, v=v, share=share):
                logits = by_hand.outputs(w, x, True)
                if "regulariser" in options:
                    pull = discrepancy(features(w, x, True), features(v, x, False).detach())
                else:
                    p = (by_hand.outputs(v, x) / 4).softmax(1).detach()
                    pull = cross_entropy(logits, p)
                return (1 - share) * cross_entropy(logits, y) + share * pull

            sent.append(by_hand.descended(w, loss, by_hand.batches(fed, c)))
            mu = most * number / 3 if "schedule" in options else min(most, most * visits[c] / last)
            inherited[c] = by_hand.averaged([v, sent[-1]], [mu, 1 - mu])
            visits[c] += 1
        w = by_hand.averaged(sent, [by_hand.SIZES[c] for c in clients])
        fed.round(*clients)
        by_hand.compare(by_hand.of(fed.state.shared, "net."), w)
        for c, v in enumerate(inherited):
            tested = v if visits[c] or "fallback_global" not in options else w
            by_hand.compare_tested(fed, c, tested, "inherited.")
