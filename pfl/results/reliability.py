"""How sure the personal models are, and how right: what a reliability diagram shows.

Guo et al., "On Calibration of Modern Neural Networks", ICML 2017. ``pfl test --reliability``
writes ``reliability.csv`` into the run's folder, a row for each client and each bin of confidence
that is not empty; ``pfl plot`` and ``pfl report`` draw it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from pfl.results.runs import Floats, RunError, RunFolder, Table
from pfl.results.settings import Setting
from pfl.results.style import WIDTH, Look, legend_above

if TYPE_CHECKING:
    from pfl.client import Client
    from pfl.federation import Federation
    from pfl.loop import FederatedLoop
    from pfl.types import FederatedData

FILE = "reliability.csv"
BINS = 15


def measure(loop: FederatedLoop, module: Client, data: FederatedData, ckpt_path: str) -> Path:
    """Count over every client's test data with its personal model; returns the file written.

    Raises:
        CheckpointError: ``ckpt_path`` cannot be used.
        RunError: It does not belong to a run's folder.
    """
    from pfl.federation import Federation

    with closing(Federation(loop, module, data, ckpt_path)) as federation:
        source = federation.source
        if source is None or source.parent.name != "checkpoints":
            raise RunError(f"the checkpoint {ckpt_path} is in no run's folder")
        rows = list(_rows(module, data, federation))
    path = source.parent.parent / FILE
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def _rows(
    module: Client, data: FederatedData, federation: Federation
) -> Iterator[dict[str, float]]:
    """Counts of all clients."""
    import torch

    from pfl.batching import chunks

    for client in range(data.num_clients):
        split = data.split(client, "test")
        if len(split) == 0:
            continue
        federation.personal(client)
        sure, right = [], []
        with torch.inference_mode(), federation.context.fabric.autocast():
            for positions in chunks(len(split), data.eval_batch_size):
                batch = split.batch(positions)
                confidence, predicted = module(batch.x).float().softmax(-1).max(-1)
                sure.append(confidence.cpu().numpy())
                right.append((predicted == batch.y).cpu().numpy())
        for row in bins(np.concatenate(sure), np.concatenate(right)):
            yield {"round": federation.run.round, "client": client, **row}


def bins(confidence: Floats, correct: Floats) -> list[dict[str, float]]:
    """Samples, mean confidence and accuracy of each bin that holds any.

    Bins are 15 of equal width, as the calibration error ``ece`` has them: a border belongs to the
    bin above it.

    Args:
        confidence: (n,) largest probability of each prediction.
        correct: (n,) whether it was right.
    """
    borders = np.linspace(0, 1, BINS + 1, dtype=np.float32)
    place = np.clip(np.searchsorted(borders, confidence, side="right") - 1, 0, BINS - 1)
    return [
        {
            "bin": number,
            "samples": int((place == number).sum()),
            "confidence": float(confidence[place == number].mean()),
            "accuracy": float(correct[place == number].mean()),
        }
        for number in np.unique(place).tolist()
    ]


def diagram(settings: Sequence[Setting]) -> Figure:
    """Accuracy against confidence over all clients' test samples; below, how many are so sure.

    On the diagonal a model is as often right as it is sure to be; below it, it is too sure.

    Raises:
        RunError: There is no run whose bins were counted after its last round.
    """
    found = {setting.label: _pooled(setting) for setting in settings}
    found = {label: pooled for label, pooled in found.items() if len(pooled)}
    if not found:
        raise RunError(
            "reliability was not counted after the last round; to count it: pfl test --config "
            "RUN/config.yaml --ckpt_path RUN --reliability"
        )
    figure = Figure(figsize=(0.5 * WIDTH, 0.55 * WIDTH), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot([0, 1], [0, 1], color="#999999", linewidth=0.9, zorder=1)
    for number, setting in enumerate(settings):
        if setting.label not in found:
            continue
        samples, confidence, accuracy = found[setting.label].T
        look = Look.of(number)
        style = {"color": look.color, "linestyle": look.linestyle, "marker": look.marker}
        above.plot(confidence, accuracy, label=setting.label, **style)
        below.plot(confidence, samples / samples.sum(), **style)
    above.set_ylabel("accuracy")
    below.set_ylabel("samples")
    below.set_xlabel("confidence of the personal models on test data")
    below.set_yscale("log")
    for axis in (above.yaxis, below.xaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    # A logarithmic axis shows shares below one per cent as well.
    below.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    above.set_ylim(-0.02, 1.02)
    legend_above(figure, above)
    return figure


def _pooled(setting: Setting) -> Floats:
    """(bins, 3) samples, mean confidence and accuracy, over all clients and runs of a setting."""
    tables = [_counted(run) for run in setting.runs]
    rows = np.concatenate(tables)
    return np.array(
        [
            [samples.sum(), (samples @ sure) / samples.sum(), (samples @ right) / samples.sum()]
            for number in np.unique(rows[:, 0])
            for samples, sure, right in [rows[rows[:, 0] == number, 1:].T]
        ]
    )


def _counted(run: RunFolder) -> Floats:
    """(rows, 4) bin, samples, confidence and accuracy; none if they are not of the last round."""
    table = Table.read(run.path / FILE)
    if len(table) == 0 or table["round"][0] != run.round:
        return np.zeros((0, 4))
    return np.stack([table[name] for name in ("bin", "samples", "confidence", "accuracy")], 1)
