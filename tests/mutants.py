"""Change the source at random, one place at a time, and see which changes no test notices.

``python -m tests.mutants pfl/disk --tests tests/disk --count 20`` makes 20 mutants of the files,
drawn by ``--seed``, and runs the tests with each until one fails. It prints a line for each mutant
and ends with those that survived; their tests are missing. The files themselves are not touched.
Everything after ``--`` is passed on to pytest.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

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
        number: Which of the file's places, in the order of :func:`places`.
        line: Its line.
        what: The change, in words.
    """

    file: Path
    number: int
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"

    def code(self) -> CodeType:
        """Return the code of the changed file."""
        tree = ast.parse(self.file.read_text(encoding="utf-8"))
        node, _ = list(places(tree))[self.number]
        _change(tree, node)
        return compile(ast.fix_missing_locations(tree), str(self.file.resolve()), "exec")


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


def drawn(files: Sequence[Path], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of files, each place at most once, in the order of files and lines."""
    everything = [
        Mutant(file, number, getattr(node, "lineno", 0), what)
        for file in files
        for number, (node, what) in enumerate(places(ast.parse(file.read_text(encoding="utf-8"))))
    ]
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    return sorted(chosen, key=lambda one: (str(one.file), one.number))


def falls(mutant: Mutant | None, arguments: Sequence[str], limit: float) -> bool:
    """Return whether a test fails with a mutant, or runs longer than the limit, in seconds.

    ``None`` stands for the source as it is.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        # Whatever a test leaves behind, the child ends here.
        os._exit(_in_child(mutant, arguments))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _in_child(mutant: Mutant | None, arguments: Sequence[str]) -> int:
    """Return pytest's exit code with a changed file in the place of the one on disk."""
    import pytest

    loader = importlib.machinery.SourceFileLoader
    usual = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        changed = mutant is not None and self.path == str(mutant.file.resolve())
        return mutant.code() if mutant is not None and changed else usual(self, fullname)

    loader.get_code = get_code  # type: ignore[method-assign]
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *arguments]))


def main() -> None:
    """Print what falls and what survives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sources", nargs="+", type=Path, help="files and folders to change")
    parser.add_argument("--tests", nargs="+", required=True, help="tests to run for each mutant")
    parser.add_argument("--count", type=int, default=20, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--limit", type=float, default=600, help="seconds for the tests of one")
    own, passed_on = sys.argv[1:], []
    if "--" in own:
        own, passed_on = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    files = [
        file
        for source in options.sources
        for file in (sorted(source.rglob("*.py")) if source.is_dir() else [source])
    ]
    # Imported once; the children share it. Of the project nothing is imported here.
    import lightning  # noqa: F401
    import torch  # noqa: F401

    arguments = [*options.tests, *passed_on]
    if falls(None, arguments, options.limit):
        raise SystemExit("a test fails without any change, or there is none")
    survivors = []
    mutants = drawn(files, options.count, options.seed)
    for mutant in mutants:
        began = time.monotonic()
        fell = falls(mutant, arguments, options.limit)
        print(
            f"{'fell' if fell else 'SURVIVED'} {time.monotonic() - began:.0f} s {mutant}",
            flush=True,
        )
        survivors += [] if fell else [mutant]
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} fell; survivors:")
    print("\n".join(map(str, survivors)))


if __name__ == "__main__":
    main()
