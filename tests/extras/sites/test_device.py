"""Sites of this process on the simulated device."""

from __future__ import annotations

from concurrent.futures import Executor, Future

from lightning_modules.fedper import FedPer
from pfl.extras.codecs.coding import Codecs
from pfl.extras.sites import engine
from tests.engines.agreement import agree
from tests.engines.test_device import run
from tests.helpers.device import NAME, simulated
from tests.helpers.federation import HEAVY
from tests.helpers.toy import blobs, mlp


class Caller(Executor):
    """Works in the caller's thread, as the simulated device is in that alone."""

    def __init__(self, *_):
        pass

    def submit(self, call, *args):
        done = Future()
        done.set_result(call(*args))
        return done


def test_sites_of_this_process_train_on_the_device(monkeypatch):
    """Beside the data, which are there; weights are rounded on their way."""
    monkeypatch.setattr(engine, "ThreadPoolExecutor", Caller)

    def go(accelerator):
        module = FedPer(mlp(), optimizer=HEAVY, persist_optimizer=True)
        uplink = [Codecs("qsgd", "cast")]
        return run(module, "loopback", accelerator, data=blobs(), uplink=uplink)

    expected = go("cpu")
    with simulated():
        found = go(NAME)
        assert {v.device.type for v in found.server.shared.values()} == {NAME}
        agree(found, expected)
