"""The source of classes that belong neither to this project nor to the libraries that it uses."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from inspect import getsource, isfunction
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from pfl.imports.trust import CLOSED, INSTALLED

# Variables by which libraries change the precision of arithmetic, not only the order of sums.
PRECISION = (
    *("DNNL_DEFAULT_FPMATH_MODE", "ONEDNN_DEFAULT_FPMATH_MODE"),
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
)
# Variables of where and how a program runs, which are ignored like such settings.
_PLACES = {
    *("HOME", "PATH", "PWD", "PYTHONPATH", "TMPDIR", "USER"),
    *("CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "OMP_NUM_THREADS"),
}
_VARIABLE = re.compile(r"""(?:environ(?:\.\w+\(|\[)|getenv\()\s*["'](\w+)["']""")
# Sources by loaded module, as a file that is edited later is not what runs.
_READ: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def is_foreign(path: str) -> bool:
    """Return ``True`` if the object is neither of this project nor of a library that it uses."""
    return "." in path and path.partition(".")[0] not in CLOSED


def names_object(text: str) -> bool:
    """Return ``True`` if a text is the import path of a class or function that is loaded."""
    module, _, name = text.rpartition(".")
    return callable(getattr(sys.modules.get(module), name, None))


def recorded(paths: Iterable[str]) -> dict[str, str]:
    """Return what numbers depend on besides a configuration, by name.

    That is a hash of the source of each foreign module or package that the paths name, and a hash
    of each environment variable that such a source reads by name or that changes the precision of
    arithmetic.

    Args:
        paths: Import paths of classes and functions.
    """
    texts = {_home(path): path for path in paths if is_foreign(path)}
    sources = {home: _source(home, path) for home, path in texts.items()}
    read = {name for text in sources.values() for name in _VARIABLE.findall(text)}
    counted = {*read, *PRECISION} - _PLACES
    variables = {f"${name}": os.environ[name] for name in counted & {*os.environ}}
    return {name: _hash(text) for name, text in sorted({**sources, **variables}.items())}


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _home(path: str) -> str:
    """Return the package of an object, or its module if that is in no package."""
    top = path.partition(".")[0]
    return top if top == "__main__" or _file(top) is not None else path.rpartition(".")[0]


def _file(module: str) -> Path | None:
    """Return the file of a module, loaded or not; ``None`` for a folder without ``__init__.py``."""
    if module in sys.modules:
        name = getattr(sys.modules[module], "__file__", None)
    else:
        try:
            spec = find_spec(module)
        except (ImportError, ValueError):
            return None
        name = spec.origin if spec is not None and spec.has_location else None
    return None if name is None else Path(name)


def _source(home: str, path: str) -> str:
    """Return the source of a package or a module, and of the files beside it that it imports."""
    module = sys.modules.get(home)
    if module is not None and module in _READ:
        return _READ[module]
    file = _file(home)
    if file is None:
        return _functions(path)
    root = file.parent.parent if file.name == "__init__.py" else file.parent
    files = sorted(_files(file, {}))
    text = "\0".join(f"{one.relative_to(root).as_posix()}\0{_text(one)}" for one in files)
    if module is not None:
        _READ[module] = text
    return text


def _files(file: Path, seen: dict[Path, None]) -> Iterable[Path]:
    """Return the files of a package, or of a module and the modules beside it that it imports."""
    if file in seen or file.suffix != ".py":
        return seen
    seen[file] = None
    if file.name == "__init__.py":
        seen.update(dict.fromkeys(file.parent.rglob("*.py")))
        return seen
    if not INSTALLED.isdisjoint(file.parts):
        # The files beside it are other packages.
        return seen
    for name in _imported(_text(file)):
        for other in (file.parent / f"{name}.py", file.parent / name / "__init__.py"):
            if name not in CLOSED and other.is_file():
                _files(other, seen)
    return seen


def _imported(text: str) -> Iterator[str]:
    """Yield the first part of each module that a source imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        # The file does not parse, so nothing has imported it.
        return
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
        yield from (name.partition(".")[0] for name in names)


def _text(file: Path) -> str:
    return file.read_text("utf-8", errors="replace")


def _functions(path: str) -> str:
    """Return the source of a class or function that is in no file, such as that of a notebook."""
    home, name, *_ = path.split(".")
    kind = getattr(sys.modules.get(home), name, None)
    parts = vars(kind) if isinstance(kind, type) else {name: kind}
    texts = []
    for part, value in parts.items():
        if isfunction(value):
            with suppress(OSError):
                texts.append(getsource(value))
        elif isinstance(value, bool | int | float | str | tuple):
            texts.append(f"{part}={value!r}")
    return "\0".join(texts)
