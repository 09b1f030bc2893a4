"""The script of ``pfl completion``, run by bash."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import redirect_stdout

import pytest

from pfl.__main__ import main


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    file = tmp_path_factory.mktemp("completion") / "pfl.sh"
    with file.open("w") as stream, redirect_stdout(stream):
        assert main(["completion", "bash"]) == 0
    return file


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["expo"], {"export"}),
        (["list", "p"], {"partitions"}),
        (["export", "--cl"], {"--client"}),
        (["data", "inspect", "--ou"], {"--out"}),
        (["fit", "--model", "FedPe"], {"FedPer"}),
        (["fit", "--model", "=", "FedPe"], {"FedPer"}),
        (["fit", "--config", "quick"], {"quickstart"}),
    ],
)
def test_a_word_is_completed(file, words, found):
    line = " ".join(f"'{word}'" for word in ("pfl", *words))
    code = f"source {file}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _pfl; "
    done = subprocess.run(
        ["bash", "-c", code + 'echo "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
    )
    assert {*done.stdout.split()} == found
