"""The grouping of runs into settings, and their names."""

from __future__ import annotations

import numpy as np
import pytest

from pfl.results.runs import RunFolder
from pfl.results.settings import group
from tests.results.folders import write_run

ACC = "test/personal/acc"


def config(method="FedAvg", lr=0.1, alpha=0.5, **loop):
    return {
        "model": {
            "class_path": f"lightning_modules.{method.lower()}.{method}",
            "init_args": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": lr}}},
        },
        "data": {
            "class_path": "Digits",
            "init_args": {"partition": {"init_args": {"alpha": alpha}}},
        },
        "loop": {"rounds": 3, "name": "x", **loop},
    }


@pytest.fixture
def settings_of(tmp_path):
    def make(*runs):
        folders = [
            RunFolder.read(
                write_run(
                    tmp_path / f"{number:02}",
                    [[0.5]],
                    method=content["model"]["class_path"].split(".")[-1] if content else "FedAvg",
                    seed=seed,
                    config=content,
                )
            )
            for number, (content, seed) in enumerate(runs)
        ]
        return group(folders)

    return make


def test_runs_that_differ_in_nothing_but_the_seed_are_one_setting(settings_of):
    runs = [(config(), 2), (config(name="y", progress=False), 1), (config(rounds=4), 1)]
    settings, repeated = settings_of(*runs)
    assert [[run.seed for run in setting.runs] for setting in settings] == [[1, 2], [1]]
    assert [setting.label for setting in settings] == ["FedAvg, rounds=3", "FedAvg, rounds=4"]
    assert not repeated


def test_of_a_repeated_run_the_newest_counts(settings_of):
    settings, repeated = settings_of((config(), 1), (config(), 1))
    assert [run.path.name for run in settings[0].runs] == ["01"]
    assert [run.path.name for run in repeated] == ["00"]


def test_a_label_names_what_differs_within_a_method_and_in_the_data(settings_of):
    runs = [(config(lr=0.1), 1), (config(lr=0.2), 1), (config("FedPer", 0.3), 1)]
    settings, _ = settings_of(*runs)
    assert [s.label for s in settings] == ["FedAvg, lr=0.1", "FedAvg, lr=0.2", "FedPer"]
    settings, _ = group([s.runs[0] for s in settings[:1]])
    assert settings[0].label == "FedAvg"


def test_data_that_differ_are_named_for_every_method(settings_of):
    settings, _ = settings_of((config(alpha=0.1), 1), (config("FedPer", alpha=1), 1))
    assert [s.label for s in settings] == ["FedAvg, alpha=0.1", "FedPer, alpha=1"]


def test_keys_of_the_same_end_are_told_apart(settings_of):
    other = config(lr=0.2)
    other["model"]["init_args"]["net"] = {"lr": 2}
    first = config(lr=0.1)
    first["model"]["init_args"]["net"] = {"lr": 1}
    settings, _ = settings_of((first, 1), (other, 1))
    assert settings[1].label == "FedAvg, net.lr=2, optimizer.lr=0.2"


def test_an_option_that_the_others_lack_is_named(settings_of):
    """A codec and an analysis with options of their own, of which the class tells; a limit."""
    up = {"class_path": "TopK", "init_args": {"share": 0.1}}
    codec = config(uplink=[{"class_path": "Codecs", "init_args": {"up": up}}])
    stop = {"class_path": "pfl.callbacks.EarlyStopping", "init_args": {"patience": 3}}
    limited = config()
    limited["data"]["init_args"]["max_samples"] = 600
    runs = [config(), codec, config(callbacks=[stop]), limited]
    settings, _ = settings_of(*((content, 1) for content in runs))
    assert [s.label for s in settings] == [
        *("FedAvg", "FedAvg, uplink.0=Codecs", "FedAvg, callbacks.0=EarlyStopping"),
        "FedAvg, max_samples=600",
    ]


def test_of_a_run_from_python_only_what_both_state_is_named(settings_of):
    """It states every default of its objects, and which layers its network has."""
    other = {"started": "from Python", **config(lr=0.2)}
    other["model"]["init_args"]["optimizer"]["init_args"]["momentum"] = 0
    settings, _ = settings_of((config(), 1), (other, 1), (None, 1))
    assert [s.label for s in settings] == ["FedAvg, lr=0.1", "FedAvg, lr=0.2", "FedAvg"]


def test_folders_of_the_same_name_are_told_apart(tmp_path):
    runs = [RunFolder.read(write_run(tmp_path / place / "x", [[0.5]])) for place in "ab"]
    settings, _ = group(runs)
    assert [s.label for s in settings] == [f"FedAvg ({run.path})" for run in runs]


def test_runs_without_a_configuration_are_never_one_setting(settings_of):
    settings, _ = settings_of((None, 1), (None, 2))
    assert [s.label for s in settings] == ["FedAvg (00)", "FedAvg (01)"]


def test_clients_of_different_partitions_are_different_clients(tmp_path):
    """Clients of split s1: means of (0.4, 0.6) and (0.8, 1.0); of split s2: 0.1 and no value."""
    rows = [("a", "s1", [0.4, 0.8], 1), ("b", "s1", [0.6, 1.0], 2), ("c", "s2", [0.1, None], 3)]
    runs = [
        RunFolder.read(write_run(tmp_path / name, [row], split=split, seed=seed, config=config()))
        for name, split, row, seed in rows
    ]
    (setting,), _ = group(runs)
    found = setting.per_client(ACC, "last")
    assert found.index.tolist() == [("s1", 0), ("s1", 1), ("s2", 0)]
    np.testing.assert_allclose(found["value"], [0.5, 0.9, 0.1])
    assert found["samples"].tolist() == [10, 20, 10]
    np.testing.assert_allclose(setting.values(ACC, "last"), [0.6, 0.8, 0.1])
