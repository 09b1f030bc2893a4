"""Contents and links that somebody could put into a run folder."""

from __future__ import annotations

import csv
import io
import json

# Of one cell of a table, and of one value of a JSON file.
CELLS = ("1e300", "-1e300", "inf", "-inf", "nan", "-1", "1000000000", "1.5", "", "x", "True", "0x1")
CELLS += ("9" * 400, "9" * 200_000, "\x1b[31m", '"', "\n", "ü", "=1+1")
VALUES = (None, True, 10**9, -1, 2**80, 1e300, "x", "\x1b[31m", [], {}, [[1], [2, 3]], [None])
VALUES += ({"a": {"b": 1}}, {"class_path": "os.system"}, "9" * 5000)
TEXTS = (b"", b"[]", b"null", b"[" * 200_000, b'{"a":' * 200_000, b"{" * 3000, b"\xff\xfe", b"\x00")
TEXTS += (b"a: &a [*a]\n", b"a: " + b"[" * 20_000, b"- 1\n", b"? [1]\n: 2\n", b"seed: [1]\n")
TEXTS += (
    b"model: {class_path: [1], init_args: [2]}\nloop: {callbacks: 3}\n",
    b"9" * 9999,
    b"a,a\n",
)
TEXTS += ("\n".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9 if n else 1}]" for n in range(40)).encode(),)


def cell(file, draw):
    """Change a cell of a table, or drop or double a column or a line."""
    rows = list(csv.reader(io.StringIO(file.read_text())))
    at, column = draw.randrange(len(rows)), draw.randrange(len(rows[0]))
    match draw.randrange(6):
        case 0:
            rows = [row[:column] + row[column + 1 :] for row in rows]
        case 1:
            rows = [[*row, row[column]] for row in rows]
        case 2:
            rows.insert(draw.randrange(len(rows)), rows[at])
        case _:
            rows[at][column] = draw.choice(CELLS)
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    file.write_text(text.getvalue())


def value(file, draw):
    """Change a value of a JSON file, one or two levels deep."""
    content = json.loads(file.read_text())
    holder, key = content, draw.choice(sorted(content))
    if isinstance(content[key], dict) and content[key] and draw.random() < 0.5:
        holder, key = content[key], draw.choice(sorted(content[key]))
    holder[key] = draw.choice(VALUES)
    file.write_text(json.dumps(content))


def text(file, draw):
    """Put something else in the place of all that a file holds."""
    file.write_bytes(draw.choice(TEXTS))
