"""Configurations changed at random: in their values, in their keys, in their bytes."""

from __future__ import annotations

import copy
import math

import yaml

CANARY = "called.txt"
CALLS = [
    {"class_path": name, "init_args": {argument: f"touch {CANARY}"}}
    for name, argument in (("os.system", "command"), ("subprocess.Popen", "args"))
]
CLASSES = [
    *("os.system", "..", "", ".", "a..b", "torch.optim.LBFGS", "torch.nn.Module", "builtins.eval"),
    *("torch.optim.SGD", "FedAvg", "MLP", "Synthetic", "IID", "pfl.loop.FederatedLoop", "SGD"),
    *("lightning_modules.base.ClientModule", "torch.nn.Linear", "no_such_package.Thing", "Digits"),
]
VALUES = [
    *(None, True, False, 0, 1, -1, 2, 10**9, 10**18, -(10**9), 0.0, 0.5, -0.5, 1e-12, 1e300),
    *(math.inf, -math.inf, math.nan, "", " ", "x", "null", "1", "1e-3", "0x10", "auto", "ü", "🐟"),
    *("../../x", "/", "/dev/null", "no/such/file", "a" * 5000, "%s{}", "post_local", "sequential"),
    *([], [[]], {}, [1, 2], [None], ["x"], {"x": 1}, {"": None}, {"class_path": None}),
    *({"class_path": 3}, {"init_args": {}}, *({"class_path": name} for name in CLASSES), *CALLS),
    *CLASSES,
]
KEYS = [
    "",
    "x",
    "class_path",
    "init_args",
    "dict_kwargs",
    "help",
    "config",
    "net",
    "lr",
    "a.b",
    "1",
]
SNIPPETS = [
    *(
        b"\t",
        b"\x00",
        b"\x1b",
        b"\xff",
        b"\xef\xbb\xbf",
        b":",
        b"- ",
        b"&a ",
        b"*a",
        b"!!python/x ",
    ),
    *(
        b"? [a, b]\n: 1\n",
        b"<<: *a\n",
        b"{",
        b"]",
        b"'",
        b'"',
        b"|\n",
        b"---\n",
        b"...\n",
        b"%",
        b"@",
    ),
    *(b"[" * 600, b"{a: " * 60, b"x: &x [*x]\n", b"# \xe2\x80\xa8", b"\r", b"  ", b"!!binary x"),
]


def mutated(content: dict, draw) -> bytes:
    """Return a configuration as YAML, with one to three changes."""
    content = copy.deepcopy(content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        _change(content, draw)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()
    return _spoiled(text, draw) if draw.random() < 0.25 else text


def places(value, found=None):
    """Return every ``(container, key)`` of nested dictionaries and lists."""
    found = [] if found is None else found
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in [*pairs]:
        found.append((value, key))
        if isinstance(item, dict | list):
            places(item, found)
    return found


def _change(content, draw):
    """Change one place."""
    where = places(content)
    if not where:
        return
    holder, key = draw.choice(where)
    match draw.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[draw.choice(KEYS)] = holder.pop(key)
        case 2 if isinstance(holder, dict):
            holder[draw.choice(KEYS)] = copy.deepcopy(draw.choice(VALUES))
        case 3:
            other, name = draw.choice(where)
            # A copy: a value that holds itself could not be written.
            holder[key] = copy.deepcopy(other[name]) if name in _keys(other) else None
        case 4:
            holder[key] = [holder[key]]
        case _:
            holder[key] = copy.deepcopy(draw.choice(VALUES))


def _keys(holder):
    return holder.keys() if isinstance(holder, dict) else range(len(holder))


def _spoiled(text: bytes, draw) -> bytes:
    """Return a text with one change that knows nothing of YAML."""
    at, lines = draw.randrange(len(text)), text.splitlines(keepends=True)
    line = draw.randrange(len(lines))
    match draw.randrange(6):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + draw.choice(SNIPPETS) + text[at:]
        case 2:
            return text[:at] + bytes([text[at] ^ 1 << draw.randrange(8)]) + text[at + 1 :]
        case 3:
            return b"".join(lines[:line] + lines[line + 1 :])
        case 4:
            return b"".join([*lines[:line], b" " + lines[line], *lines[line + 1 :]])
        case _:
            return b"".join([*lines[: line + 1], lines[line], *lines[line + 1 :]])
