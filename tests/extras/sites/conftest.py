"""Owners' files are written where a test runs."""

import pytest


@pytest.fixture(autouse=True)
def own_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
