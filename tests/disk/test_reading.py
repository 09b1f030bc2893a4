"""Files of run folders: whatever they hold, reading ends with content or with one sentence."""

from __future__ import annotations

import gzip
import re

import pytest

from pfl.disk import reading
from pfl.disk.reading import FileError
from tests.helpers.messages import parts

BOMB = "\n".join(
    ["a: &a0 [x, x]", *(f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BOMB, "c.yaml:1: ~ 100,000 values"),
        ("a: &a [*a]", "c.yaml:1: ~ 50 levels"),
        ("a: *b", "c.yaml:1: ~ not YAML ~ undefined alias"),
        ("a: &a {b: 1}\n<<: [*a, *a]\n[1]: 2", "c.yaml:3: ~ not YAML ~ unhashable key"),
        ("a: " + "[" * 200_000, "c.yaml:1: ~ 50 levels"),
        ("a: 1\nb: [", "c.yaml:2: ~ not YAML"),
        ("# " + "x" * 2**22, "c.yaml:1: ~ 4,194,306 characters ~ 4,194,304"),
        ("- 1", "c.yaml ~ keys and values ~ list"),
        ("1: 2", "c.yaml ~ keys and values ~ dict"),
        ("a: !!int x", "c.yaml ~ damaged ~ invalid literal"),
        ("a: " + "9" * 9999, "c.yaml ~ damaged"),
        (b"a: 1\nb: \xff", "c.yaml:2: ~ UTF-8 ~ 0xff"),
        (b"[" * 200_000, "s.json ~ 50 levels"),
        (b'{"a":' * 200_000, "s.json ~ 50 levels"),
        (b"[" * 60 + b"]" * 60, "s.json ~ 50 levels"),
        (b"[]", "s.json ~ keys and values ~ list"),
        (b"null", "s.json ~ keys and values ~ None"),
        (b"", "s.json ~ damaged"),
        (b"9" * 9999, "s.json ~ damaged"),
        (b'{"a": "\xff"}', "s.json:1: ~ UTF-8 ~ 0xff"),
        (b"a,b\n1," + b"2" * 200_000 + b"\n", "t.csv:2: ~ not a table ~ field larger"),
        (b"a,b\n1," + b"2" * 1001 + b"\n", "t.csv:2: ~ cell ~ 1,000 characters"),
        (b"a,b\n1,2\n1,2,3\n", "t.csv:3: ~ 3 cells ~ 2 columns"),
        (b"a,b\n\n1,2\n", "t.csv:2: ~ 0 cells ~ 2 columns"),
        (b"a,a\n1,2\n", "t.csv:1: ~ column ~ twice"),
        (b'a,b\n"1\n1,2\n', "t.csv:3: ~ not a table"),
        (b"a,b\n1,2\n\xff\n", "t.csv:3: ~ UTF-8 ~ 0xff"),
    ],
)
def test_what_is_refused(content, said, tmp_path):
    """By the reader of the file's kind, in a short sentence that begins with its name."""
    file = tmp_path / re.split("[: ]", said)[0]
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    readers = {".yaml": reading.read_yaml, ".json": reading.read_json, ".csv": reading.read_csv}
    with pytest.raises(FileError, match=parts(said)) as caught:
        readers[file.suffix](file)
    assert len(str(caught.value)) < 400


def test_large_files_and_devices_are_not_read(tmp_path, monkeypatch):
    file = tmp_path / "t.csv"
    monkeypatch.setattr(reading, "BYTES", 5000)
    file.write_bytes(b"0" * 5001)
    with pytest.raises(FileError, match=parts("t.csv ~ 5,000 bytes")):
        reading.read_csv(file)
    file.unlink()
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(b"0" * 10**6))
    with pytest.raises(FileError, match=parts("t.csv.gz ~ 5,000 bytes")):
        reading.read_csv(file)
    packed.write_bytes(gzip.compress(b"a\n1\n")[:-9])
    with pytest.raises(FileError, match=parts("t.csv.gz ~ damaged")):
        reading.read_csv(file)
    packed.write_bytes(gzip.compress(b"a\n1\n"))
    assert reading.read_csv(file).to_dict("records") == [{"a": "1"}]
    file.symlink_to("/dev/zero")
    with pytest.raises(FileError, match=parts("t.csv ~ not a file")):
        reading.read_csv(file)


def test_what_is_sound_is_read_and_a_missing_file_is_empty(tmp_path):
    (tmp_path / "c.yaml").write_text("a: &a {b: 1}\nc: *a\n")
    assert reading.read_yaml(tmp_path / "c.yaml") == {"a": {"b": 1}, "c": {"b": 1}}
    (tmp_path / "s.json").write_text('{"a": [1, NaN]}')
    assert reading.read_json(tmp_path / "s.json")["a"][0] == 1
    (tmp_path / "t.csv").write_text('a,"b\nc"\n1,2\n3')
    assert reading.read_csv(tmp_path / "t.csv").to_dict("records") == [{"a": "1", "b\nc": "2"}]
    none = tmp_path / "none"
    assert reading.read_yaml(none) == reading.read_json(none) == {}
    assert reading.read_csv(none).shape == (0, 0)


def test_a_compressed_file_is_unpacked_only_up_to_the_limit(tmp_path, monkeypatch):
    sizes, read = [], gzip.GzipFile.read

    def reads(self, size=-1):
        sizes.append(size)
        return read(self, size)

    monkeypatch.setattr(gzip.GzipFile, "read", reads)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a\n"))
    assert reading.text(tmp_path / "a.csv") == "a\n"
    assert sizes == [reading.BYTES + 1]


def test_a_file_that_memory_cannot_hold_is_named(tmp_path, monkeypatch):
    file = tmp_path / "a.csv"
    file.write_text("a\n")

    def full(path):
        raise MemoryError

    monkeypatch.setattr(reading, "_bytes", full)
    with pytest.raises(OSError, match=parts(f"Cannot allocate memory ~ '{file}'")):
        reading.text(file)
