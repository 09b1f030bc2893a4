"""The servers' reports about clients, which are declared beside the servers and nowhere else."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pfl
from lightning_modules.fedas import FedAS
from pfl.cli import catalogue
from tests.helpers import discovery, federation
from tests.helpers.toy import blobs, mlp

METHODS = discovery.methods()
PFL = Path(pfl.__file__).parent


def test_every_server_reports_what_it_declares():
    for method in METHODS:
        toy = federation.Federation(discovery.build(method, mlp()))
        toy.round(0, 1)
        reported = (toy.state.client_report or {}).keys()
        assert reported == toy.server.reports.keys(), method.__name__


def test_it_is_written_with_the_run(tmp_path):
    run = federation.fit(
        FedAS(mlp(), optimizer=federation.SGD), blobs(), 1, default_root_dir=str(tmp_path)
    )
    told = json.loads((run.folder / "environment.json").read_text())["reports"]
    assert told == {"weight": "aggregation weight", "trace": "trace of Fisher information"}


def test_all_that_may_be_reported_is_known_before_a_run():
    catalogue.load()
    known = catalogue.reports()
    assert {"weight", "trace", "confidence", "mix", "own_head", "cluster"} <= {*known}
    assert len(known) == len({*known})


def test_no_code_outside_its_file_names_a_method():
    """Neither a text nor an identifier; docstrings may give examples."""
    names = {method.__name__ for method in METHODS}
    for file in PFL.rglob("*.py"):
        tree = ast.parse(file.read_text("utf-8"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        parts = [node for node in ast.walk(tree) if isinstance(node, kinds)]
        docs = {id(node.body[0].value) for node in parts if ast.get_docstring(node) is not None}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in docs:
                words = str(node.value).replace(".", " ").split()
            else:
                words = [getattr(node, "id", None), getattr(node, "attr", None)]
            assert names.isdisjoint(words), f"{file.name}:{node.lineno}"
