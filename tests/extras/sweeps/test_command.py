"""The command of a sweep file: its macros, and what is no ``pfl fit``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfl.cli.explain import UsageError
from pfl.extras.sweeps.file import read
from pfl.extras.sweeps.program import fit_words
from tests.extras.sweeps.conftest import write
from tests.helpers.messages import parts, says

POINT = {"a.b": 1.5, "c": [{"class_path": "WandB"}], "d": "x y", "e": True, "f": None}
FLAGS = ["--a.b=1.5", '--c=[{"class_path": "WandB"}]', "--d=x y", "--e=true", "--f=null"]


def words(*command, **keys):
    return fit_words(read(write(command=[*command], **keys)), POINT, Path("p", "1.json"))


def test_the_point_goes_into_a_file():
    assert words("${env}", "pfl", "fit", "--config", "c.yaml", "--config", "${args_json_file}") == [
        *("--config", "c.yaml", "--config", "p/1.json")
    ]
    assert json.loads(Path("p/1.json").read_text()) == POINT


def test_no_file_without_its_macro():
    assert words("pfl", "fit", "${args}", "--seed=1") == [*FLAGS, "--seed=1"]
    assert not Path("p").exists()


def test_other_macros(monkeypatch):
    monkeypatch.setenv("CONFIG", "c.yaml")
    assert words("${env}", "${interpreter}", "-m", "pfl", "fit", "${envvar:CONFIG}") == ["c.yaml"]
    assert words("${program}", "fit", "x", program="pfl") == ["x"]
    assert words("pfl", "fit", "${args_no_equals}")[:4] == ["--a.b", "1.5", "--c", FLAGS[1][4:]]
    assert words("pfl", "fit", "--x=${envvar:UNSET}") == ["--x=UNSET"]


def test_a_command_to_copy_has_flags_in_place_of_the_file():
    command = ["pfl", "fit", "--config", "c.yaml", "--config", "${args_json_file}", "--x=1"]
    sweep = read(write(command=command))
    assert fit_words(sweep, POINT, None) == ["--config", "c.yaml", *FLAGS, "--x=1"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["${env}", "python", "train.py", "${args}"], "command: ~ `pfl fit ...` ~ python train.py"),
        (["pfl", "fit", "${args_no_boolean_flags}"], "${args_no_boolean_flags} ~ supported"),
        (["pfl", "fit", "--config=${args_json_file}"], "--config=${args_json_file} ~ supported"),
        (["pfl", "fit", "${args_append_hydra}"], "${args_append_hydra} ~ ${env}, ${interpreter}"),
    ],
)
def test_other_commands_are_refused(command, message):
    with pytest.raises(UsageError) as caught:
        words(*command)
    assert says(str(caught.value), message)


def test_the_default_command_runs_a_program_of_ones_own():
    sweep = read(write(command=None, program="train.py"))
    with pytest.raises(UsageError, match=parts("s.yaml: command: ~ pfl fit ~ python train.py --a")):
        fit_words(sweep, POINT, Path("p"))
