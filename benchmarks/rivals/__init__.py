"""Other simulators of federated learning, for ``python -m benchmarks.field --rivals``.

Each has an environment of its own, as their requirements exclude each other, and runs in a process
of its own. One command makes the environment, and the next lets the simulator take part::

    python -m benchmarks.rivals fedlab
    python -m benchmarks.field --rivals benchmarks.rivals:fedlab

The environments lie in ``.rivals``, or in the folder that ``PFL_RIVALS`` names; what is installed
is in ``benchmarks/rivals/NAME.txt``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.rivals.worker import DONE, GO, READY

if TYPE_CHECKING:
    from benchmarks.field import Workload

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("*.txt")))


def fedlab(work: Workload) -> Iterator[None]:
    """Train with FedLab; yield after each round."""
    return _rounds("fedlab", work)


def pfl_research(work: Workload) -> Iterator[None]:
    """Train with pfl-research; yield after each round."""
    return _rounds("pfl_research", work)


def install(name: str) -> Path:
    """Make the environment of a simulator, with the torch that runs here; return its Python.

    Raises:
        CalledProcessError: ``pip`` failed, and told why.
    """
    python = _python(name)
    venv.create(_folder(name), with_pip=True, clear=True)
    torch_here = f"torch=={torch.__version__.partition('+')[0]}"
    file = str(HERE / f"{name}.txt")
    subprocess.run([python, "-m", "pip", "install", "-r", file, torch_here], check=True)
    return python


def _rounds(name: str, work: Workload) -> Iterator[None]:
    """Yield after each round of a simulator, which waits in between."""
    if not _python(name).exists():
        raise ImportError(f"no environment for it: python -m benchmarks.rivals {name}")
    return _played(name, work)


def _played(name: str, work: Workload) -> Iterator[None]:
    x, y = work.tensors
    sizes = {"clients": work.clients, "samples": work.samples, "cohort": work.cohort}
    sizes |= {"epochs": work.epochs, "batch_size": work.batch_size}
    # A simulator that finds a GPU may use it.
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if work.device == "cpu" else {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "work.pt"
        start = [value.cpu() for value in work.start.state_dict().values()]
        names = {"kind": work.name, "device": work.device}
        torch.save({**names, "x": x.cpu(), "y": y.cpu(), "start": start, **sizes}, file)
        # Not from the project's folder, where `pfl` is another package than theirs.
        process = subprocess.Popen(
            [_python(name), HERE / "worker.py", name, file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | hidden,
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            versions = _said(name, process.stdout.readline(), READY)
            print(f"{name}: {versions}", file=sys.stderr)
            while True:
                process.stdin.write(GO)
                process.stdin.flush()
                _said(name, process.stdout.readline(), DONE)
                yield


def _said(name: str, line: str, begin: str) -> str:
    """Return what follows the expected word.

    Raises:
        RuntimeError: The process said something else, or nothing, as it ended.
    """
    if not line.startswith(begin):
        raise RuntimeError(f"{name} ended: see above for its own message")
    return line[len(begin) :].strip()


def _folder(name: str) -> Path:
    return Path(os.environ.get("PFL_RIVALS", ".rivals")).absolute() / name


def _python(name: str) -> Path:
    inside = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    return _folder(name).joinpath(*inside)
