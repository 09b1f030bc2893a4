"""A step of the uplink may withhold uploads: the round goes on, and records name the step."""

import csv
from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch

from lightning_modules import SCAFFOLD, FedAS, FedAvg
from pfl.core.types import Cohort
from pfl.federation.sampling import UniformSampler
from pfl.testing.federation import fit, outcome
from pfl.testing.toy import mlp
from pfl.training.uplink import UplinkStep
from tests.helpers.extras import needs
from tests.helpers.messages import parts

ALL = UniformSampler()


@dataclass(frozen=True)
class Withholds(UplinkStep):
    """Some clients, or the server for them, withhold what they would send."""

    clients: tuple[int, ...]
    place: Literal["sent", "received"] = "sent"

    def sent(self, job, result):
        return self._without(job, result, "sent")

    def received(self, job, result):
        return self._without(job, result, "received")

    def _without(self, job, result, place):
        leaves_out = place == self.place and job.info.client in self.clients
        return replace(result, upload=None) if leaves_out else result


def run(method=FedAvg, *steps, **options):
    given = {"sampler": ALL, "rounds": 2, "engine": "sequential", **options}
    return fit(method(mlp()), uplink=[*steps] or None, **given)


def not_uploading(client):
    """Return a sampler of all clients, of which one trains and does not upload."""

    def sampler(eligible, rng, number):
        return Cohort(tuple(eligible), tuple(one for one in eligible if one != client))

    return sampler


@pytest.mark.parametrize("place", ["sent", "received"])
@pytest.mark.parametrize("engine", ["sequential", "threads", "processes"])
def test_a_round_without_an_upload_is_one_in_which_the_client_does_not_upload(place, engine):
    """To rounding: sums of which one is missing are divided by the other weights at the end."""
    for method in (FedAvg, FedAS, SCAFFOLD):
        found = run(method, Withholds((1,), place), engine=engine, precision="64-true")
        other = run(method, sampler=not_uploading(1), precision="64-true")
        for name, value in other.server.shared.items():
            torch.testing.assert_close(found.server.shared[name], value, rtol=0, atol=1e-14)


def test_stacked_clients_may_withhold_as_well():
    one, other = (
        run(FedAvg, Withholds((1,)), engine=engine, precision="64-true")
        for engine in ("sequential", "vectorised")
    )
    for name, value in one.server.shared.items():
        torch.testing.assert_close(other.server.shared[name], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("place", ["sent", "received"])
@pytest.mark.parametrize("engine", ["sequential", "processes"])
def test_the_records_name_the_client_and_the_step(tmp_path, place, engine):
    """Also of a round without a test."""
    options = {"default_root_dir": tmp_path, "evaluate_every": 2, "engine": engine}
    found = run(FedAvg, Withholds((1,), place), **options)
    with (found.folder / "clients.csv").open() as file:
        rows = [(row["round"], row["client"], row["withheld"]) for row in csv.DictReader(file)]
    tested = [("2", "0", ""), ("2", "1", "Withholds"), ("2", "2", "")]
    assert rows == [("1", "1", "Withholds"), *tested]
    assert found.latest.withheld == {1: "Withholds"}


def test_the_first_step_that_withholds_is_named():
    class Other(Withholds):
        pass

    found = run(FedAvg, Withholds((2,)), Other((1, 2)), rounds=1)
    assert found.latest.withheld == {1: "Other", 2: "Withholds"}


@pytest.mark.parametrize("method", [FedAvg, FedAS])
def test_a_round_of_which_no_upload_is_left_counts_and_changes_no_entry(method):
    told = parts("round 1: no upload is left, as Withholds of loop.uplink ~ clients 0, 1, 2")
    with pytest.warns(UserWarning, match=told):
        found = run(method, Withholds((0, 1, 2)), rounds=1)
    assert found.round == 1
    for name, value in found.server.shared.items():
        assert torch.equal(value, found.template[name])


def test_a_resumed_run_withholds_as_before(tmp_path):
    whole = run(FedAvg, Withholds((1,)), default_root_dir=tmp_path / "a", rounds=2)
    some = {"default_root_dir": tmp_path / "b", "checkpoint_every": 1}
    part = run(FedAvg, Withholds((1,)), **some, rounds=1)
    resumed = run(FedAvg, Withholds((1,)), **some, rounds=2, ckpt_path=part.folder)
    assert resumed.fingerprint == whole.fingerprint
    assert outcome(resumed)["history"] == outcome(whole)["history"]


@needs("privacy")
def test_who_is_withheld_counts_as_zero_in_a_private_mean():
    """The denominator stays q N = 3, so that the means of one upload sum to that of all."""
    from pfl.extras.privacy.privacy import Privacy

    def change(*steps):
        private = Privacy(clip=1e9, sigma=0.0, delta=0.1)
        found = run(FedAvg, *steps, private, rounds=1, precision="64-true")
        return {n: v - found.template[n] for n, v in found.server.shared.items()}

    whole, alone = change(), [change(Withholds(c)) for c in ((1, 2), (0, 2), (0, 1))]
    for name, value in whole.items():
        torch.testing.assert_close(sum(one[name] for one in alone), value, rtol=0, atol=1e-12)


def test_a_step_that_forgets_to_return_is_named():
    @dataclass(frozen=True)
    class Forgets(UplinkStep):
        def received(self, job, result):
            pass

    with pytest.raises(TypeError, match=r"Forgets of loop.uplink returns NoneType in place"):
        run(FedAvg, Forgets())
