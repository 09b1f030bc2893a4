"""What ``conftest.py`` does for every test."""

import pytest
import torch


@pytest.mark.parametrize("turn", [1, 2])
def test_draws_from_the_default_stream_are_those_of_seed_0(turn):
    assert torch.rand(()).item() == pytest.approx(0.4962566)
