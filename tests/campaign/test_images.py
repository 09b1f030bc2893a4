"""Folders of images in which some are damaged: the file is named, or the rest is read."""

from __future__ import annotations

import os

import pytest
import yaml
from PIL import Image

pytestmark = pytest.mark.campaign

CLASSES = ("ant", "bee", "cat")
CONTENTS = (
    b"",
    b"no picture",
    b"\xff\xd8\xff\xe0",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"\x00" * 5000,
)


def pictures(root, draw):
    """Write nine pictures a class; return their paths."""
    found = []
    for label, name in enumerate(CLASSES):
        for number in range(9):
            file = root / name / f"{number}.{draw.choice(('png', 'jpg', 'webp', 'bmp'))}"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (12, 12), (80 * label, 9 * number, draw.randrange(256))).save(file)
            found.append(file)
    return found


def damage(file, draw):
    """Spoil a picture."""
    content = bytearray(file.read_bytes())
    match draw.randrange(7):
        case 0:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        case 1:
            content = content[: draw.randrange(len(content))]
        case 2:
            content = draw.choice(CONTENTS)
        case 3:
            file.unlink()
            os.mkfifo(file)
            return
        case 4:
            file.unlink()
            file.mkdir()
            return
        case 5:
            file.unlink()
            file.symlink_to(draw.choice(("nowhere.png", file.name, "/dev/zero")))
            return
        case _:
            Image.new(
                draw.choice(("L", "P", "RGBA", "1", "I;16")), (1, draw.choice((1, 12, 500)))
            ).save(file, "PNG")
            return
    file.write_bytes(content)


def test_a_damaged_image_is_named_or_read(case, draw, server, tmp_path):
    files = pictures(tmp_path / "images", draw)
    spoiled = draw.sample(files, draw.choice((1, 1, 2, 5)))
    for file in spoiled:
        damage(file, draw)
    cache = {"cache_dir": "cache"} if draw.random() < 0.5 else {}
    net = {"class_path": "MLP", "init_args": {"hidden": 4}}
    data = {"root": "images", "num_clients": 2, "partition": {"class_path": "IID"}, "image_size": 8}
    content = {
        "loop": {"rounds": 1, "progress": False},
        "model": {"class_path": "FedAvg", "init_args": {"net": net}},
        "data": {"class_path": "ImageFolder", "init_args": data | cache},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(content))
    words = ["fit", "--config", "c.yaml"]
    for _ in range(2):
        answer = server.run(words, tmp_path)
        print(answer.code, answer.err)
        answer.check()
        if answer.code == 2:
            assert any(f"{file.parent.name}/{file.name}" in answer.err for file in spoiled)
        # The second time there may be a cache, which is damaged then.
        for file in (tmp_path / "cache").glob("*.*") if cache else ():
            file.write_bytes(file.read_bytes()[: draw.randrange(file.stat().st_size + 1)])
            spoiled = [*spoiled, file]
