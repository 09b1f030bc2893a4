"""FedPer: the invariants in docs/methods."""

from lightning_modules.fedper import FedPer
from tests.helpers import facts
from tests.helpers.federation import (
    HEAVY,
    centralised,
    close,
    fit,
)
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedPer: facts.Facts(
        travels=("net.backbone.",),
        stays=("net.head.",),
        floats=facts.BODY,
        variants=[{"persist_optimizer": True}],
        needs_parts=True,
    ),
}


def test_one_client_is_centralised_sgd():
    """Invariant 3."""
    data = blobs(sizes=(9,), batch_size=99)
    run = fit(FedPer(mlp(), optimizer=HEAVY, epochs=4), data, 1)
    assert close({**run.server.shared, **run.kept[0]}, centralised(data, 4))
