import pytest
from PIL import Image


@pytest.fixture
def write(tmp_path):
    """Write a file and return its path."""

    def write(content, name="t.csv"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(file)

    return write


@pytest.fixture
def pictures(tmp_path):
    """Write so many pictures of one colour, (v, 2 v, 3 v), into each folder; return the root.

    The pictures of a folder have the values ``start``, ``start + 1``, ...
    """

    def pictures(counts, root="pictures", start=0, step=10, suffix="png"):
        for place, (folder, count) in enumerate(counts.items()):
            (tmp_path / root / folder).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                value = start + step * place + number
                image = Image.new("RGB", (4, 4), (value, 2 * value, 3 * value))
                image.save(tmp_path / root / folder / f"{number:02}.{suffix}")
        return str(tmp_path / root)

    return pictures
