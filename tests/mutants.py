"""Change the source at random, one place at a time, and see which changes no test notices.

``python -m tests.mutants`` makes 200 mutants of all rooms, in proportion to their code lines, and
``python -m tests.mutants pfl/disk --tests tests/disk --count 20`` makes 20 of one. ``--seed`` draws
them. The tests run once without a change, which shows what each of them reaches; with each mutant
run the files of those that reach it, until one fails. A line for each mutant and a table of the
rooms are printed. No file is touched, and a process that a test starts anew runs without the
change. Everything after ``--`` is passed on to pytest: ``-- -m long``.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.machinery
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from benchmarks.house import TOPS, code_lines, room

if TYPE_CHECKING:
    import pytest

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: The file.
        path: Its absolute path: many tests change the working folder before they import it.
        number: Which of the file's places, in the order of :func:`places`.
        line: Its line.
        what: The change, in words.
    """

    file: Path
    path: Path
    number: int
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"

    def code(self) -> CodeType:
        """Return the code of the changed file."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        node, _ = list(places(tree))[self.number]
        _change(tree, node)
        return _compiled(tree, self.path)


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield each node that can be changed, with the change in words."""
    seen = set[ast.AST]()
    for function in ast.walk(tree):
        # What runs when a module is imported is left alone: nearly any test notices it.
        for statement in function.body if isinstance(function, ast.FunctionDef) else ():
            for node in ast.walk(statement):
                if node not in seen and (what := _said(node)):
                    seen.add(node)
                    yield node, what


def _said(node: ast.AST) -> str | None:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            return f"{ast.unparse(node)}: {_COMPARED[type(op)].__name__}"
        case ast.BinOp(op=op) if type(op) in _COMPUTED:
            return f"{ast.unparse(node)}: {_COMPUTED[type(op)].__name__}"
        case ast.BoolOp():
            return f"{ast.unparse(node)}: and for or, or for and"
        case ast.If() | ast.IfExp() | ast.While():
            return f"if {ast.unparse(node.test)}: negated"
        case ast.Constant(value=bool() | int() | float()):
            return f"{node.value}: another value"
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
            return f"{ast.unparse(node).splitlines()[0]}: left out"
    return None


def _change(tree: ast.Module, node: ast.AST) -> None:
    match node:
        case ast.Compare():
            node.ops = [_COMPARED[type(node.ops[0])]()]
        case ast.BinOp():
            node.op = _COMPUTED[type(node.op)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant():
            node.value += 1
        case _:
            for parent in ast.walk(tree):
                for field in ("body", "orelse", "finalbody"):
                    inside = getattr(parent, field, None)
                    if isinstance(inside, list) and node in inside:
                        inside[inside.index(node)] = ast.copy_location(ast.Pass(), node)


def _compiled(tree: ast.Module, file: Path) -> CodeType:
    return compile(ast.fix_missing_locations(tree), str(file), "exec")


def watched(file: Path, mutants: Sequence[tuple[int, Mutant]]) -> CodeType:
    """Return the code of a file that calls ``_reached(index)`` where a mutant would be."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = list(places(tree))
    for index, mutant in mutants:
        block, at = _statement(tree, nodes[mutant.number][0])
        block.insert(at, ast.parse(f"_reached({index})").body[0])
    return _compiled(tree, file)


def _statement(tree: ast.Module, node: ast.AST) -> tuple[list[ast.stmt], int]:
    """Return the innermost block that holds a node, and the index of its statement there."""
    found: tuple[list[ast.stmt], int] | None = None
    for parent in ast.walk(tree):  # from the outside to the inside
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            for at, statement in enumerate(block if isinstance(block, list) else ()):
                if any(inner is node for inner in ast.walk(statement)):
                    found = block, at
    assert found is not None
    return found


def drawn(files: Sequence[Path], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of files, for each room in proportion to its code lines.

    Each place is drawn at most once. They are in the order of files and lines.
    """
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    lines = Counter[str]()
    for file, text in texts.items():
        lines[room(file.as_posix())] += code_lines(text)
    shares = {name: count * number / lines.total() for name, number in lines.items()}
    largest = sorted(shares, key=lambda name: shares[name] % 1, reverse=True)
    rounded_up = {*largest[: count - sum(map(int, shares.values()))]}
    mutants = []
    for name, share in shares.items():
        everything = [
            Mutant(file, file.resolve(), number, getattr(node, "lineno", 0), what)
            for file, text in texts.items()
            if room(file.as_posix()) == name
            for number, (node, what) in enumerate(places(ast.parse(text)))
        ]
        number = min(int(share) + (name in rounded_up), len(everything))
        mutants += random.Random(seed).sample(everything, number)
    return sorted(mutants, key=lambda one: (str(one.file), one.number))


class Reaching:
    """A pytest plug-in that writes which tests reach which mutants, and how long tests take.

    Processes that a test forks write into the same file.
    """

    def __init__(self, file: Path) -> None:
        # A line is one write, whatever tests make of `os.write`.
        self._out = open(file, "ab", buffering=0)  # noqa: SIM115
        self._test = ""
        self._seen = set[tuple[int, str]]()
        vars(builtins)["_reached"] = self.reached

    def _write(self, *what: object) -> None:
        self._out.write(f"{json.dumps(what)}\n".encode())

    def reached(self, index: int) -> None:
        if self._test and (index, self._test) not in self._seen:
            self._seen.add((index, self._test))
            self._write(index, self._test)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.when == "call":
            self._write(report.nodeid, report.failed, report.duration)


class First:
    """A pytest plug-in that runs some tests before others, and leaves some out."""

    def __init__(self, tests: Sequence[str], without: Collection[str]) -> None:
        self._rank = {test: rank for rank, test in enumerate(tests)}
        self._without = without

    # After the hook of conftest.py, which marks them, and pytest's own, which leaves some out.
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        kept = [item for item in session.items if item.nodeid not in self._without]
        session.items = sorted(kept, key=lambda item: self._rank.get(item.nodeid, len(self._rank)))


@dataclass(frozen=True)
class Unchanged:
    """What the tests do without a change.

    Attributes:
        reached: For each mutant the tests that reach it, quick ones first.
        seconds: How long each test takes.
        failed: The tests that fail, which say nothing of a change.
    """

    reached: Sequence[Sequence[str]]
    seconds: Mapping[str, float]
    failed: Collection[str]


def unchanged(mutants: Sequence[Mutant], arguments: Sequence[str]) -> Unchanged:
    """Run the tests without a change."""

    def changed(path: str) -> CodeType | None:
        inside = [(at, one) for at, one in enumerate(mutants) if str(one.path) == path]
        return watched(Path(path), inside) if inside else None

    seconds: dict[str, float] = {}
    failed: set[str] = set()
    reached: list[set[str]] = [set() for _ in mutants]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "reached")
        code = exit_code(changed, arguments, lambda: Reaching(file), math.inf)
        if code not in (0, 1):  # all passed, or some failed
            raise SystemExit(f"without any change, pytest ends with exit code {code}")
        for line in file.read_text(encoding="utf-8").splitlines():
            match json.loads(line):
                case [index, test]:
                    reached[index].add(test)
                case [test, fails, duration]:
                    seconds[test] = duration
                    failed |= {test} if fails else set()
    ordered = [sorted(tests - failed, key=lambda one: seconds.get(one, 0.0)) for tests in reached]
    return Unchanged(ordered, seconds, failed)


