"""How far a run's accuracy is due to its partition: label skew makes clients easy or hard.

``python -m benchmarks.skew RUN...`` fits the accuracy of a run's clients after its last test by the
share that the largest class has of a client's training data, and says what accuracy that line gives
for the share that other split seeds would give on average.
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
    """A weighted line through points, and the part of the variance that it explains."""

    start: float
    slope: float
    explained: float


def fit(x: Floats, y: Floats, weights: Floats) -> Fit:
    """Return the line with the least weighted squares.

    Example:
        >>> fit(np.array([0.0, 1.0]), np.array([1.0, 3.0]), np.array([1.0, 5.0]))
        Fit(start=1.0, slope=2.0, explained=1.0)
    """
    weights = weights / weights.sum()
    x0, y0 = float(weights @ x), float(weights @ y)
    slope = float(weights @ ((x - x0) * (y - y0)) / (weights @ (x - x0) ** 2))
    left = weights @ (y - y0 - slope * (x - x0)) ** 2
    explained = 1 - left / (weights @ (y - y0) ** 2)
    return Fit(round(y0 - slope * x0, 12), round(slope, 12), round(float(explained), 12))


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
        dealt = part(Targets(labels), clients, np.random.default_rng(seed))
        table = [np.bincount(labels[own], minlength=counts.shape[1]) for own in dealt]
        found.append(shares(np.array(table, np.float64))[1])
    return np.array(found)


def main() -> None:
    """Print a line a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=60)
    options = parser.parse_args()
    for path in options.runs:
        run = RunFolder.read(path)
        if run.label_counts is None:
            raise SystemExit(f"{path} recorded no label counts")
        own, mean = shares(run.label_counts)
        accuracy = run.by_client("test/personal/acc", run.evaluated()[-1:])
        line = fit(own, accuracy, np.array([len(c["test"]) for c in run.partition["clients"]]))
        others = drawn(run, run.label_counts, options.draws)
        here, there = (line.start + line.slope * share for share in (mean, others.mean()))
        print(
            f"{run.method}, {path.name}: share {mean:.3f}, over {options.draws} split seeds "
            f"{others.mean():.3f} (sd {others.std():.3f}); slope {line.slope:.2f}, R2 "
            f"{line.explained:.2f}; accuracy {here:.4f}, {there - here:+.4f} with an average "
            f"partition (sd {line.slope * others.std():.4f})"
        )


if __name__ == "__main__":
    main()
