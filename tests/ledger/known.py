"""Runs of the ledger as they are read from its folders, made up."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.ledger.judge import Ledger


def run(row, ours, reported, *, seed=0, spread=None, partition="p", best=None, **more):
    column, metric = "beta 0.1, P 0.2", "test/personal/acc/last"
    given = {"paper": "FedAS", "table": "Table 3", "column": column, "metric": metric}
    told = {"released": False, "departure": "", "folder": f"{row} {seed}", "swing": np.nan}
    told |= {"commit": "c", "hardware": "h", "note": ""}
    scores = {("", ""): ours, ("last", ""): ours, ("", "samples"): ours + 0.01}
    scores |= {} if best is None else {("best", ""): best, ("best", "samples"): best + 0.01}
    numbers = {"scores": scores, "reported": reported, "spread": spread}
    return {**given, **told, "row": row, "seed": seed, "partition": partition, **numbers, **more}


def ledger(*runs, reasons=()):
    found = pd.DataFrame(runs).astype({"reported": float, "spread": float})
    return Ledger(found, dict(reasons))


def seeds(row, values, reported, **more):
    """One run for each value, on the released partition."""
    return [
        run(row, float(value), reported, **{"seed": seed, "released": True, **more})
        for seed, value in enumerate(np.asarray(values) / 100)
    ]
