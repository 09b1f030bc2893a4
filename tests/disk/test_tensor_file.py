"""Files of tensors: every flipped bit is found, or changes nothing."""

from __future__ import annotations

import pytest
import torch

from pfl.disk import tensor_file

# Of integers, which are printed exactly.
CONTENT = {
    "round": 3,
    "name": "a name",
    "kept": {4: {"weight": torch.arange(7)}, 9: {"weight": torch.arange(7, 14)}},
    "nothing": None,
}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_found_or_changes_nothing(step, mapped, tmp_path):
    """In payloads, headers, padding and the directory of the archive; 7 has no factor with 8."""
    file = tmp_path / "file.pt"
    tensor_file.write(file, CONTENT)
    whole, found = file.read_bytes(), 0
    for bit in range(0, 8 * len(whole), 8 * step + 1):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            content = tensor_file.read(file, mapped)
        except tensor_file.DamagedError:
            found += 1
        else:
            assert repr(content) == repr(CONTENT), f"bit {bit}"
    # More than half of such a small file is padding.
    assert found > len(whole) / step / 3


@pytest.mark.parametrize("mapped", [False, True])
def test_each_of_many_tensors_is_checked_whichever_thread_has_it(mapped, tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "_SHARE", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    file = tmp_path / "file.pt"
    tensors = [torch.full((100 + number,), number) for number in range(1, 10)]
    tensor_file.write(file, tensors)
    assert repr(tensor_file.read(file, mapped)) == repr(tensors)
    whole = file.read_bytes()
    for tensor in tensors:
        at = whole.index(tensor.numpy().tobytes()[:100])
        file.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        with pytest.raises(tensor_file.DamagedError, match=r"the checksum of .*/data/"):
            tensor_file.read(file, mapped)


def test_tensors_of_all_kinds_come_back(tmp_path):
    """Views of one storage share it again; some are empty, scalar, of half or of one byte."""
    base = torch.arange(6.0)
    content = [base.view(2, 3).T, base[1:4], torch.zeros(0, 3), torch.tensor(2), base.half()]
    content += [base > 2, torch.tensor(float("nan")), torch.zeros(0, dtype=torch.int64)]
    file = tmp_path / "file.pt"
    tensor_file.write(file, content)
    found = tensor_file.read(file)
    assert repr(found) == repr(content)
    assert [(t.dtype, t.stride()) for t in found] == [(t.dtype, t.stride()) for t in content]
    found[1][0] = 9
    assert found[0].tolist() == [[0, 3], [9, 4], [2, 5]]


def test_tensors_have_memory_of_their_own_unless_they_are_mapped(tmp_path):
    """A change of the file reaches mapped ones only, and one tensor does not keep the others."""
    file = tmp_path / "file.pt"
    tensor_file.write(file, {"a": torch.ones(9), "b": torch.ones(5)})
    own, mapped = (tensor_file.read(file, mapped)["a"] for mapped in (False, True))
    assert own.untyped_storage().nbytes() == own.nbytes
    file.write_bytes(file.read_bytes().replace(torch.ones(9).numpy().tobytes(), bytes(36)))
    assert (own.sum(), mapped.sum()) == (9, 0)


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path, monkeypatch):
    file, load = tmp_path / "file.pt", torch.load

    def late(*arguments, **options):
        tensor_file.write(file, {"round": 2, "w": torch.zeros(3)})
        return load(*arguments, **options)

    tensor_file.write(file, {"round": 1, "w": torch.ones(3)})
    monkeypatch.setattr(torch, "load", late)
    assert repr(tensor_file.read(file)) == repr({"round": 1, "w": torch.ones(3)})
