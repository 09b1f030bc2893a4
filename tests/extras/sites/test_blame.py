"""An aggregation that fails is tried without one client at a time, and who is to blame is named."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import pytest
import torch

from lightning_modules.fedper import FedPer
from pfl.core.failure import NonFiniteError, failure_line
from pfl.core.folds import Uploads
from pfl.core.server import Server
from pfl.core.state import weighted_mean
from pfl.core.types import Upload
from pfl.extras.sites.loopback import LoopbackEngine
from pfl.federation.run import Callback
from pfl.training.uplink import UplinkStep
from tests.engines.agreement import fit, without
from tests.extras.sites.sites import everyone
from tests.helpers.federation import SGD
from tests.helpers.toy import blobs, mlp

SIZES = (4, 9, 3, 6)


@dataclass(eq=False)
class Picky(Server):
    """A server that cannot use uploads of clients with some numbers of samples."""

    hated: tuple[int, ...] = ()
    makes: str = "error"

    def begin(self, state, senders):
        return {"uploads": Uploads()}

    def finish(self, state, folded):
        sent = [upload.shared for upload in folded["uploads"]]
        after = replace(state, shared=weighted_mean(sent, folded.shares))
        if not any(upload.samples in self.hated for upload in folded.uploads):
            return after
        if self.makes == "error":
            raise LookupError("no such class")
        return replace(after, shared={n: v * torch.inf for n, v in after.shared.items()})


def method(hated, makes="error"):
    class Method(FedPer):
        def server(self):
            return Picky(hated=hated, makes=makes)

    return Method(mlp(), optimizer=SGD)


class Rounds(Callback):
    def __init__(self):
        self.failed = []

    def on_round_end(self, run, result):
        self.failed.append(dict(result.failed))


def ran(hated, makes="error", **options):
    rounds = Rounds()
    options = {"sampler": everyone, "callbacks": [rounds], **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fit(method(hated, makes), "sequential", 2, blobs(SIZES), **options)
    return run, rounds.failed


@pytest.mark.parametrize("makes", ["error", "infinity"])
@pytest.mark.parametrize(("hated", "clients"), [((9,), [1]), ((9, 6), [1, 3])])
def test_a_round_goes_on_without_the_clients_to_blame(hated, clients, makes):
    """As if they had been left out: one alone, or all whose upload fails by itself."""
    found, failed = ran(hated, makes, on_nonfinite="skip")
    silent = {(client, number) for client in clients for number in (1, 2)}
    right, _ = ran((), sampler=without(silent))
    assert [[*one] for one in failed] == [clients, clients]
    reason = "no such class" if makes == "error" else "is not finite"
    assert all(reason in why for one in failed for why in one.values())
    assert found.fingerprint == right.fingerprint
    assert [row["train/discarded"] for row in found.history] == [len(clients)] * 2
    assert found.failures["discarded"] == dict.fromkeys(clients, 2)


@pytest.mark.parametrize(("makes", "kind"), [("error", LookupError), ("inf", NonFiniteError)])
def test_a_run_that_ends_names_the_client(makes, kind):
    with pytest.raises(kind) as caught:
        ran((9,), makes, on_nonfinite="stop")
    line = failure_line(caught.value)
    if makes == "error":
        assert "without what client 1 sent it succeeds" in line
    assert "round 1, the server's aggregation" in line


def test_a_server_that_fails_for_everybody_fails_with_its_own_error():
    with pytest.raises(LookupError, match="no such class") as caught:
        ran(SIZES, on_nonfinite="skip")
    assert "succeeds" not in failure_line(caught.value)


@pytest.mark.parametrize("makes", ["error", "infinity"])
def test_an_engine_that_goes_on_without_clients_does_so_here(makes):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rounds = Rounds()
        fit(
            method((9,), makes),
            LoopbackEngine(on_error="absent"),
            1,
            blobs(SIZES),
            sampler=everyone,
            callbacks=[rounds],
        )
    assert [[*one] for one in rounds.failed] == [[1]]
    wanted = "round 1 continues without client 1: the server cannot aggregate"
    assert any(wanted in str(one.message) for one in told)


@dataclass(frozen=True)
class Deaf(UplinkStep):
    """Does not hear client 1."""

    def received(self, job, result):
        return replace(result, upload=None) if job.info.client == 1 else result


@dataclass(frozen=True)
class Mute(UplinkStep):
    """Client 1 sends nothing."""

    def sent(self, job, result):
        return replace(result, upload=None) if job.info.client == 1 else result


def test_bytes_of_an_upload_that_the_server_withholds_were_sent():
    whole, deaf, mute = (
        [row["comm/bytes_up"] for row in ran((), uplink=steps)[0].history]
        for steps in ([], [Deaf()], [Mute()])
    )
    assert deaf == whole
    assert mute == [size * 3 / 4 for size in whole]


def test_what_is_to_be_sent_beside_the_weights_must_be_finite():
    """Unless the method says that its server knows what to do."""

    class Beside(FedPer):
        extra = ("mark",)

        def __init__(self, net, **options):
            super().__init__(net, **options)
            self.mark = torch.nn.Buffer(torch.tensor(torch.nan))

        def upload(self, info):
            sent = super().upload(info)
            mark = torch.tensor(torch.nan if info.client == 1 else 1.0)
            return Upload(sent.client, sent.samples, sent.shared, {"mark": mark})

    class Knows(Beside):
        extra_nonfinite = ("mark",)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [
            fit(
                kind(mlp(), optimizer=SGD),
                "sequential",
                1,
                blobs(SIZES),
                sampler=everyone,
                on_nonfinite="skip",
            )
            for kind in (Beside, Knows)
        ]
    assert [run.failures.get("discarded") for run in runs] == [{1: 1}, None]
