"""How far a run's accuracy is due to its partition: label skew makes clients easy or hard.

``python -m benchmarks.skew RUN...`` fits the accuracy of a run's clients after its last test by the
share that the largest class has of a client's training data. It says how well that line fits, what
a partition of other split seeds would give on average, and what partitions differ by. ``--like
OTHER`` aims at the partition of another run instead, for instance one of the paper's own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import datamodules
from datamodules.targets import Targets
from pfl.results.runs import RunFolder

Floats = NDArray[np.float64]


class Fit(NamedTuple):
    """A weighted line through points.

    Attributes:
        start: Its value at 0.
        slope: Its slope.
        explained: The part of the variance that it explains, R2.
        left: Standard deviation of what is left, of one point.
    """

    start: float
    slope: float
    explained: float
    left: float


def fit(x: Floats, y: Floats, weights: Floats) -> Fit:
    """Return the line with the least weighted squares.

    Example:
        >>> fit(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]), np.array([1.0, 5.0, 2.0]))
        Fit(start=1.0, slope=2.0, explained=1.0, left=0.0)
    """
    weights = weights / weights.sum()
    x0, y0 = float(weights @ x), float(weights @ y)
    slope = float(weights @ ((x - x0) * (y - y0)) / (weights @ (x - x0) ** 2))
    left = float(weights @ (y - y0 - slope * (x - x0)) ** 2)
    explained = 1 - left / float(weights @ (y - y0) ** 2)
    # Two numbers are fitted.
    spread = np.sqrt(max(0.0, left) * len(x) / (len(x) - 2)) if len(x) > 2 else np.nan
    return Fit(*(round(float(v), 12) for v in (y0 - slope * x0, slope, explained, spread)))


def shares(counts: Floats) -> tuple[Floats, float]:
    """Return each client's share of its largest class, and their mean weighted by samples.

    Args:
        counts: (N, C) samples of each client and class.

    Example:
        >>> shares(np.array([[8.0, 2.0], [15.0, 15.0]]))
        (array([0.8, 0.5]), 0.575)
    """
    largest = counts.max(1)
    return largest / counts.sum(1), float(largest.sum() / counts.sum())


def drawn(run: RunFolder, counts: Floats, draws: int) -> Floats:
    """Return the mean share of as many partitions by the run's recipe, of seeds 0, 1, 2, ..."""
    recipe = run.partition["partition"]
    partitioner = getattr(datamodules, recipe["class_path"].rpartition(".")[2])
    part, clients = partitioner(**recipe["init_args"]), len(counts)
    labels = np.repeat(np.arange(counts.shape[1]), counts.sum(0).astype(int))
    found = []
    for seed in range(draws):
        dealt = part(Targets(labels), clients, part.rng(seed))
        table = [np.bincount(labels[own], minlength=counts.shape[1]) for own in dealt]
        found.append(shares(np.array(table, np.float64))[1])
    return np.array(found)


def counts_of(run: RunFolder) -> Floats:
    """Return (N, C) training samples of each client and class.

    Raises:
        SystemExit: The run recorded none.
    """
    if run.label_counts is None:
        raise SystemExit(f"{run.path} recorded no label counts")
    return run.label_counts


def told(run: RunFolder, others: Floats, aim: float) -> str:
    """Return the line of a run.

    Args:
        run: The run.
        others: Mean shares of other partitions by its recipe.
        aim: The mean share to aim at.
    """
    counts = counts_of(run)
    own, mean = shares(counts)
    accuracy = np.array(run.by_client("test/personal/acc", run.evaluated()[-1:]), np.float64)
    weights = np.array([len(client["test"]) for client in run.partition["clients"]])
    line = fit(own, accuracy, weights)
    here, there = (line.start + line.slope * share for share in (mean, aim))
    # Partitions differ in their share, and by which clients they happen to have.
    spread = np.hypot(
        line.slope * others.std(), line.left * np.sqrt((weights**2).sum()) / weights.sum()
    )
    return (
        f"share {mean:.3f}, over {len(others)} split seeds {others.mean():.3f} "
        f"(sd {others.std():.3f}); slope {line.slope:.2f}, R2 {line.explained:.2f}, n {len(own)}; "
        f"accuracy {here:.4f}, {there - here:+.4f} at a share of {aim:.3f}; partitions differ by "
        f"sd {spread:.4f} (df {len(own) - 2}), {line.slope * others.std():.4f} of it by the share"
    )


def main() -> None:
    """Print a line a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--like", type=Path, help="aim at the partition of this run")
    options = parser.parse_args()
    like = None if options.like is None else shares(counts_of(RunFolder.read(options.like)))[1]
    for path in options.runs:
        run = RunFolder.read(path)
        others = drawn(run, counts_of(run), options.draws)
        aim = float(others.mean()) if like is None else like
        print(f"{run.method}, {path.name}: {told(run, others, aim)}")


if __name__ == "__main__":
    main()
