"""The second device of the promises refuses what a GPU refuses, and nothing else."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

from pfl.testing.device import DEVICE, MixedDevicesError, SecondDevice

HOST = torch.arange(3.0)


@pytest.fixture
def there():
    with SecondDevice():
        yield HOST.to(DEVICE)


FINE = {
    "a number on the host": lambda there: there * torch.tensor(2.0),
    "what was moved there": lambda there: there + torch.ones(3).to(there),
    "what was made there": lambda there: there + torch.ones(3, device=there.device),
    "what was computed there": lambda there: (there + 1).cumsum(0) * there.detach(),
    "indices on the host": lambda there: there[torch.tensor([0, 2])] + there[:2],
    "sections on the host": lambda there: there + torch.tensor_split(there, torch.tensor([0]))[1],
    "a copy to the host": lambda there: HOST + there.cpu() + there.to("cpu"),
    "an array of a copy": lambda there: np.asarray(there.cpu()),
    "numbers in a list": lambda there: HOST + torch.tensor([there[0], there[1], 2.0]),
    "a copy from the host": lambda there: there.copy_(HOST) + there,
    "a gradient": lambda there: there + grad(lambda x: (x * there).sum())(there),
    "many at once": lambda there: there + vmap(lambda x: x * there[0])(there),
    "a deep copy": lambda there: copy.deepcopy(there) + there,
}
REFUSED = {
    "what was made on the host": lambda there: there + torch.ones(3),
    "several on the host": lambda there: torch.cat([there, HOST]),
    "indices of a tensor on the host": lambda there: HOST[there.long()],
    "a copy on the host": lambda there: there + there.cpu(),
    "an array": np.asarray,
    "a generator on the host": lambda there: there.normal_(generator=torch.Generator()),
}


@pytest.mark.parametrize("case", FINE)
def test_what_a_gpu_takes_is_fine(case, there):
    FINE[case](there)


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_gpu_refuses_is_refused(case, there):
    with pytest.raises(MixedDevicesError):
        REFUSED[case](there)


def test_it_says_where_its_tensors_are(there):
    assert (there.device, (there + 1).device, HOST.device) == (DEVICE, DEVICE, torch.device("cpu"))
