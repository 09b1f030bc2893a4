"""NVFlare carries a run: real processes of a provisioned project."""

from __future__ import annotations

import json
import subprocess

import pytest

from pfl.extras.sites.nvflare import CLASSES, NVFlareEngine, write_job
from tests.extras.sites.terminals import (
    QUICK,
    Terminals,
    blocks,
    fingerprint,
    marks,
    owner,
    sequential,
)
from tests.helpers.messages import parts

needs_nvflare, without_nvflare = marks("nvflare")
SHORT = ["--data.num_clients=3", "--loop.rounds=3"]


@without_nvflare
def test_without_nvflare_the_engine_says_what_to_install():
    with pytest.raises(ImportError, match=r"pip install 'pfl-lightning\[nvflare\]'"):
        NVFlareEngine()


@needs_nvflare
def test_a_kit_that_is_none_is_refused():
    for kit in ("elsewhere", None):
        with pytest.raises(ValueError, match=parts(f"kit: ~ startup kit ~ {kit} ~ loopback")):
            NVFlareEngine(kit=kit)


def test_a_job_names_allowed_classes_and_brings_no_code(tmp_path):
    job = write_job(tmp_path, 3, 60.0)
    assert sorted(path.name for path in job.rglob("*") if path.is_file()) == [
        *("config_fed_client.json", "config_fed_server.json", "meta.json")
    ]
    assert json.loads((job / "meta.json").read_text())["min_clients"] == 3
    texts = [
        (job / "app/config" / f"config_fed_{end}.json").read_text() for end in ("server", "client")
    ]

    def paths(value):
        if isinstance(value, dict):
            yield from [value["path"]] if "path" in value else []
            value = list(value.values())
        for item in value if isinstance(value, list) else []:
            yield from paths(item)

    named = [path for text in texts for path in paths(json.loads(text))]
    assert len(named) == 4
    assert all(path.startswith(CLASSES) for path in named)
    # Those that the page tells to list.
    told = next(block for block in blocks("python") if "class_allow_list" in block)
    assert all(f'"{name}"' in told for name in CLASSES)


@pytest.fixture
def terminals(tmp_path):
    found = Terminals(tmp_path)
    yield found
    found.end()


@pytest.fixture
def kits(terminals, monkeypatch):
    """Provision a project of a server and three sites, and list our classes as the page does."""
    workspace = terminals.folder / "poc"
    env = {**terminals.env, "NVFLARE_POC_WORKSPACE": str(workspace)}
    done = subprocess.run(
        ["nvflare", "poc", "prepare", "-n", "3"], env=env, capture_output=True, timeout=120
    )
    (found,) = workspace.glob("*/prod_00")
    assert done.returncode == 0
    monkeypatch.chdir(found)
    exec(next(block for block in blocks("python") if "class_allow_list" in block), {})
    return found


def site(terminals, kits, number):
    file = terminals.folder / f"site{number}.yaml"
    kit = str(kits / f"site-{number + 1}")
    text = owner(number, superlink=None, kit=kit, most_rounds=None)
    file.write_text(text.replace("num_clients: 2", "num_clients: 3"))
    terminals.pfl(f"site{number}", "site", "--config", str(file))


def started(terminals, kits):
    """Start the server and three sites; return the words of a run over them."""
    terminals.start("server", "bash", str(kits / "server/startup/sub_start.sh"), "--once")
    for number in range(3):
        site(terminals, kits, number)
    engine = ["--loop.engine=NVFlareEngine", f"--loop.engine.kit={kits / 'admin@nvidia.com'}"]
    return [*QUICK, *engine, "--loop.progress=false"]


@pytest.mark.slow
@needs_nvflare
def test_three_sites_of_a_project_survive_a_killed_server_and_a_killed_site(terminals, kits):
    run = [*started(terminals, kits), "--loop.checkpoint_every=1"]
    wanted = sequential(terminals, *SHORT)
    terminals.pfl("run", "fit", *run, *SHORT)
    assert terminals.wait("run") == 0, terminals.said("run")
    assert fingerprint(terminals.said("run")) == wanted

    longer = ["--data.num_clients=3", "--loop.rounds=100", "--loop.name=killed"]
    terminals.pfl("killed", "fit", *run, *longer)
    terminals.wait_for("site0", "round 5: trained")
    terminals.kill("killed")
    terminals.pfl("again", "fit", *run, *longer, "--ckpt_path", "last")
    terminals.wait_for("site2", "round 60: trained")
    terminals.kill("site2")
    assert terminals.wait("again") == 2
    assert "site 2 is gone" in terminals.said("again")
    site(terminals, kits, 2)
    terminals.pfl("last", "fit", *run, *longer, "--ckpt_path", "last")
    assert terminals.wait("last", 400) == 0, terminals.said("last")
    longer = longer[:2]
    assert fingerprint(terminals.said("last")) == sequential(terminals, *longer)
