"""Portable runs: which processes are, how one becomes so, and where none can be."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

from lightning_modules.fedavg import FedAvg
from pfl.__main__ import main
from pfl.loop import FederatedLoop
from pfl.verification import portable
from tests.helpers.toy import blobs, mlp

linux = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="needs x86-64 Linux"
)


def test_a_process_is_portable_with_the_whole_environment_alone(monkeypatch):
    for name, value in portable.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert portable.active()
    portable.enter()
    for name, value in portable.ENVIRONMENT.items():
        monkeypatch.setenv(name, "2")
        assert not portable.active(), name
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("began", "ended"), [(True, True), (True, False), (False, True)])
def test_a_run_is_portable_if_all_its_rounds_are(began, ended, tmp_path, monkeypatch):
    for rounds, now in enumerate((began, ended), 1):
        monkeypatch.setattr(portable, "active", lambda now=now: now)
        loop = FederatedLoop(rounds=rounds, default_root_dir=str(tmp_path), progress=False)
        folder = loop.fit(FedAvg(mlp()), blobs(), tmp_path / "r" if rounds == 2 else None).folder
        folder.rename(tmp_path / "r")
    environment = json.loads((tmp_path / "r" / "environment.json").read_text())
    assert environment["portable"] == (began and ended)


@linux
def test_a_process_starts_anew_once_with_its_command_line():
    code = "import sys; from pfl.verification import portable as p; print(1); p.enter(); "
    code += "print(sys.argv)"
    command = [sys.executable, "-c", code, "two words"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["1", "1", "['-c', 'two words']"]


def test_another_machine_is_refused_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert main(["fit", "--config", "quickstart", "--portable"]) == 2
    what = "portable runs need Linux on x86_64, and this is Darwin on arm64"
    assert capsys.readouterr().err == f"pfl fit: error: {what}\n"
    # Portable runs are repeated there as it can be done.
    portable.enter_like([{"portable": True}])
