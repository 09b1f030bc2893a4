"""Files of tensors: every flipped bit is found, or changes nothing."""

from __future__ import annotations

import pytest
import torch

from pfl.core import tensor_file

# Of integers, which are printed exactly.
CONTENT = {
    "round": 3,
    "name": "a name",
    "kept": {4: {"weight": torch.arange(7)}, 9: {"weight": torch.arange(7, 14)}},
    "nothing": None,
}


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_found_or_changes_nothing(step, tmp_path):
    """In payloads, headers, padding and the directory of the archive; 7 has no factor with 8."""
    file = tmp_path / "file.pt"
    tensor_file.write(file, CONTENT)
    whole, found = file.read_bytes(), 0
    for bit in range(0, 8 * len(whole), 8 * step + 1):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            content = tensor_file.read(file)
        except tensor_file.DamagedError:
            found += 1
        else:
            assert repr(content) == repr(CONTENT), f"bit {bit}"
    # More than half of such a small file is padding.
    assert found > len(whole) / step / 3


def test_each_of_many_tensors_is_checked_whichever_thread_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "_SHARE", 1000)
    file = tmp_path / "file.pt"
    tensors = [torch.full((100 + number,), number) for number in range(1, 10)]
    tensor_file.write(file, tensors)
    assert repr(tensor_file.read(file)) == repr(tensors)
    whole = file.read_bytes()
    for tensor in tensors:
        at = whole.index(tensor.numpy().tobytes()[:100])
        file.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        with pytest.raises(tensor_file.DamagedError, match=r"the checksum of .*/data/"):
            tensor_file.read(file)
