"""FedAS's other ways to align, with hand-worked class means."""

import pytest
import torch

from lightning_modules.fedas import FedAS
from lightning_modules.fedas_variants import FedASVariant
from pfl.core.types import Upload
from tests.helpers import facts
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.messages import parts
from tests.helpers.toy import mlp

FACTS = {
    FedASVariant: facts.Facts(
        travels=("net.backbone.",),
        stays=("net.head.", "previous."),
        extra=("trace", "feature_sums", "feature_counts"),
        # Down: the means; up: the trace, sums and counts.
        floats=(facts.BODY + facts.MEANS, facts.BODY + 1 + facts.MEANS + 3),
        stacks=[{"align_manner": "serial"}],
        serves={
            "trace_normaliser": ("normaliser", "min_max"),
            "server_step_scale": ("step_scale", "one_over_m"),
        },
        needs_classes=True,
        needs_parts=True,
        not_private="pass 'targets': it computes statistics of the samples without noise",
    ),
}

COHORTS = ((0, 1, 2), (1, 2), (0, 1))


def make(net, **options):
    return FedASVariant(net, **options)


def played(module, cohorts=COHORTS):
    federation = Federation(module)
    for clients in cohorts:
        federation.round(*clients)
    return federation


def test_parallel_with_weight_does_not():
    ours = played(FedASVariant(mlp(), align_object="own", optimizer=sgd()))
    theirs = played(FedAS(mlp(), alignment=False, optimizer=sgd()))
    assert not equal(ours.state.shared, theirs.state.shared)


def test_one_clients_global_features_are_its_own():
    """From the second round on: what it uploaded are the means under its last backbone."""
    for manner in ("serial", "parallel"):
        own, everybody = (
            played(
                FedASVariant(mlp(), align_manner=manner, align_object=to, optimizer=sgd()),
                ((1,), (1,), (1,)),
            )
            for to in ("own", "global")
        )
        for name, value in own.state.shared.items():
            torch.testing.assert_close(everybody.state.shared[name], value)


def test_class_means_over_clients_by_hand():
    """Class 0: sums 2 and 7 over 1 + 2 samples, 3; class 1 of client 1 alone, 4 / 1 = 4; class 2 of
    nobody. A later upload of client 0, 5 of 1 sample, takes the place of its first: (5 + 7) / 3."""
    federation = Federation(make(mlp(), optimizer=sgd()))
    server, state = federation.server, federation.state
    size = server.size

    def upload(client, *pairs):
        sums, counts = torch.zeros(size), torch.zeros(size[0])
        for label, (total, count) in enumerate(pairs):
            sums[label], counts[label] = total, count
        extra = {"trace": torch.tensor(1.0), "feature_sums": sums, "feature_counts": counts}
        return Upload(client, 3, state.shared, extra)

    def means(after):
        return server.broadcast(after, 2, 1).extra["global_means"][:, 0]

    assert means(state).isnan().all()
    after = server.aggregate(state, [upload(0, (2, 1)), upload(1, (7, 2), (4, 1))])
    torch.testing.assert_close(means(after), torch.tensor([3.0, 4.0, torch.nan]), equal_nan=True)
    again = server.aggregate(after, [upload(0, (5, 1))])
    assert means(again)[0] == 4.0
    assert means(after)[0] == 3.0


def test_without_alignment_it_is_no_variant():
    with pytest.raises(ValueError, match=parts("alignment: false ~ FedAS")):
        make(mlp(), alignment=False)


def test_global_features_need_class_means_and_the_server_of_traces():
    for options in ({"align_target": "per_sample"}, {"synchronisation": False}):
        with pytest.raises(
            ValueError, match=parts("align_object: global ~ synchronisation ~ class_mean")
        ):
            make(mlp(), **options)
