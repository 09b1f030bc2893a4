"""A run that is made once for the tests of a file, and copied for each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pfl.__main__ import main


@pytest.fixture(scope="module")
def finished(request, tmp_path_factory):
    """The folder of a run of ``FIT``: what a file of tests gives to ``pfl fit``.

    Its ``CONFIG``, if there is one, is the text of ``c.yaml``.
    """
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WANDB_MODE", "disabled")
        if text := getattr(request.module, "CONFIG", ""):
            Path("c.yaml").write_text(text)
        assert main(["fit", *request.module.FIT]) == 0
    return folder


@pytest.fixture
def run(finished, own_folder):
    """The folder of the run, in the test's own folder."""
    shutil.copytree(finished, own_folder, dirs_exist_ok=True)
    (folder,) = Path("runs").glob("*/*")
    return folder