def exit_code(
    changed: Callable[[str], CodeType | None],
    arguments: Sequence[str],
    plugin: Callable[[], object],
    limit: float,
) -> int | None:
    """Return pytest's exit code with a changed source, or ``None`` if it did not end in time.

    Args:
        changed: Returns the code in place of a file's, by its path, or ``None`` to leave the file.
        arguments: pytest's arguments.
        plugin: Makes a plug-in of pytest, in the process that runs the tests.
        limit: Seconds after which the tests are ended.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        # Whatever a test leaves behind, the child ends here.
        os._exit(_in_child(changed, arguments, plugin))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _in_child(
    changed: Callable[[str], CodeType | None],
    arguments: Sequence[str],
    plugin: Callable[[], object],
) -> int:
    """Return pytest's exit code with changed files in the place of those on disk."""
    import pytest

    loader = importlib.machinery.SourceFileLoader
    usual = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        return changed(self.path) or usual(self, fullname)

    loader.get_code = get_code  # type: ignore[method-assign]
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[plugin()]))


def outcome(
    mutant: Mutant, tests: Sequence[str], before: Unchanged, passed_on: Sequence[str]
) -> str:
    """Return ``fell``, ``survived`` or ``not reached``.

    Tests in the same files run as well: what one of them made may be shared with the others. If
    they take much longer than without the change, it fell.
    """
    if not tests:
        return "not reached"
    files = sorted({test.partition("::")[0] for test in tests})
    usual = sum(s for test, s in before.seconds.items() if test.partition("::")[0] in files)
    code = exit_code(
        lambda path: mutant.code() if path == str(mutant.path) else None,
        ["-x", *files, *passed_on],
        lambda: First(tests[:10], before.failed),
        60 + 5 * usual,
    )
    return "survived" if code == 0 else "fell"  # also if it did not end


def main() -> None:
    """Print what falls and what survives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sources", nargs="*", type=Path, help="files and folders to change")
    parser.add_argument("--tests", nargs="+", default=["tests", *TOPS], help="tests to run")
    parser.add_argument("--count", type=int, default=200, help="number of mutants")
    parser.add_argument("--seed", type=int, default=66, help="seed of the draw")
    own, passed_on = sys.argv[1:], []
    if "--" in own:
        own, passed_on = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    files = [
        file
        for source in options.sources or map(Path, TOPS)
        for file in (sorted(source.rglob("*.py")) if source.is_dir() else [source])
    ]
    # Imported once; the children share it. Of the project nothing is imported here.
    import lightning  # noqa: F401
    import torch  # noqa: F401

    mutants = drawn(files, options.count, options.seed)
    before = unchanged(mutants, [*options.tests, *passed_on])
    for test in sorted(before.failed):
        print(f"fails without any change: {test}", flush=True)
    counts = Counter[tuple[str, str]]()
    for mutant, tests in zip(mutants, before.reached, strict=True):
        began = time.monotonic()
        what = outcome(mutant, tests, before, passed_on)
        counts[room(mutant.file.as_posix()), what] += 1
        print(f"{what} ({time.monotonic() - began:.0f} s) {mutant}", flush=True)
    print(f"\n| seed {options.seed} | mutants | fell | survived | not reached |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in dict.fromkeys(name for name, _ in counts):
        numbers = [counts[name, what] for what in ("fell", "survived", "not reached")]
        print(f"| {name} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")


if __name__ == "__main__":
    main()
