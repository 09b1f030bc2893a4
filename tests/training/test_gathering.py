"""Uploads of servers that only average are summed as they arrive, with the same bits."""

import weakref

import pytest

from lightning_modules import FedAS, FedAvg, FedPer
from pfl.core.server import Server
from pfl.engines.sequential import SequentialEngine
from pfl.federation.run import Callback
from pfl.training.uplink import UplinkStep
from tests.engines.agreement import fit, same
from tests.helpers.federation import SGD
from tests.helpers.toy import blobs, mlp, normed


class Watches(Callback):
    """Counts the uploads of a round that are still in memory when the next one arrives."""

    def __init__(self):
        self.alive, self.seen = [], 0

    def on_result(self, run, result):
        self.alive = [one for one in self.alive if one() is not None]
        self.seen = max(self.seen, len(self.alive))
        self.alive += [weakref.ref(value) for value in result.upload.shared.values()]


class Keeps(Server):
    """Averages as its base does, by a merge of its own, which gets all uploads."""

    def merge(self, state, uploads):
        assert all(upload.shared for upload in uploads)
        return super().merge(state, uploads)


class Kept(FedAvg):
    def server(self):
        return Keeps(weighting=self.weighting)


class Passes(UplinkStep):
    """Could withhold an upload, and does not."""

    def received(self, job, result):
        return result


class Sends(Passes):
    """Declares that it withholds none."""

    withholds = False


@pytest.mark.parametrize("options", [{}, {"weighting": "uniform"}, {"buffers": "average"}])
def test_a_sum_has_the_bits_of_the_mean_of_all(options):
    """Also beside a client with one sample, which takes no step under batch norm."""
    with pytest.warns(UserWarning, match="takes no step"):
        runs = [
            fit(kind(normed(), optimizer=SGD, **options), SequentialEngine(), data=blobs((4, 9, 1)))
            for kind in (FedAvg, Kept)
        ]
    assert same(*runs)


@pytest.mark.parametrize(
    ("method", "loop", "most"),
    [
        (FedAvg, {}, 1),
        (FedPer, {}, 1),
        # The server weighs all uploads together; a client may be left out.
        (FedAS, {}, 4),
        (FedAvg, {"on_nonfinite": "skip"}, 4),
        # A step that may withhold uploads, and one that declares that it does not.
        (FedAvg, {"uplink": [Passes()]}, 4),
        (FedAvg, {"uplink": [Sends()]}, 1),
    ],
)
def test_one_upload_at_a_time_is_in_memory(method, loop, most):
    watch = Watches()
    data = blobs((4, 9, 2, 17, 6))
    fit(method(mlp(), optimizer=SGD), SequentialEngine(), 1, data, callbacks=[watch], **loop)
    tensors = len(method(mlp()).shared_names())
    assert watch.seen <= most * tensors
    assert (watch.seen > tensors) == (most > 1)
