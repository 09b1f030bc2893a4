"""How far the parts of the project know of each other, and how much code there is.

``python -m benchmarks.house`` prints a Markdown table of

- spread: files and folders of the kernel in which a name of a concern stands in the code;
- what ``import pfl.cli.runs`` loads, and what one round of the quickstart enters;
- branchy functions, options of methods in no configuration, project modules that a method imports,
  and files of the last commit that brought a method;
- code lines by room: without docstrings, comments and blank lines.

``--before COMMIT`` adds a column with what an earlier version's files say of themselves; what has
to be run is measured of this one alone.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, TypeAlias

TOPS = ("pfl", "lightning_modules", "datamodules")
# Rooms of the kernel by the beginnings of their files' paths; a longer beginning goes first.
KERNEL: Mapping[str, tuple[str, ...]] = {
    "core, disk, imports": ("pfl/core/", "pfl/disk/", "pfl/imports/", "pfl/method.py"),
    "training": ("pfl/training/",),
    "loop and federation": ("pfl/loop.py", "pfl/federation/", "pfl/__init__.py", "pfl/__main__.py"),
    "engines": ("pfl/engines/",),
    "runs: records, results": ("pfl/callbacks/", "pfl/results/"),
    "cli": ("pfl/cli/",),
    "campaign": ("pfl/campaign/",),
    "verification": ("pfl/verification/",),
    "testing": ("pfl/testing/",),
    "lightning_modules": ("lightning_modules/",),
    "datamodules": ("datamodules/",),
}
# Concerns, by what their names have in common.
CONCERNS: Mapping[str, str] = {
    "clients held out, newcomers": "held_out|newcomer|welcome|unseen",
    "states at sites": "elsewhere|ticket|simulates",
    "stacking": "vectoriz|stacked",
    "bounded memory": r"kept_memory|(?-i:\bRoom\b)|leave_memory|empty_alike",
    "portable bits": "portable|rounding",
    "networks for each client": "variant",
    "public data": "public_of|needs_public|public_split",
    "privacy of samples": "secret|gradient_step",
}
# A function with more is branchy; as McCabe counts, and the terms of conditions.
BRANCHES = 15
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
_ONE_ROUND = ("fit", "--config", "quickstart", "--loop.rounds=1", "--loop.engine=sequential")

# Contents of source files by their paths.
Files: TypeAlias = Mapping[str, str]


def tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of a file's code, with docstrings and without comments."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            yield token


def code_of(source: str) -> set[int]:
    """Return the numbers of the lines of a file that hold code."""
    held: set[int] = set()
    for token in tokens(source):
        held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as docstring, *_]:
                    held -= {*range(docstring.lineno, (docstring.end_lineno or 0) + 1)}
    return held


def code_lines(source: str) -> int:
    r"""Count the lines of a file that hold code.

    Example:
        >>> code_lines('\"\"\"Docstring.\"\"\"\n\n# A comment.\nx = [\n    1,\n]\n')
        3
    """
    return len(code_of(source))


def room(path: str) -> str:
    """Return the room of a file; a folder that is no room of the kernel is an extra.

    Example:
        >>> room("pfl/disk/form.py"), room("pfl/extras/bench/rows.py")
        ('core, disk, imports', 'extra: bench')
    """
    kernel = (name for name, beginnings in KERNEL.items() if path.startswith(beginnings))
    return next(kernel, f"extra: {path.removeprefix('pfl/').removeprefix('extras/').split('/')[0]}")


def branches(function: ast.AST) -> int:
    """Count the places at which a function may go one way or another.

    Example:
        >>> branches(ast.parse("def f(x): return [y for y in x if y and x] if x else 0"))
        4
    """
    count = 0
    for node in ast.walk(function):
        match node:
            case ast.If() | ast.IfExp() | ast.For() | ast.While() | ast.match_case():
                count += 1
            case ast.ExceptHandler():
                count += 1
            case ast.BoolOp(values=values):
                count += len(values) - 1
            case ast.comprehension(ifs=conditions):
                count += 1 + len(conditions)
    return count


def spread(files: Files) -> dict[str, str]:
    """Return how many files and folders of the kernel name each concern, methods left out."""
    homes = {name: set[str]() for name in CONCERNS}
    for path, source in files.items():
        if path.startswith(("pfl/extras/", "lightning_modules/")):
            continue
        words = " ".join({one.string for one in tokens(source) if one.type == tokenize.NAME})
        for name, pattern in CONCERNS.items():
            if re.search(pattern, words, re.IGNORECASE):
                homes[name].add(path)
    return {
        f"spread of {name}": f"{len(of)} files, {len({Path(one).parent for one in of})} folders"
        for name, of in homes.items()
    }


def shape(files: Files) -> dict[str, str]:
    """Return what the text of the files tells of branches and of what methods import."""
    trees = {path: ast.parse(source) for path, source in files.items()}
    counts = [
        branches(node)
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    modules = [
        len({*_imported(tree)})
        for path, tree in trees.items()
        if re.fullmatch(r"lightning_modules/(?!base|__init__|finetune)\w+\.py", path)
    ]
    branchy = sum(count > BRANCHES for count in counts)
    return {
        f"functions with more than {BRANCHES} branches": f"{branchy} of {len(counts):,}",
        "project modules that a method imports": f"{median(modules):g} (median)",
    }


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of the project that a file imports from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in TOPS:
            yield f"{node.module}"


def lines(files: Files) -> dict[str, str]:
    """Return the code lines of each room."""
    counts = Counter[str]()
    for path, source in files.items():
        counts[room(path)] += code_lines(source)
    extras = sorted(counts.keys() - KERNEL.keys())
    sums = {"**kernel**": [*KERNEL], "**extras**": extras, "**all**": [*KERNEL, *extras]}
    told = {name: counts[name] for name in (*KERNEL, *extras)}
    told |= {name: sum(counts[one] for one in of) for name, of in sums.items()}
    return {f"lines: {name}": f"{count:,}" for name, count in told.items()}


def closure(files: Files) -> dict[str, str]:
    """Return what importing the command fit loads of the project."""
    files_of = "[getattr(one, '__file__', None) for one in [*sys.modules.values()]]"
    code = f"import sys, pfl.cli.runs; print(*{files_of})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = [Path(one) for one in done.stdout.split()]
    own = {str(one.relative_to(Path.cwd())) for one in here if one.is_relative_to(Path.cwd())}
    own &= files.keys()
    count = sum(code_lines(files[path]) for path in own)
    return {"loaded by import pfl.cli.runs": f"{len(own)} files, {count:,} lines"}


def one_round(files: Files) -> dict[str, str]:
    """Return what one round of the quickstart enters; it runs in a process of its own."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "entered.json"
        words = [sys.executable, "-m", "benchmarks.house", "--enter", str(file)]
        subprocess.run(words, capture_output=True, check=True)
        entered = json.loads(file.read_text(encoding="utf-8"))
    ran, functions = set[tuple[str, int]](), 0
    for path, first in entered["functions"]:
        for node in ast.walk(ast.parse(files[path])):
            if isinstance(node, ast.FunctionDef):
                start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if start == first:
                    functions += 1
                    ran |= {(path, line) for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    homes = {path for path, _ in ran}
    code = sum(len({n for p, n in ran if p == path} & code_of(files[path])) for path in homes)
    what = f"{functions} functions, {len(homes)} files, {code:,} lines, {entered['depth']} deep"
    return {"entered by one round": what}


def enter(file: Path) -> None:
    """Run one round of the quickstart, and write which functions it enters."""
    from pfl.__main__ import main as pfl

    root, stack, found, depth = f"{Path.cwd()}/", list[CodeType](), set[CodeType](), 0

    def watch(frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401
        nonlocal depth
        code = frame.f_code
        if not code.co_filename.startswith(tuple(f"{root}{top}/" for top in TOPS)):
            return
        if event == "call" and (stack or code.co_name == "_play_round"):
            stack.append(code)
            found.add(code)
            depth = max(depth, len(stack))
        elif event == "return" and code in stack:
            # A generator may be left before those that it has called.
            del stack[len(stack) - 1 - stack[::-1].index(code) :]

    sys.setprofile(watch)
    try:
        pfl([*_ONE_ROUND, f"--loop.default_root_dir={file.parent}"])
    finally:
        sys.setprofile(None)
    places = sorted({(one.co_filename.removeprefix(root), one.co_firstlineno) for one in found})
    file.write_text(json.dumps({"functions": places, "depth": depth}), encoding="utf-8")


def unstated(files: Files) -> dict[str, str]:
    """Return how many options of methods have a name that stands in no configuration."""
    import lightning_modules
    from pfl.cli import catalogue

    yaml = "\n".join(
        one.read_text("utf-8") for top in ("configs", "sweeps") for one in Path(top).rglob("*.yaml")
    )
    options = {
        (item.name, option.name)
        for item in catalogue.listed("methods")
        for option in _own_options(getattr(lightning_modules, item.name))
    }
    missing = [name for _, name in options if not re.search(rf"\b{name}\b", yaml)]
    return {"options of methods in no configuration": f"{len(missing)} of {len(options)}"}


def _own_options(method: type) -> list[inspect.Parameter]:
    start: Callable[..., None] | None = vars(method).get("__init__")
    given = inspect.signature(start).parameters.values() if start else ()
    return [one for one in given if one.default is not one.empty]


def landing(files: Files) -> dict[str, str]:
    """Return how many files the last commit touched that brought a method."""
    added = ("log", "-1", "--diff-filter=A", "--name-only", "--format=%h", "--")
    commit, *brought = _git(*added, "lightning_modules/*.py").split()
    touched = _git("show", "--format=", "--name-only", commit).split()
    what = f"{len(touched)} ({', '.join(Path(one).stem for one in brought)}, {commit})"
    return {"files of the last commit that brought methods": what}


def _now() -> dict[str, str]:
    paths = [path for top in TOPS for path in sorted(Path(top).rglob("*.py"))]
    return {path.as_posix(): path.read_text(encoding="utf-8") for path in paths}


def _at(commit: str) -> dict[str, str]:
    paths = _git("ls-tree", "-r", "--name-only", commit, *TOPS).splitlines()
    return {path: _git("show", f"{commit}:{path}") for path in paths if path.endswith(".py")}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, check=True, text=True).stdout


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return a Markdown table with a column for each version."""
    rows = dict.fromkeys(name for column in columns.values() for name in column)
    cells = [["", *columns], ["---", *["---:"] * len(columns)]]
    cells += [[name, *(column.get(name, "") for column in columns.values())] for name in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def main() -> None:
    """Print the table of the working folder, which is the root of a clone."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", metavar="COMMIT", help="add a column for an earlier version")
    parser.add_argument("--enter", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.enter is not None:
        enter(options.enter)
        return
    files, columns = _now(), dict[str, dict[str, str]]()
    if options.before is not None:
        then = _at(options.before)
        columns[options.before] = {**spread(then), **shape(then), **lines(then)}
    measures = (spread, closure, one_round, shape, unstated, landing, lines)
    columns["now"] = {name: told for measure in measures for name, told in measure(files).items()}
    print(table(columns))


if __name__ == "__main__":
    main()
