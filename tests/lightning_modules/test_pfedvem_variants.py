"""pFedVEM's confidence from one of its two terms, by hand."""

import pytest
import torch

from lightning_modules.pfedvem import PFedVEM
from lightning_modules.pfedvem_variants import PFedVEMVariant
from pfl import FederatedLoop
from tests.helpers import facts
from tests.helpers.toy import blobs, mlp
from tests.lightning_modules.test_pfedvem import FACTS as OF_PFEDVEM
from tests.lightning_modules.vem import broadcast, broadcast_of, info, line, posterior

FACTS = {
    PFedVEMVariant: facts.Facts(
        **{
            **vars(OF_PFEDVEM[PFedVEM]),
            "variants": [{"tau_terms": "deviation"}],
            "stacks": [{"tau_terms": "deviation"}],
        }
    )
}


def test_one_term_by_hand():
    """Means differ from w by 1, 0, 0, 1; std 1/2. The first term gives 4 / 1, the second 4 / 2."""
    for terms, tau in (("uncertainty", 4.0), ("deviation", 2.0)):
        module = line(PFedVEMVariant, tau_terms=terms)
        posterior([[1.0], [2.0]], [0.0, 1.0], 0.5, module)
        module.receive(broadcast(module, [[0.0], [2.0]], [0.0, 0.0]), info())
        assert module.confidence.item() == pytest.approx(tau)
        assert module.describe()["confidence"].item() == pytest.approx(tau)


def test_deviation_alone_starts_from_one_and_stays_finite():
    """For two rounds: the third diverges, on some processors beyond single precision."""
    module = PFedVEMVariant(mlp(), tau_terms="deviation", init_std=0.5)
    module.receive(broadcast_of(module), info())
    assert float(module.confidence) == 1
    outcome = FederatedLoop(rounds=2, progress=False).fit(
        PFedVEMVariant(mlp(), tau_terms="deviation"), blobs()
    )
    assert all(kept["confidence"].isfinite() for kept in outcome.kept.values())
    assert torch.isfinite(outcome.server.shared["server_head_weight"]).all()
