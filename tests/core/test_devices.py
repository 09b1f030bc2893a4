"""What devices can do."""

from __future__ import annotations

import pytest
import torch

from pfl.core import devices
from pfl.core.seeds import scoped
from pfl.testing.device import DEVICE
from tests.helpers.device import NAME, simulated

CPU, CUDA, MPS = map(torch.device, ("cpu", "cuda", "mps"))


def test_the_host_a_gpu_and_one_without_float64():
    assert [devices.on_host(d) for d in (CPU, CUDA, MPS, DEVICE)] == [True, False, False, False]
    assert [devices.repeats(d) for d in (CPU, CUDA, MPS)] == [False, True, False]
    assert [devices.widest(d).itemsize for d in (CPU, CUDA, MPS)] == [8, 8, 4]


def test_a_device_tells_its_free_memory_and_the_host_has_none_of_its_own():
    assert devices.free(CPU) is None
    with simulated() as device:
        device.memory = 12345
        assert devices.free(torch.device(NAME, 0)) == 12345


def test_memory_that_torch_keeps_for_later_is_free(monkeypatch):
    with simulated():
        own = torch.get_device_module(NAME)
        monkeypatch.setattr(own, "mem_get_info", lambda device: (100, 300), raising=False)
        monkeypatch.setattr(own, "memory_reserved", lambda device: 70, raising=False)
        monkeypatch.setattr(own, "memory_allocated", lambda device: 50, raising=False)
        assert devices.free(torch.device(NAME, 0)) == 120


@pytest.mark.parametrize("count", [1, "auto"])
def test_a_registered_accelerator_is_used(count):
    with simulated():
        assert devices.fabric(NAME, count, "32-true").device == torch.device(NAME, 0)
    assert devices.fabric("cpu", 1, "32-true").device == CPU


def test_mixed_precision_on_the_cpu_has_no_cache_that_threads_share():
    """A recurrent layer's gradient was rounded as other threads happened to empty the cache."""
    with devices.fabric("cpu", 1, "bf16-mixed").autocast():
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_cache_enabled()
    assert torch.is_autocast_cache_enabled()


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_is_that_of_the_device(precision):
    """Also the loss scale; Lightning alone would take CUDA's, which does nothing elsewhere."""
    with simulated():
        made = devices.fabric(NAME, 1, precision)
        assert made.strategy.precision.device == NAME
        with made.autocast():
            found = torch.nn.functional.linear(*torch.ones(2, 3, 3, device=NAME))
        assert found.dtype.itemsize == 2
        if precision == "16-mixed":
            assert made.strategy.precision.scaler.is_enabled()


def test_a_devices_own_stream_is_seeded_and_restored():
    with simulated():
        place = torch.device(NAME, 0)

        def draw():
            return torch.rand(4, device=place).tolist()

        first = draw()
        inside = []
        for _ in range(2):
            with scoped(7, place):
                inside.append(draw())
        second = draw()
    with simulated():
        assert [draw(), draw()] == [first, second]
    assert inside[0] == inside[1] != first
