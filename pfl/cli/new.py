"""``pfl new``: write a template for your own method, data set or network."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from importlib import resources
from pathlib import Path

from pfl.cli.explain import UsageError

# Commands to try next, by kind.
_NEXT = {
    "method": ("pfl check {path}", "pfl fit --config quickstart --model {path} --loop.name={stem}"),
    "data": ("pfl data inspect --config quickstart --data {path} --data.num_clients 5",),
    "net": ("pfl fit --config quickstart --model.net {path}",),
}


def new(options: argparse.Namespace) -> None:
    """Write the file.

    Raises:
        UsageError: The name is not a class name, or its file exists or could not be imported.
    """
    kind, name = options.kind, options.name
    if not name.isidentifier() or keyword.iskeyword(name) or not name[0].isupper():
        raise UsageError(f"{name!r} is not a class name; write it as in MyMethod")
    file = Path(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() + ".py")
    if keyword.iskeyword(file.stem) or file.stem in sys.stdlib_module_names:
        raise UsageError(f"{file.stem} is a keyword or a module of Python: choose another name")
    text = (resources.files("pfl.cli") / "templates" / f"{kind}.txt").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text.format(name=name))
    except FileExistsError as error:
        raise UsageError(f"{file} already exists; it was not overwritten") from error
    print(f"wrote {file}. Next:")
    for line in _NEXT[kind]:
        print(f"  {line.format(path=f'{file.stem}.{name}', stem=file.stem)}")
