"""Code lines of the project by room: without docstrings, comments and blank lines.

``python -m benchmarks.lines`` prints a Markdown table; ``--before COMMIT`` adds a column with the
lines of an earlier version.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

TOPS = ("pfl", "lightning_modules", "datamodules")
# Rooms of the kernel by the beginnings of their files' paths; a longer beginning goes first.
KERNEL: Mapping[str, tuple[str, ...]] = {
    "core, disk, imports": ("pfl/core/", "pfl/disk/", "pfl/imports/"),
    "training": ("pfl/training/",),
    "loop and federation": ("pfl/loop.py", "pfl/federation/", "pfl/__init__.py", "pfl/__main__.py"),
    "engines": ("pfl/engines/",),
    "runs: records, results": ("pfl/callbacks/", "pfl/results/"),
    "cli": ("pfl/cli/",),
    "campaign": ("pfl/campaign/",),
    "testing": ("pfl/testing/",),
    "lightning_modules": ("lightning_modules/",),
    "datamodules": ("datamodules/",),
}
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(source: str) -> int:
    r"""Count the lines of a file that hold code.

    Example:
        >>> code_lines('\"\"\"Docstring.\"\"\"\n\n# A comment.\nx = [\n    1,\n]\n')
        3
    """
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as docstring, *_]:
                    held -= {*range(docstring.lineno, (docstring.end_lineno or 0) + 1)}
    return len(held)


def room(path: str) -> str:
    """Return the room of a file; a folder that is no room of the kernel is an extra.

    Example:
        >>> room("pfl/disk/form.py"), room("pfl/extras/bench/rows.py")
        ('core, disk, imports', 'extra: bench')
    """
    kernel = (name for name, beginnings in KERNEL.items() if path.startswith(beginnings))
    return next(kernel, f"extra: {path.removeprefix('pfl/').removeprefix('extras/').split('/')[0]}")


def counted(files: Iterable[tuple[str, str]]) -> Counter[str]:
    """Return the code lines of each room, from paths and contents of files."""
    lines: Counter[str] = Counter()
    for path, source in files:
        lines[room(path)] += code_lines(source)
    return lines


def table(columns: Mapping[str, Counter[str]]) -> str:
    """Return a Markdown table with a column for each version."""
    extras = sorted({name for lines in columns.values() for name in lines} - {*KERNEL})
    rows = [(name, [name]) for name in KERNEL]
    rows += [("**kernel**", [*KERNEL]), *((name, [name]) for name in extras)]
    rows += [("**extras**", extras), ("**all**", [*KERNEL, *extras])]
    cells = [["", *columns], ["---", *["---:"] * len(columns)]]
    for label, members in rows:
        sums = (sum(lines[name] for name in members) for lines in columns.values())
        cells.append([label, *(f"{lines:,}" for lines in sums)])
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _now() -> Iterator[tuple[str, str]]:
    for top in TOPS:
        for path in sorted(Path(top).rglob("*.py")):
            yield path.as_posix(), path.read_text(encoding="utf-8")


def _at(commit: str) -> Iterator[tuple[str, str]]:
    for path in _git("ls-tree", "-r", "--name-only", commit, *TOPS).splitlines():
        if path.endswith(".py"):
            yield path, _git("show", f"{commit}:{path}")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, check=True, text=True).stdout


def main() -> None:
    """Print the table of the working folder, which is the root of a clone."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", metavar="COMMIT", help="add a column for an earlier version")
    before = parser.parse_args().before
    earlier = {} if before is None else {before: counted(_at(before))}
    print(table({**earlier, "now" if before else "code lines": counted(_now())}))


if __name__ == "__main__":
    main()
