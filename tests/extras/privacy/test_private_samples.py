"""Runs that keep single samples private: their epsilon, their end, and what is refused."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from lightning_modules import Ditto, FedAvg, FedPer, FedROD, FedSimSup, UniVarFL
from pfl.extras.privacy.privacy import Privacy
from pfl.extras.privacy.samples import SampleAccount
from pfl.federation.sampling import UniformSampler
from pfl.testing.federation import fit
from pfl.testing.toy import blobs, mlp
from tests.helpers.discovery import subject
from tests.helpers.extras import LOOPBACK, needs
from tests.helpers.messages import parts

pytest.importorskip("dp_accounting")

SGD = partial(torch.optim.SGD, lr=0.1)
ALL = UniformSampler()
SAMPLE = Privacy(1.0, 1.0, 1e-2, level="sample")


def run(method=FedAvg, privacy=SAMPLE, **options):
    options = {"sampler": ALL, **options}
    return fit(
        method(mlp(), optimizer=SGD),
        blobs(batch_size=3),
        uplink=[privacy] if privacy else None,
        **options,
    )


def gaussian_delta(epsilon, sigma):
    """Exact delta of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""

    def phi(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    a, b = 1 / (2 * sigma), epsilon * sigma
    return phi(a - b) - math.exp(epsilon) * phi(-a - b)


def test_epsilon_without_subsampling_is_exact():
    """Four steps over all samples with sigma 4 are one with sigma 2."""
    account = SampleAccount(Privacy(1.0, 4.0, 1e-3, level="sample"), {0: ((1, 2),)}, None)
    assert gaussian_delta(account.planned(2), 2.0) == pytest.approx(1e-3, rel=1e-3)
    assert account.planned(0) == 0


def test_epsilon_is_that_of_the_client_with_the_largest_one():
    """Larger rates and more rounds cost more; phases of other rates add up."""

    def epsilon(*steps, cohort=None, rounds=3):
        own = dict(enumerate(steps))
        return SampleAccount(Privacy(1.0, 2.0, 1e-3, level="sample"), own, cohort).planned(rounds)

    often, seldom = ((2, 4),), ((8, 4),)
    assert epsilon(often, seldom) == epsilon(often) > epsilon(seldom)
    assert epsilon(((2, 4), (8, 4))) > epsilon(often)
    # The first client takes part in the first round alone.
    found = epsilon(
        often, seldom, cohort=lambda n: UniformSampler()((0, 1) if n == 1 else (1,), None, n)
    )
    assert found == max(epsilon(often, rounds=1), epsilon(seldom))
    # Of clients with the same steps, the one that takes part most often counts.
    found = epsilon(
        often, often, cohort=lambda n: UniformSampler()((0, 1)[: 1 + (n == 1)], None, n)
    )
    assert found == epsilon(often)


def test_the_run_ends_before_the_round_that_would_exceed_epsilon():
    """Clients of 9, 6 and 4 samples take 3, 2 and 2 steps an epoch: the worst rate is 1/2."""
    account = SampleAccount(SAMPLE, {0: ((3, 3),), 1: ((2, 2),)}, None)
    limit = account.planned(2) + 1e-6
    found = run(privacy=Privacy(1.0, 1.0, 1e-2, epsilon=limit, level="sample"), rounds=5)
    assert found.round == found.rounds == 2
    assert (
        f"epsilon {account.planned(2):.4g} at delta 0.01 after 2 rounds" in found.header["privacy"]
    )
    assert "ends there" in found.header["privacy"]
    assert "rates 0.333 to 0.5" in found.header["mechanism"]
    with pytest.raises(ValueError, match=parts("single round ~ epsilon")):
        run(privacy=Privacy(1.0, 1.0, 1e-2, epsilon=1e-3, level="sample"))


@needs("sites")
def test_what_sites_cannot_keep_private_is_found_without_their_samples():
    with pytest.raises(ValueError, match=parts("'he' ~ mean over the samples")):
        fit(UniVarFL(mlp()), blobs(), uplink=[SAMPLE], engine="loopback", sampler=ALL)


@pytest.mark.parametrize("engine", ["threads", "vectorised", LOOPBACK])
@pytest.mark.parametrize("method", [FedPer, Ditto])
def test_engines_draw_the_same_noise(method, engine):
    one = run(method, engine="sequential", precision="64-true")
    other = run(method, engine=engine, precision="64-true")
    if engine != "vectorised":
        assert other.fingerprint == one.fingerprint
    for name, value in one.server.shared.items():
        torch.testing.assert_close(other.server.shared[name], value, rtol=0, atol=1e-10)


def test_a_resumed_run_draws_the_same_noise(tmp_path):
    options = {"name": "run", "default_root_dir": str(tmp_path)}
    whole = run(rounds=3)
    run(rounds=1, **options)
    assert run(rounds=3, ckpt_path="last", **options).fingerprint == whole.fingerprint
    assert run(rounds=3, privacy=None).fingerprint != whole.fingerprint


def test_a_round_of_empty_batches_has_no_loss():
    """Batches of one sample: the client of two has a round without any in one of four."""
    privacy = Privacy(1.0, 0.0, 1e-2, level="sample")
    sampler, data = UniformSampler(0.34), blobs((2, 2, 2), batch_size=1)
    found = fit(FedAvg(mlp(), optimizer=SGD), data, 20, uplink=[privacy], sampler=sampler)
    empty = [row for row in found.history if not row["train/samples"]]
    assert 0 < len(empty) < found.round == 20
    assert not any("train/local/ce" in row for row in empty)


def test_noise_of_the_system_is_never_the_same():
    system = Privacy(1.0, 1.0, 1e-2, level="sample", noise="system")
    assert run(privacy=system).fingerprint != run(privacy=system).fingerprint


def test_tuning_before_a_test_has_no_noise():
    """The models that are tested after training are the same, with the same kept states."""
    found = run(FedPer, rounds=1, evaluate_at=["post_local"])
    assert math.isfinite(found.history[-1]["test/personal/acc"])
    assert "tuning before a test" in found.header["private"]


def test_methods_that_tell_class_counts_are_refused():
    with pytest.raises(ValueError, match=parts("FedROD ~ private client")):
        run(FedROD)
    with pytest.raises(ValueError, match=parts("FedSimSup ~ class counts")):
        fit(subject(FedSimSup).module(), uplink=[SAMPLE])


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=parts("delta=0.2 ~ below 0.111 ~ samples")):
        run(privacy=Privacy(1.0, 1.0, 0.2, level="sample"))
    with pytest.raises(ValueError, match=parts("clip ~ level: user")):
        Privacy(1.0, 1.0, 1e-3, level="sample", adaptive=True)
