"""One reading of words and numbers: files, flags and sweeps give the same for the same text."""

from __future__ import annotations

import datetime

import pytest
import yaml

from pfl.__main__ import main
from pfl.cli.config import Experiment
from pfl.disk.reading import mapping_of_yaml
from pfl.disk.yaml_text import YamlError, dumped, loaded
from tests.helpers.extras import needs
from tests.helpers.messages import parts

READ = {
    "yes": "yes", "on": "on", "No": "No", "OFF": "OFF", "y": "y",
    "true": True, "False": False, "null": None, "~": None,
    "10": 10, "-3": -3, "1_000": 1000, "0x10": 16, "0o17": 15,
    "1e-3": 0.001, "1.5": 1.5, ".5": 0.5, "-.5e2": -50.0, "1E5": 1e5, "0.010": 0.01,
    "2026-01-01": "2026-01-01", "12:30 to 13:00": "12:30 to 13:00", "'010'": "010",
    '"1:30"': "1:30", "1.2.3": "1.2.3", "'1e5'": "1e5", "NO2": "NO2", "+": "+", "1e": "1e",
    "'08'": "08", "0.5e-3": 5e-4, "-0": 0, "0": 0, "8:99": "8:99",
}  # fmt: skip
TWO_WAYS = ["010", "012", "-07", "1:30", "12:30:00", "1:30.5", "00", "0_1"]
TWO_WAYS += ["08", "-09", "08:30", "00.5", "010.", "01e3"]


@pytest.mark.parametrize("text", READ)
def test_words_and_numbers_of_a_file(text):
    right = READ[text]
    assert loaded(text) == right
    assert type(loaded(text)) is type(right)
    assert mapping_of_yaml(f"key: {text}", "c.yaml") == {"key": right} == loaded(f"key: {text}")
    assert loaded(f"[{text}]") == [right]


@pytest.mark.parametrize("text", TWO_WAYS)
def test_a_number_that_may_be_read_in_two_ways_is_refused(text):
    for content in (text, f"key: {text}", f"- {text}"):
        with pytest.raises(YamlError, match=parts(f"{text} may be read ~ leading zero ~ '{text}'")):
            loaded(content)


def test_what_a_run_wrote_is_read_as_it_was():
    """What would be refused or read otherwise is written in quotes."""
    values = [
        *(v for v in READ.values() if isinstance(v, str)),
        *TWO_WAYS,
        1,
        0.1,
        1e-5,
        True,
        None,
    ]
    assert loaded(dumped(values)) == values == yaml.safe_load(dumped(values))
    assert isinstance(yaml.safe_load("2026-01-01"), datetime.date)


@needs("tables")
@pytest.mark.parametrize("value", ["yes", "on", "no", "off"])
@pytest.mark.parametrize("way", ["file", "flag"])
def test_a_word_is_a_word_where_one_is_wanted_and_a_truth_value_elsewhere(tmp_path, value, way):
    file = tmp_path / "c.yaml"
    inner = f"path: t.csv, target: y, positive: {value}, drop_last: {value}"
    file.write_text(f"data: {{class_path: TabularData, init_args: {{{inner}}}}}\n")
    flags = ["--data=TabularData", "--data.path=t.csv", "--data.target=y"]
    flags += [f"--data.positive={value}", f"--data.drop_last={value}"]
    argv = [f"--config={file}"] if way == "file" else flags
    given = Experiment.parse("data inspect", argv).values.data.init_args
    assert (given.positive, given.drop_last) == (value, value in ("yes", "on"))


@pytest.mark.parametrize(
    "flag",
    ["--data.batch_size=08", "--seed=1:30", "--model.optimizer.lr=010"],
)
def test_a_flag_is_refused_as_a_file_is(flag, capsys):
    assert main(["fit", "--config", "quickstart", flag]) == 2
    text = flag.partition("=")[2]
    assert f"{text} may be read in two ways" in capsys.readouterr().err
