"""The canonical byte form: every bit comes back, and whatever is no message is refused by name."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
import torch

from pfl.disk.container import ContainerError, pack, unpack

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
        (b"", "0 bytes are too few"),
        (made({}, magic=b"PK\x03\x04ab"), "expected a message that begins with b'PFLMSG'"),
        (made({}, version=2), "expected version 1 of the form of messages, got 2"),
        (made(b"[1"), "no JSON"),
        (made(b"\xff"), "no JSON"),
        (made(b'{"content":NaN,"tensors":[]}'), "NaN is no number"),
        (made(b"[" * 99 + b"]" * 99), "more than 50 levels"),
        (made(b"[" * 100_000), "more than 50 levels|no JSON"),
        (made({"content": 1}), "must hold content and tensors"),
        (made(b'{"content": 1,"tensors":[]}'), "not in the canonical form"),
        (made(b'{"content":1,"content":1,"tensors":[]}'), "not in the canonical form"),
        (made({"content": None, "tensors": {}}), "a list of up to 65,536 tensors"),
        (made({"content": None, "tensors": [["w", "float32"]]}), "a name, a type and a shape"),
        (one(kind="object"), "'object' is no type"),
        (one(kind="complex64"), "'complex64' is no type"),
        (one(shape=(-2, -1)), "is no shape"),
        (one(shape=(2.0,)), "is no shape"),
        (one(shape=(True, 2)), "is no shape"),
        (one(shape=(1,) * 17), "is no shape"),
        (one(shape=(2**32, 2**32), tensors=b""), "is too large"),
        (one(shape=(0, 2**32, 2**32), tensors=b""), "is too large"),
        (one(shape=(3,)), "tells of 12 bytes of tensors, but there are 8"),
        (one(shape=(2**32,)), "tells of 17,179,869,184 bytes"),
        (one(kind="bool", shape=(8,), tensors=b"\x01" * 7 + b"\x02"), "neither 0 nor 1"),
        (
            made({"content": 0, "tensors": [["w", "int8", [1]], ["w", "int8", [1]]]}, b"ab"),
            "names a tensor twice",
        ),
    ],
)
def test_what_is_no_message_is_refused_by_name(data, told):
    with pytest.raises(ContainerError, match=told):
        unpack(data)


def test_a_message_that_is_too_large_is_refused_before_it_is_read():
    data = pack(None, {"w": torch.zeros(100)})
    assert len(unpack(data, most=len(data))[1]) == 1
    with pytest.raises(ContainerError, match="may have 100 bytes, got 4"):
        unpack(data, most=100)


def test_what_has_no_byte_form_is_told_to_the_sender():
    with pytest.raises(ValueError, match=r"w: a message has no form for .*complex64"):
        pack(None, {"w": torch.zeros(1, dtype=torch.complex64)})
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack(float("nan"), {})
