"""Runs' folders written by hand, so that what is read from them is known."""

from __future__ import annotations

import csv
import json
from statistics import fmean

import yaml


def write_run(
    path,
    accuracies,
    method="FedAvg",
    seed=1,
    config=None,
    rounds=None,
    samples=None,
    labels=None,
    split="s1",
    split_seed=1,
    planned=None,
    columns=None,
    val=None,
    evaluated="post_broadcast",
    content="c1",
    group="personal",
    score="acc",
):
    """A run whose clients have the given accuracies.

    Args:
        path: The folder.
        accuracies: One list a round, of one number a client (``None``: not tested); an empty list
            is a round without test.
        method: Name of the method.
        seed: Of the run; with ``config`` it becomes part of the configuration.
        config: The configuration, without the seed.
        rounds: Numbers of the rounds; 1, 2, ... if not given.
        samples: Training samples of each client.
        labels: Label counts of each client.
        split: Hash of the partition.
        split_seed: Its seed.
        planned: Planned rounds; as many as there are if not given.
        columns: What servers report: name -> rounds x clients.
        val: Validation accuracy after each round.
        evaluated: Points at which personal models were tested.
        content: Hash of the data set.
        group: Models that were tested; of the common test set no client has a score.
        score: The main score; of any other than accuracy, less is better.
    """
    path.mkdir(parents=True)
    rounds = rounds or list(range(1, len(accuracies) + 1))
    count = max(map(len, accuracies))
    samples = samples or [10 * (client + 1) for client in range(count)]
    metrics, clients = [], []
    for place, (number, row) in enumerate(zip(rounds, accuracies, strict=True)):
        entry = {
            "round": number,
            "train/samples": 100,
            "train/steps": 10,
            "comm/bytes_down": 300,
            "comm/bytes_up": 200,
            "comm/bytes_total": 500 * (place + 1),
            "time/train": 2.0,
            "time/aggregate": 0.5,
            "time/evaluate": 1.0,
        }
        tested = [value for value in row if value is not None]
        if tested:
            entry[f"test/{group}/{score}"] = sum(tested) / len(tested)
        if tested and group == "personal":
            ranked = sorted(tested, reverse=score != "acc")
            entry[f"test/personal/{score}_worst10"] = fmean(ranked[: -(-len(tested) // 10)])
            entry["test/personal/ece"] = 0.1
        if tested and val is not None:
            entry["val/personal/acc"] = val[place]
        metrics.append(entry)
        for client, value in enumerate(row):
            reported = {name: table[place][client] for name, table in (columns or {}).items()}
            entry = {"round": number, "client": client, "samples": samples[client], "trained": True}
            tests = {} if group == "pooled" else {f"test/{group}/{score}": value}
            clients.append({**entry, **tests, **reported})
    _table(path / "metrics.csv", metrics)
    _table(path / "clients.csv", clients)
    if config is not None:
        (path / "config.yaml").write_text(yaml.safe_dump({"seed": seed, **config}))
    partition = {"hash": split, "content_hash": content, "data": "Toys", "split_seed": split_seed}
    if labels is not None:
        partition["label_counts"] = labels
    _json(path / "partition.json", partition)
    header = {"method": method, "evaluated": evaluated}
    planned = rounds[-1] if planned is None else planned
    _json(
        path / "environment.json",
        {
            **{"header": header, "seed": seed, "rounds": planned},
            "scores": {"acc": True, "ece": False} if score == "acc" else {score: False},
            "reports": {name: f"caption of {name}" for name in columns or {}},
        },
    )
    if planned == rounds[-1]:
        _json(path / "summary.json", {"rounds": rounds[-1], "fingerprint": "f00", "summary": {}})
    return path


def _table(path, rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _json(path, content):
    path.write_text(json.dumps(content))
