"""Engines of sites are found by their names, which are known without an import of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.cli.config import Experiment
from pfl.cli.explain import UsageError
from pfl.cli.reading import read
from pfl.extras.sites.loopback import LoopbackEngine
from tests.helpers.messages import parts

QUICK = ["--config", "quickstart"]


def test_a_slip_is_told_with_the_nearest_name_and_a_right_name_is_none():
    told = "'lopback' ~ auto, sequential ~ loopback ~ did you mean 'loopback'"
    with pytest.raises(UsageError, match=parts(told)):
        read("fit", [*QUICK, "--loop.engine=lopback"])
    for word in ("flower", "nvflare", "LoopbackEngine"):
        read("fit", [*QUICK, f"--loop.engine={word}", "--loop.engine.workers=2"])


def engine(*flags):
    words = [*QUICK, *flags]
    read("fit", words)
    return Experiment.parse("fit", words).loop.runner


def test_a_short_name_takes_options_as_a_class_does():
    """In any order of the flags."""
    for words in (["loopback", "2"], ["LoopbackEngine", "2"]):
        flags = ["--loop.engine", words[0], f"--loop.engine.workers={words[1]}"]
        for given in (flags, [flags[0], words[0], *flags[2:]]):
            made = engine(*given)
            assert (type(made), made.workers) == (LoopbackEngine, 2)


def test_options_are_checked_and_no_suggestion_is_what_was_given(tmp_path):
    with pytest.raises(UsageError, match=r"LoopbackEngine has no argument .* 'workers'"):
        engine("--loop.engine=loopback", "--loop.engine.workerz=2")
    file = tmp_path / "engine.yaml"
    file.write_text("loop: {engine: loopback}\n")
    assert engine("--config", str(file), "--loop.engine.workers=2").workers == 2
    file.write_text("loop: {engine: {class_path: loopback}}\n")
    with pytest.raises(UsageError, match=r"no class 'loopback'; did you mean 'LoopbackEngine'"):
        engine("--config", str(file))


def test_an_option_that_a_site_does_not_read_is_refused(tmp_path, monkeypatch, capsys):
    """In its file too, while the file of data that are inspected may be that of a run."""
    monkeypatch.chdir(tmp_path)
    assert main(["site", "--loop.devices=2"]) == 2
    assert "--loop.devices: pfl site ignores this option" in capsys.readouterr().err
    Path("site.yaml").write_text("client: 0\nloop:\n  precision: 32-true\n")
    assert main(["site", "--config", "site.yaml"]) == 2
    said = capsys.readouterr().err
    assert "site.yaml:3: loop.precision: pfl site ignores this option\n" in said
    assert main(["data", "inspect", "--config", "quickstart"]) == 0
