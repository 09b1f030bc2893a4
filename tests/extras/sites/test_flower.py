"""Flower carries a run: three terminals as docs/sites.md has them, and what fails on the way."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lightning_modules.fedper import FedPer
from pfl.extras.sites.flower import FlowerEngine, client_command
from tests.extras.sites.terminals import (
    ROOT,
    Terminals,
    blocks,
    fingerprint,
    free_port,
    marks,
    sequential,
)
from tests.helpers.messages import refuses

needs_flower, without_flower = marks("flwr")
SHORT = ["--data.num_clients=2", "--loop.rounds=3"]


@without_flower
def test_without_flower_the_engine_says_what_to_install():
    with pytest.raises(ImportError, match=r"pip install 'pfl-lightning\[flower\]'"):
        FlowerEngine()


def test_numbers_out_of_their_range_are_refused_by_name():
    refuses(FlowerEngine, "at least 1", sites=0)
    refuses(FlowerEngine, "positive", answer_seconds=0.0, start_seconds=-1.0)


def test_a_site_is_encrypted_if_it_has_a_certificate(tmp_path):
    certificate, key = tmp_path / "ca.crt", tmp_path / "key"
    for file in (certificate, key):
        file.touch()
    words, env = client_command("far.example:443", Path("socket"), str(certificate), str(key))
    assert words[:3] == ["flower-supernode", "--superlink", "far.example:443"]
    assert words[words.index("--root-certificates") + 1] == str(certificate)
    assert words[words.index("--auth-supernode-private-key") + 1] == str(key)
    assert words[words.index("--node-config") + 1] == 'socket="socket"'
    assert "--insecure" not in words
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    words, _ = client_command("127.0.0.1:9000", Path("socket"), None, None)
    assert "--insecure" in words


@pytest.fixture
def terminals(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "my_site.yaml").write_text(blocks("yaml")[0])
    found = Terminals(tmp_path, FLWR_HOME=str(tmp_path / "flower"))
    yield found
    found.end()


def first_terminal(terminals):
    """Return the page's lines of the first terminal, with a port that is free: set-up and run."""
    text = next(block for block in blocks("text") if "flower-superlink" in block)
    port = free_port()
    text = text.replace("9000", str(port))
    file = terminals.folder / "my_site.yaml"
    file.write_text(file.read_text().replace("9000", str(port)))
    before, run = text.rsplit("pfl fit", 1)
    return before.replace(" &\n", "\n"), shlex.split(run)


@pytest.mark.slow
@needs_flower
def test_the_three_terminals_of_the_page(terminals):
    before, run = first_terminal(terminals)
    terminals.start("link", "bash", "-c", before)
    terminals.pfl("run", "fit", *run, "--loop.progress=false")
    first, second, exporting = (block for block in blocks("bash") if "pfl site" in block)
    assert exporting.startswith(first.strip())
    for number, words in enumerate((exporting, second)):
        terminals.pfl(f"site{number}", *shlex.split(words)[1:])
    assert terminals.wait("run") == 0, terminals.said("run")
    assert fingerprint(terminals.said("run")) == sequential(terminals, *SHORT)
    for number in (0, 1):
        assert terminals.said(f"site{number}").count("trained") == 3
    assert FedPer.load_from_checkpoint(terminals.folder / "model.ckpt")
