"""A configuration in this checkout beside another one: seconds of a round and of a run.

    git worktree add ../old 6179865
    taskset -c 0,1 python -m benchmarks.beside ../old
    taskset -c 0,1 python -m benchmarks.beside ../old --rounds 1 4 --config FILE --model.epochs=2

Other words are passed on to ``pfl fit``. Each run is a process of its own; the checkouts take
turns. A round is the difference between a long and a short run, divided by the rounds between them,
so that imports and what is done once a run do not count in it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]


class Cost(NamedTuple):
    """Seconds of a run."""

    processor: float
    wall: float


def run(checkout: Path, words: Sequence[str], rounds: int) -> Cost:
    """Run ``pfl fit`` with the code of a checkout.

    Raises:
        SystemExit: The run fails.
    """
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        ours = [f"--loop.rounds={rounds}", f"--loop.default_root_dir={folder}"]
        ours.append("--loop.progress=false")
        process = subprocess.Popen(
            [sys.executable, "-m", "pfl", "fit", *words, *ours],
            cwd=checkout,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(checkout)},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the run in {checkout} failed")
    return Cost(usage.ru_utime + usage.ru_stime, time.perf_counter() - start)


def main() -> None:
    """Print medians, and how many times as long the other checkout takes."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--rounds", type=int, nargs=2, default=[10, 110])
    parser.add_argument("--repeats", type=int, default=3)
    given, words = parser.parse_known_args()
    words = words or ["--config", "configs/quickstart.yaml"]
    short, long = given.rounds
    checkouts = {"here": HERE, "other": given.other.resolve()}
    found: dict[str, list[tuple[Cost, Cost]]] = {name: [] for name in checkouts}
    for turn in range(given.repeats):
        print(f"turn {turn + 1} of {given.repeats}", file=sys.stderr, flush=True)
        for name, checkout in checkouts.items():
            costs = run(checkout, words, short), run(checkout, words, long)
            found[name].append(costs)
    for clock in Cost._fields:
        whole = {n: [getattr(few, clock) for few, _ in pairs] for n, pairs in found.items()}
        rounds = {
            n: [(getattr(b, clock) - getattr(a, clock)) / (long - short) for a, b in pairs]
            for n, pairs in found.items()
        }
        for label, values in {f"run of {short} rounds": whole, "round": rounds}.items():
            ratios = [o / h for h, o in zip(values["here"], values["other"], strict=True)]
            ours, theirs = (statistics.median(values[name]) for name in checkouts)
            print(
                f"{clock:>10} s, {label}: here {ours:.3f}, other {theirs:.3f}, times "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
