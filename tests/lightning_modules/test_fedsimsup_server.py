"""FedSimSup, the server: similarity, how strongly absent clients are mixed, and with whom."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_modules import fedsimsup
from lightning_modules.fedsimsup import SimSupServer, label_similarity, size_factor, time_factor
from pfl.core.types import ClientInfo
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from tests.helpers.draws import upload
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp
from tests.lightning_modules.test_fedsimsup import make

counts = st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=2, max_size=5)


def clients(*label_counts, rounds=100):
    return [ClientInfo(i, sum(c), torch.tensor(c), 0, rounds) for i, c in enumerate(label_counts)]


def state_of(models, label_counts, server=None, rounds=100):
    """A state whose models are the numbers given; they travel under the name ``w``."""
    server = server or SimSupServer()
    state = server.init({"w": torch.zeros(1)}, clients(*label_counts, rounds=rounds))
    state.shared["w"] = torch.tensor(models)[:, None]
    return state


def values(state):
    return state.shared["w"].flatten().tolist()


# Similarity.


def test_similarity_by_hand():
    """(3, 4, 0) / 5 and (0, 4, 3) / 5: 16 / 25, whatever the numbers of samples; no common label
    gives 0, and so do no data."""
    found = label_similarity(torch.tensor([[3, 4, 0], [0, 40, 30], [0, 0, 7], [0, 0, 0]]))
    expected = [[1, 0.64, 0, 0], [0.64, 1, 0.6, 0], [0, 0.6, 1, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@given(counts, st.integers(2, 9))
def test_similarity_is_symmetric_between_0_and_1_and_blind_to_size(label_counts, factor):
    table = torch.tensor(label_counts)
    found = label_similarity(table)
    assert torch.equal(found, found.T)
    assert found.min() >= 0
    assert found.max() <= 1
    torch.testing.assert_close(found.diagonal(), (table.sum(1) > 0).double())
    table[0] *= factor
    torch.testing.assert_close(label_similarity(table), found)


def test_the_server_keeps_similarities_unrounded():
    """In single precision 0.6 = (1, 0)(0.6, 0.8) would be 0.60000002."""
    found = state_of([0.0, 0.0], [[5, 0, 0], [3, 4, 0]]).similarity
    assert found[0, 1].item() == pytest.approx(0.6, rel=1e-15)


# The share of the mix.


def test_size_factor_by_hand():
    """M = 10 + 30 = 40, K = 2: 40 / (40 + 2 * 20) = 1/2, 40 / (40 + 2 * 60) = 1/4; no data, 1."""
    assert size_factor(torch.tensor([20, 60, 0]), [10, 30]).tolist() == [0.5, 0.25, 1.0]


@given(st.integers(1, 5000), st.integers(1, 50), st.integers(1, 5000), st.integers(1, 5000))
def test_size_factor_falls_with_size_and_is_one_half_among_equals(size, number, a, b):
    assert size_factor(torch.tensor([size]), [size] * number).item() == 0.5
    low, high = sorted((a, b))
    small, large = size_factor(torch.tensor([low, high]), [size] * number).tolist()
    assert 0 < large <= small <= 1


@pytest.mark.parametrize(
    ("mix_C", "gamma", "turn", "last"),
    [
        (40, 3 / 7, 772, 0.596),
        (40, 2 / 5, 634, 0.402),
        (20, 2 / 5, 317, 0.100),
        (10, 1 / 3, 100, 0.01),
    ],
)
def test_time_factor_of_the_papers_pairs(mix_C, gamma, turn, last):  # noqa: N803
    """Full strength before round ``turn``, and the factor of the last of T = 1000 rounds."""
    factor = partial(time_factor, rounds=1000, mix_C=mix_C, mix_gamma=gamma)
    assert factor(turn - 1) == 1
    assert factor(turn + 1) < 1
    assert factor(1000) == pytest.approx(last, abs=1e-3)


@given(st.floats(0, 50), st.floats(0.01, 0.99), st.integers(1, 200))
def test_time_factor_never_rises_and_has_no_jump(mix_C, gamma, rounds):  # noqa: N803
    """At the threshold (C T^gamma / t)^2 is 1, so one round lowers it at most to (1 - 1/t)^2."""
    factors = [time_factor(t, rounds, mix_C, gamma) for t in range(1, rounds + 2)]
    for t, (now, after) in enumerate(pairwise(factors), 1):
        assert after <= now
        assert after >= now * (t / (t + 1)) ** 2 - 1e-12


def test_a_c_of_zero_never_mixes():
    assert time_factor(1, 1000, 0.0, 3 / 7) == 0
    server = SimSupServer(mix_C=0)
    state = state_of([1.0, 2.0], [[4], [4]], server)
    assert values(server.aggregate(state, [upload(1, 4, 8.0)])) == [1.0, 8.0]


# Mixing.


def test_mixing_by_hand():
    """Clients 1 and 2 take part with 10 and 30 samples, client 0 is away with 20: alpha = 1/2 as in
    test_size_factor_by_hand. Its similarities are 0.6 and 0.8 (proportions (1, 0), (0.6, 0.8) and
    (0.8, 0.6) up to length), so its shares are 3/7 and 4/7: 0.5 * 10 + 0.5 * (3/7 * 0 + 4/7 * 7)
    = 7. Client 3 has none of their labels and stays."""
    counts = [[20, 0, 0], [6, 8, 0], [24, 18, 0], [0, 0, 5]]
    server = SimSupServer()
    state = state_of([10.0, 1.0, 2.0, 3.0], counts, server)
    after = server.aggregate(state, [upload(1, 10, 0.0), upload(2, 30, 7.0)])
    assert values(after) == pytest.approx([7.0, 0.0, 7.0, 3.0])
    assert after.client_report["mix"] == pytest.approx({0: 0.5, 1: 0, 2: 0, 3: 0})
    assert after.report == {"time_factor": 1.0}
    assert after.round == 1
    assert values(state) == [10.0, 1.0, 2.0, 3.0]


def test_mixing_fades_late():
    """T = 100, C = 2, gamma = 1/2: from round 20 on beta = (20 / t)^2, so 1/4 in round 40. Equal
    sizes: alpha = 1/8, and 0.875 * 8 + 0.125 * 0 = 7."""
    server = SimSupServer(mix_C=2, mix_gamma=0.5)
    state = state_of([8.0, 1.0], [[4], [4]], server)
    state = type(state)(**{**vars(state), "round": 39})
    assert values(server.aggregate(state, [upload(1, 4, 0.0)])) == [7.0, 0.0]


def test_one_participant_mixes_whatever_the_similarity():
    """(1 - 1/2) * 4 + 1/2 * 6 = 5 at similarities of 1 and of 0.1."""
    server = SimSupServer()
    for labels in ([10, 0], [1, 0]), ([1, 9], [10, 0]):
        own, other = labels
        state = state_of([4.0, 0.0], [own, other], server)
        state = type(state)(**{**vars(state), "samples": torch.tensor([10, 10])})
        assert values(server.aggregate(state, [upload(1, 10, 6.0)])) == pytest.approx([5.0, 6.0])


def test_participants_are_what_they_uploaded_bit_for_bit():
    third = torch.tensor(1 / 3).item()
    server = SimSupServer()
    state = state_of([1.0, 2.0, 3.0], [[4], [4], [4]], server)
    after = server.aggregate(state, [upload(0, 4, third), upload(2, 4, 0.1)])
    assert torch.equal(after.shared["w"][[0, 2], 0], torch.tensor([third, 0.1]))


def test_full_participation_is_the_identity():
    server = SimSupServer()
    state = state_of([1.0, 2.0], [[4], [4]], server)
    assert values(server.aggregate(state, [upload(0, 4, 5.0), upload(1, 4, 6.0)])) == [5.0, 6.0]


def test_at_full_participation_clients_never_meet():
    """Client 0 comes out the same whatever data client 1 has."""
    outcomes = []
    for sizes in ((9, 6), (9, 6)):
        data = blobs(sizes=sizes)
        if outcomes:
            x, y = data.splits["train"][1]
            data.splits["train"][1] = (x + 1, y.flip(0))
        loop = FederatedLoop(rounds=3, sampler=UniformSampler(1.0), progress=False)
        outcomes.append(loop.fit(make(mlp()), data))
    once, again = (outcome.server.shared["net.head.weight"] for outcome in outcomes)
    assert torch.equal(once[0], again[0])
    assert not torch.equal(once[1], again[1])


@given(st.floats(-100, 100, width=32), counts)
def test_mixing_equal_models_changes_nothing(value, label_counts):
    server = SimSupServer(zero_similarity="uniform")
    state = state_of([value] * len(label_counts), label_counts, server)
    sizes = [max(1, sum(c)) for c in label_counts]
    after = server.aggregate(state, [upload(i, sizes[i], value) for i in (0, 1)])
    assert values(after) == values(state)


def test_the_order_of_clients_does_not_matter():
    """The same clients under other numbers."""
    server, order = SimSupServer(), [3, 1, 0, 2]
    labels, models = [[4, 1], [2, 2], [1, 7], [3, 0]], [1.0, 2.0, 3.0, 4.0]
    sizes = [sum(c) for c in labels]
    after = server.aggregate(
        state_of(models, labels, server), [upload(i, sizes[i], 10.0 * i) for i in (0, 2)]
    )
    renamed = state_of([models[i] for i in order], [labels[i] for i in order], server)
    sent = sorted(
        (upload(order.index(i), sizes[i], 10.0 * i) for i in (0, 2)), key=lambda u: u.client
    )
    again = server.aggregate(renamed, sent)
    assert values(again) == pytest.approx([values(after)[i] for i in order])


# The switches, and edges.


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("keep", 2.0), ("size_weighted", 0.5 * 2 + 0.5 * 5), ("uniform", 0.5 * 2 + 0.5 * 4)],
)
def test_without_any_similarity(rule, expected):
    """Client 0 shares no label with 1 and 2, which upload 2 and 6 with 10 and 30 samples: by size
    (10 * 2 + 30 * 6) / 40 = 5, evenly 4; alpha = 40 / (40 + 2 * 20) = 1/2."""
    server = SimSupServer(zero_similarity=rule)
    state = state_of([2.0, 0.0, 0.0], [[20, 0], [0, 10], [0, 30]], server)
    after = server.aggregate(state, [upload(1, 10, 2.0), upload(2, 30, 6.0)])
    assert values(after)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rule", "expected"), [("size_average", 5.0), ("size_mix", 0.5 * 2 + 0.5 * 5), ("none", 2.0)]
)
def test_other_rules_for_absent_clients(rule, expected):
    """Eq. 2 as it stands: (10 * 2 + 30 * 6) / 40 = 5 takes the place of the absent model; in Eq. 7
    alpha = 40 / (40 + 2 * 20) = 1/2 of it does."""
    server = SimSupServer(absent_rule=rule)
    state = state_of([2.0, 0.0, 0.0], [[20, 0], [10, 0], [30, 0]], server)
    after = server.aggregate(state, [upload(1, 10, 2.0), upload(2, 30, 6.0)])
    assert values(after) == pytest.approx([expected, 2.0, 6.0])


def test_an_absent_client_receives_the_mix_made_meanwhile():
    server = SimSupServer()
    state = server.aggregate(state_of([4.0, 0.0], [[9], [9]], server), [upload(1, 9, 6.0)])
    assert server.broadcast(state, 0, 2).shared["w"].item() == 5.0
    assert server.broadcast(state, 1, 2).shared["w"].item() == 6.0


def test_all_models_start_the_same():
    state = SimSupServer().init({"w": torch.tensor([0.5, 2.0])}, clients([1], [2], [3]))
    assert state.shared["w"].tolist() == [[0.5, 2.0]] * 3
    assert (state.samples.tolist(), state.rounds) == ([1, 2, 3], 100)


def test_it_must_know_the_number_of_rounds():
    with pytest.raises(ValueError, match=parts("FedSimSup ~ rounds ~ 0")):
        SimSupServer().init({"w": torch.zeros(1)}, clients([1], rounds=0))


def test_mixing_block_by_block_gives_the_bits_of_mixing_at_once(monkeypatch):
    """Sums run in float64, so that blocks of seven entries round as one of all 300."""
    rng = torch.Generator().manual_seed(1)
    models = torch.randn(9, 20, 15, generator=rng)
    sent = [torch.randn(20, 15, generator=rng) for _ in range(4)]
    strength = torch.rand(9, generator=rng).double()
    partners = torch.rand(9, 4, generator=rng).double().softmax(1)
    whole = fedsimsup._mix(models, sent, strength, partners)
    expected = (1 - strength)[:, None] * models.flatten(1).double()
    expected += strength[:, None] * (partners @ torch.stack(sent).flatten(1).double())
    assert torch.equal(whole, expected.float().view_as(models))
    monkeypatch.setattr(fedsimsup, "BLOCK", 7)
    assert torch.equal(fedsimsup._mix(models, sent, strength, partners), whole)
