"""What stands for a state on another machine."""

from __future__ import annotations

import pytest
import torch

from pfl.core.elsewhere import Reference, as_state, digest_of, reference_of
from pfl.core.state import digest
from tests.helpers.messages import parts

STATE = {"net.head.weight": torch.ones(2, 3)}


def test_a_reference_comes_back_and_has_the_hash_of_its_state():
    stands = as_state(Reference(digest(STATE), 7))
    assert reference_of(stands) == Reference(digest(STATE), 7)
    assert digest_of(stands) == digest_of(STATE) == digest(STATE)
    assert reference_of(STATE) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"elsewhere:hash,round": torch.zeros(39, dtype=torch.uint8)},
        {"elsewhere:hash,round": torch.zeros(40)},
        {"net.head.weight": torch.ones(1)},
    ],
)
def test_a_damaged_reference_is_no_state(damage):
    with pytest.raises(ValueError, match=parts("hash ~ round ~ {'elsewhere")):
        reference_of({**as_state(Reference("ab" * 32, 1)), **damage})
