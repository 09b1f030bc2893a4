"""Every point of every sweep is a command line that parses and sets what it says."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import pytest
import yaml

from pfl.cli.config import Experiment

ROOT = Path(__file__).parent.parent
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
every_sweep = pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.stem)


pytestmark = pytest.mark.usefixtures("_in_the_repository")


def read(sweep):
    return yaml.safe_load(sweep.read_text(encoding="utf-8"))


def points(parameters):
    """Return all points of a grid, or the corners of the ranges that a search draws from."""
    choices = [_choices(parameter) for parameter in parameters.values()]
    return [dict(zip(parameters, point, strict=True)) for point in product(*choices)]


def _choices(parameter):
    if "values" in parameter:
        return parameter["values"]
    return [parameter[key] for key in ("value", "min", "max") if key in parameter]


@every_sweep
def test_it_is_what_wandb_expects(sweep):
    content = read(sweep)
    assert sweep.read_text(encoding="utf-8").startswith(f"# wandb sweep sweeps/{sweep.name}\n")
    assert content["method"] in ("grid", "random", "bayes")
    assert content["metric"]["goal"] in ("maximize", "minimize")
    env, *words = content["command"]
    assert (env, *words[:2], words[-1]) == ("${env}", "${program}", "fit", "${args_json_file}")
    assert {*words[2::2]} == {"--config"}
    assert all(Path(config).is_file() for config in words[3:-1:2])
    assert content["program"] == "pfl"
    assert all(_choices(parameter) for parameter in content["parameters"].values())


def test_the_table_of_letters_names_every_sweep():
    named = re.findall(r"\| `(\w+\.yaml)` \|", (ROOT / "sweeps/README.md").read_text("utf-8"))
    assert sorted(named) == [path.name for path in SWEEPS]


@every_sweep
def test_it_chooses_by_validation(sweep):
    content = read(sweep)
    assert content["metric"]["name"].startswith("val/")
    assert 0 < content["parameters"]["data.init_args.val_fraction"]["value"] < 1


@pytest.mark.long
@every_sweep
def test_every_point_parses(sweep, tmp_path):
    """Its file is written by the code of W&B's agent."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    content = read(sweep)
    file = tmp_path / "args.json"
    words = [str(file) if word == "${args_json_file}" else word for word in content["command"][3:]]
    found = set()
    for point in points(content["parameters"]):
        given = {"args": {key: {"value": value} for key, value in point.items()}}
        file.write_text(create_sweep_command_args(given)["args_json"][0], encoding="utf-8")
        values = Experiment.parse("fit", words).values
        for key, value in point.items():
            assert _plain(values[key]) == value, key
        found.add(json.dumps(point, sort_keys=True))
    assert len(found) == len(points(content["parameters"])), "two points are the same"


def _plain(value):
    """Return a value as a sweep writes it: an object by its class, callbacks by their names."""
    if isinstance(value, list):
        return [{"class_path": item.class_path.rpartition(".")[2]} for item in value]
    return getattr(value, "class_path", value)


def test_points_of_an_agent_lie_apart_unless_told_otherwise(monkeypatch):
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    words = ["--config", "configs/quickstart.yaml"]
    assert Experiment.parse("fit", words).values.loop.default_root_dir == "runs/sweeps/abc"
    told = Experiment.parse("fit", [*words, "--loop.default_root_dir=x"])
    assert told.values.loop.default_root_dir == "x"
