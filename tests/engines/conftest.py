"""What several engines' tests run under."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def one_op_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
