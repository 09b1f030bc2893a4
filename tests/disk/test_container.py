"""The canonical byte form: every bit comes back, and whatever is no message is refused by name."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
import torch

from pfl.disk.container import ContainerError, pack, unpack
from tests.helpers.messages import parts

TENSORS = {
    "b": torch.tensor([[1.5, -0.0], [float("nan"), float("inf")]]),
    "a": torch.randn(3, 4, dtype=torch.float64).t(),
    "half": torch.tensor([1.0, -2.5]).bfloat16(),
    "float16": torch.tensor([65504.0]).half(),
    "count": torch.tensor(-3),
    "flags": torch.tensor([True, False, True]),
    "small": torch.tensor([-128, 127], dtype=torch.int8),
    "none": torch.empty(0, 7),
}


def made(header, tensors=b"", magic=b"PFLMSG", version=1):
    """Return a message with a right checksum, whatever it says."""
    text = (
        header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    )
    whole = struct.pack("<6sHI", magic, version, len(text)) + text + tensors
    return whole + hashlib.sha256(whole).digest()


def one(kind="float32", shape=(2,), name="w", tensors=bytes(8)):
    return made({"content": None, "tensors": [[name, kind, shape]]}, tensors)


def test_every_type_comes_back_bit_for_bit_in_its_order():
    content, found = unpack(pack({"round": 3, "of": ["ä", 0.1, None, True]}, TENSORS))
    assert content == {"round": 3, "of": ["ä", 0.1, None, True]}
    assert list(found) == list(TENSORS)
    for name, value in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        bits = [v.contiguous().reshape(-1).view(torch.uint8) for v in (value, found[name])]
        assert torch.equal(*bits)


def test_the_bytes_of_a_message_worked_by_hand():
    """1.0 is 0x3F80 in bfloat16; -2 is 0xFFFE in 16 bits; low bytes come first."""
    tensors = {"x": torch.tensor([1.0]).bfloat16(), "n": torch.tensor(-2, dtype=torch.int16)}
    header = b'{"content":{"a":1},"tensors":[["x","bfloat16",[1]],["n","int16",[]]]}'
    whole = b"PFLMSG\x01\x00" + bytes([len(header), 0, 0, 0]) + header + b"\x80\x3f\xfe\xff"
    assert pack({"a": 1}, tensors) == whole + hashlib.sha256(whole).digest()


def test_equal_content_has_equal_bytes_and_tensors_are_copies():
    assert pack({"a": 1, "b": 2}, {}) == pack({"b": 2, "a": 1}, {})
    # Strides are not content.
    assert pack(None, {"w": TENSORS["a"]}) == pack(None, {"w": TENSORS["a"].contiguous()})
    data = pack(None, {"v": torch.ones(1), "w": torch.ones(2)})
    _, found = unpack(data)
    found["w"].add_(1)
    assert torch.equal(unpack(data)[1]["w"], torch.ones(2))


def test_each_changed_bit_and_each_shortened_message_is_refused():
    data = pack({"round": 1}, {"w": torch.arange(3.0)})
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(ContainerError):
            unpack(bytes(changed))
        with pytest.raises(ContainerError):
            unpack(data[:place])
    with pytest.raises(ContainerError, match="checksum"):
        unpack(data + b"\0")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "0 bytes ~ few"),
        (made({}, magic=b"PK\x03\x04ab"), "begins ~ b'PFLMSG' ~ b'PK"),
        (made({}, version=2), "version 1 ~ 2"),
        (made(b"[1"), "header ~ JSON"),
        (made(b"\xff"), "header ~ JSON"),
        (made(b'{"content":NaN,"tensors":[]}'), "NaN"),
        (made(b"[" * 99 + b"]" * 99), "header ~ 50 levels"),
        (made({"content": 1}), "content ~ tensors"),
        (made(b'{"content": 1,"tensors":[]}'), "canonical"),
        (made(b'{"content":1,"content":1,"tensors":[]}'), "canonical"),
        (made({"content": None, "tensors": {}}), "list ~ 65,536"),
        (made({"content": None, "tensors": [["w", "float32"]]}), "name ~ type ~ shape"),
        (one(kind="object"), "'w' ~ 'object' ~ type"),
        (one(kind="complex64"), "'w' ~ 'complex64' ~ type"),
        (one(shape=(-2, -1)), "'w' ~ shape"),
        (one(shape=(2.0,)), "'w' ~ shape"),
        (one(shape=(True, 2)), "'w' ~ shape"),
        (one(shape=(1,) * 17), "'w' ~ shape"),
        (one(shape=(2**32, 2**32), tensors=b""), "'w' ~ 4294967296] ~ large"),
        (one(shape=(0, 2**32, 2**32), tensors=b""), "'w' ~ 4294967296] ~ large"),
        (one(shape=(3,)), "12 bytes ~ 8"),
        (one(shape=(2**32,)), "17,179,869,184 bytes ~ 8"),
        (one(kind="bool", shape=(8,), tensors=b"\x01" * 7 + b"\x02"), "truth value ~ 0 ~ 1"),
        (
            made({"content": 0, "tensors": [["w", "int8", [1]], ["w", "int8", [1]]]}, b"ab"),
            "tensor ~ twice",
        ),
    ],
)
def test_what_is_no_message_is_refused_by_name(data, told):
    with pytest.raises(ContainerError, match=parts(told)):
        unpack(data)


def test_a_header_too_deep_for_the_reader_is_refused_whichever_limit_it_meets():
    with pytest.raises(ContainerError, match=r"50 levels|no JSON"):
        unpack(made(b"[" * 100_000))


def test_a_message_that_is_too_large_is_refused_before_it_is_read():
    data = pack(None, {"w": torch.zeros(100)})
    assert len(unpack(data, most=len(data))[1]) == 1
    with pytest.raises(ContainerError, match=parts("100 bytes ~ 4")):
        unpack(data, most=100)


def test_what_has_no_byte_form_is_told_to_the_sender():
    with pytest.raises(ValueError, match=parts("w: ~ complex64")):
        pack(None, {"w": torch.zeros(1, dtype=torch.complex64)})
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack(float("nan"), {})
