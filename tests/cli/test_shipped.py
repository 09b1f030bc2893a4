"""Configurations that come with pfl are found by name, and copied without overwriting."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.cli import shipped


@pytest.mark.usefixtures("own_folder")
def test_a_shipped_configuration_is_found_by_its_name():
    assert Path(shipped.config("quickstart")).read_text().startswith("# pfl fit")
    assert Path(shipped.config("baselines/fedper")).name == "fedper.yaml"


@pytest.mark.usefixtures("own_folder")
def test_a_file_of_ones_own_wins():
    Path("quickstart").write_text("")
    assert shipped.config("quickstart") == "quickstart"
    assert shipped.config("no/such.yaml") == "no/such.yaml"


def test_both_forms_of_the_flag_are_read():
    words = ["--seed=3", "--config", "quickstart", "--config=baselines/fedper"]
    one, two, seed = shipped.with_config_files(words)
    assert (Path(one).name, Path(two).name) == ("quickstart.yaml", "fedper.yaml")
    assert (one[:9], two[:9], seed) == ("--config=", "--config=", "--seed=3")
    assert shipped.with_config_files(["--seed", "3"]) == ["--seed", "3"]


def test_init_copies_everything_and_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.yaml").write_text("mine")
    assert main(["init", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert ", 1 existing files kept" in said
    assert said.endswith(f"--config {tmp_path / 'configs' / 'quickstart.yaml'}\n")
    assert (tmp_path / "configs" / "quickstart.yaml").read_text() == "mine"
    copied = {file.relative_to(tmp_path) for file in tmp_path.rglob("*.yaml")}
    names = [path for folder in shipped.FOLDERS for path in (shipped.root() / folder).rglob("*")]
    assert copied == {p.relative_to(shipped.root()) for p in names if p.suffix == ".yaml"}


def test_init_into_what_is_no_folder_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
