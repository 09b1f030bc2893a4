"""The canonical byte form: every bit comes back, and whatever is no message is refused by name."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
import torch

from pfl.disk.container import ContainerError, pack, read, unpack, write
from tests.helpers.messages import parts

ZEROS = b"0" * 64
TENSORS = {
    "b": torch.tensor([[1.5, -0.0], [float("nan"), float("inf")]]),
    "a": torch.randn(3, 4, dtype=torch.float64).t(),
    "half": torch.tensor([1.0, -2.5]).bfloat16(),
    "float16": torch.tensor([65504.0]).half(),
    "count": torch.tensor(-3),
    "flags": torch.tensor([True, False, True]),
    "small": torch.tensor([-128, 127], dtype=torch.int8),
    "none": torch.empty(0, 7),
    "turn": torch.tensor([1j]),
}


def made(header, tensors=b""):
    """Return a message with a right checksum, whatever it says."""
    if not isinstance(header, bytes):
        header = json.dumps(header, separators=(",", ":")).encode()
    text = header + b" " * (-len(header) % 8)
    whole = struct.pack("<Q", len(text)) + text + tensors
    return whole.replace(ZEROS, hashlib.sha256(whole).hexdigest().encode())


BYTE = b'"w":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}'
TWICE = b'{"__metadata__":{"sha256":"%s","content":"null"},%s,%s}' % (ZEROS, BYTE, BYTE)


def header(tensors, content="null"):
    return {"__metadata__": {"sha256": ZEROS.decode(), "content": content}, **tensors}


def one(kind="F32", shape=(2,), tensors=bytes(8), end=8):
    described = {"dtype": kind, "shape": shape, "data_offsets": [0, end]}
    return made(header({"w": described}), tensors)


def test_every_type_comes_back_bit_for_bit_in_its_order():
    content, found = unpack(pack({"round": 3, "of": ["ä", 0.1, None, True]}, TENSORS))
    assert content == {"round": 3, "of": ["ä", 0.1, None, True]}
    assert list(found) == list(TENSORS)
    for name, value in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        bits = [v.contiguous().reshape(-1).view(torch.uint8) for v in (value, found[name])]
        assert torch.equal(*bits)


def test_the_bytes_of_a_message_worked_by_hand():
    """1.0 is 0x3F80 in bfloat16; -2 is 0xFFFFFFFE in 32 bits; low bytes and large types first."""
    tensors = {"x": torch.tensor([1.0]).bfloat16(), "n": torch.tensor(-2, dtype=torch.int32)}
    text = b'{"__metadata__":{"sha256":"%s","content":"{\\"a\\":1}"},' % ZEROS
    text += b'"x":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]},'
    text += b'"n":{"dtype":"I32","shape":[],"data_offsets":[0,4]}}'
    text += b" " * (-len(text) % 8)
    whole = bytes([len(text), 0, 0, 0, 0, 0, 0, 0]) + text + b"\xfe\xff\xff\xff\x80\x3f"
    digits = hashlib.sha256(whole).hexdigest().encode()
    assert pack({"a": 1}, tensors) == whole.replace(ZEROS, digits)


def test_every_reader_of_safetensors_opens_it(tmp_path):
    """Which keeps no order."""
    library = pytest.importorskip("safetensors.torch")
    tensors = {name: value.contiguous() for name, value in TENSORS.items()}
    write(tmp_path / "file", {"a": 1}, tensors)
    assert (tmp_path / "file").read_bytes() == pack([{"a": 1}, {}], tensors)
    for found in (library.load(pack({"a": 1}, TENSORS)), library.load_file(tmp_path / "file")):
        assert found.keys() == TENSORS.keys()
        for name, value in TENSORS.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True)


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
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with pytest.raises(ContainerError):
                unpack(bytes(changed))
        with pytest.raises(ContainerError):
            unpack(data[:place])
    with pytest.raises(ContainerError, match="checksum"):
        unpack(data + b"\0")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "0 bytes are not a message ~ too few"),
        (b"PK\x03\x04" * 99, "not a message ~ another start"),
        (made(b'{"__metadata__":{"sha256":"%s"' % ZEROS), "header ~ wrong ~ JSON"),
        (made(b'{"__metadata__":{"sha256":"%s","content":"\xff"}}' % ZEROS), "header ~ wrong"),
        (made(header({}, "NaN")), "header ~ not JSON compliant"),
        (made(header({}, "[" * 99 + "]" * 99)), "header ~ 50 levels"),
        (made(header({}, "[1, 2]")), "canonical"),
        (made(header({}, '{"a":1,"a":1}')), "canonical"),
        (made({**header({}), "w": 1}), "header ~ wrong"),
        (made(header({"w": {"dtype": "F32"}})), "header ~ 'shape'"),
        (one(kind="object"), "header ~ 'object'"),
        (one(kind="F8_E4M3"), "header ~ 'F8_E4M3'"),
        (one(shape=(-2, -1)), "'w' ~ shape"),
        (one(shape=(2.0,)), "'w' ~ shape"),
        (one(shape=(True, 2)), "'w' ~ shape"),
        (one(shape=(1,) * 17), "'w' ~ shape"),
        (one(shape=(2**32, 2**32), tensors=b""), "'w' ~ shape ~ 4294967296"),
        (one(shape=(0, 2**32, 2**32), tensors=b"", end=0), "'w' ~ shape ~ 4294967296"),
        (one(shape=(3,), end=12), "canonical"),
        (one(shape=(2**32,), end=2**34), "canonical"),
        (one(end=4), "canonical"),
        (one(kind="BOOL", shape=(8,), tensors=b"\x01" * 7 + b"\x02"), "truth value ~ 0 ~ 1"),
        (made(TWICE, b"a"), "canonical"),
    ],
)
def test_what_is_no_message_is_refused_by_name(data, told):
    with pytest.raises(ContainerError, match=parts(told)):
        unpack(data)


def test_a_header_too_deep_for_the_reader_is_refused_whichever_limit_it_meets():
    with pytest.raises(ContainerError, match=r"50 levels|JSON"):
        unpack(made(header({}, "[" * 100_000)))


def test_a_message_that_is_too_large_is_refused_before_it_is_read():
    data = pack(None, {"w": torch.zeros(100)})
    assert len(unpack(data, most=len(data))[1]) == 1
    with pytest.raises(ContainerError, match=parts("100 bytes ~ 576")):
        unpack(data, most=100)


def test_what_has_no_byte_form_is_told_to_the_sender():
    with pytest.raises(ValueError, match=parts("w: ~ complex32")):
        pack(None, {"w": torch.zeros(1, dtype=torch.complex32)})
    with pytest.raises(ValueError, match=parts("__metadata__: ~ cannot have such a tensor")):
        pack(None, {"__metadata__": torch.zeros(1)})
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack(float("nan"), {})


# Files.


def test_each_changed_bit_of_a_file_is_refused_with_its_name(tmp_path):
    """7 has no factor in common with 8."""
    file = tmp_path / "file"
    write(file, {"round": 1}, {"w": torch.arange(3.0)})
    whole = file.read_bytes()
    assert read(file)[1]["w"].tolist() == [0, 1, 2]
    for bit in range(0, 8 * len(whole), 7):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(ContainerError, match=f"{file} is damaged"):
            read(file)
    file.write_bytes(b"")
    with pytest.raises(ContainerError, match=f"{file} is damaged"):
        read(file)


def test_a_file_keeps_the_order_of_values_in_memory(tmp_path):
    images = torch.randn(2, 3, 4, 5)
    tensors = {
        "plain": images,
        "channels last": images.to(memory_format=torch.channels_last),
        "turned": images.permute(3, 0, 2, 1),
        "column": torch.randn(1, 3).t(),
        "cut": images[:, 1:],
    }
    write(tmp_path / "file", None, tensors)
    _, found = read(tmp_path / "file")
    assert [*found] == [*tensors]
    for name, value in tensors.items():
        assert torch.equal(found[name], value)
        assert found[name].stride() == value.clone().stride()


def test_tensors_stay_in_the_file_until_they_are_used(tmp_path):
    """A change of the file reaches them; one that is checked again is refused."""
    file = tmp_path / "file"
    write(file, None, {"a": torch.ones(9), "b": torch.ones(5)})
    _, found = read(file)
    with file.open("r+b") as stream:
        stream.seek(file.read_bytes().index(torch.ones(9).numpy().tobytes()))
        stream.write(bytes(36))
    assert (found["a"].sum(), found["b"].sum()) == (0, 5)
    # Whoever writes a file for itself may leave the checksum out.
    assert read(file, checked=False)[1]["a"].sum() == 0
    with pytest.raises(ContainerError, match="checksum"):
        read(file)


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path, monkeypatch):
    file, load = tmp_path / "file", torch.from_file

    def late(*arguments, **options):
        write(file, 2, {"w": torch.zeros(3)})
        return load(*arguments, **options)

    write(file, 1, {"w": torch.ones(3)})
    monkeypatch.setattr(torch, "from_file", late)
    assert repr(read(file)) == repr((1, {"w": torch.ones(3)}))


def test_a_file_of_torch_save_is_refused_in_a_line(tmp_path):
    torch.save({"format": "pfl-checkpoint-1", "round": 3}, tmp_path / "last.ckpt")
    with pytest.raises(ContainerError, match=parts("last.ckpt ~ that torch.save wrote")) as told:
        read(tmp_path / "last.ckpt")
    assert "\n" not in str(told.value)


def layouts(tensors, said, content=None):
    """Return a file with a right checksum that says something of the order of axes."""
    packed = json.dumps([content, said], separators=(",", ":"), sort_keys=True)
    start, described, octets = 0, {}, b""
    for name, value in tensors.items():
        octets += value.numpy().tobytes()
        places = [start, start := len(octets)]
        described[name] = {"dtype": "F32", "shape": [*value.shape], "data_offsets": places}
    return made(header(described, packed), octets)


LAID = {"w": torch.ones(2, 3), "neighbour": torch.full((4,), 7.0)}


@pytest.mark.parametrize(
    "said",
    [
        *({"w": [[2**20, 2**20], [0, 0]]}, {"w": [[2, 3], [0, 0]]}, {"w": [[4, 3], [3, 1]]}),
        *({"w": [0, 1]}, {"w": [1, 1]}, {"w": [-1, 0]}, {"w": [1]}, {"w": [1, 0, 2]}, {"w": []}),
        *({"w": [1.0, 0.0]}, {"w": [True, False]}, {"w": "10"}, {"w": None}, {"w": 3}),
        *({"other": [1, 0]}, {"neighbour": [0]}, [], ["w"], None, "w", 7),
    ],
)
def test_an_order_of_axes_that_no_file_is_written_with_is_refused(said, tmp_path):
    """Neither numbers that a file does not have, nor those of another tensor."""
    file = tmp_path / "file"
    file.write_bytes(layouts(LAID, {"w": [1, 0]}))
    assert read(file)[1]["w"].shape == (3, 2)
    file.write_bytes(layouts(LAID, said))
    with pytest.raises(ContainerError, match=parts("file ~ layout")):
        read(file)


@pytest.mark.parametrize("content", ["null", "[1]", "[1,{},2]", "{}"])
def test_a_file_without_its_layouts_is_refused(content, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(made(header({}, content)))
    with pytest.raises(ContainerError):
        read(file)
