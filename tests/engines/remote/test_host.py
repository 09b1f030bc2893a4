"""``pfl site``: what an owner allows, and a run over two owners' own data and settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from threading import Lock

import pytest
import torch
import yaml

from lightning_modules.fedas import FedAS
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from pfl.__main__ import main
from pfl.cli import site as verb
from pfl.cli.config import Experiment
from pfl.cli.parser import make_parser
from pfl.cli.runs import fit
from pfl.engines.remote import nvflare, wire
from pfl.engines.remote.engine import RemoteEngine
from pfl.engines.remote.host import Allowed, Host
from pfl.engines.remote.site import Refusal
from pfl.engines.remote.transport import SiteError
from pfl.federation.run import Callback
from tests.helpers.messages import parts

RUN = {
    "seed": 7,
    "loop": {"rounds": 2, "default_root_dir": None, "progress": False, "engine": "sequential"},
    "model": {
        "class_path": "FedPer",
        "init_args": {"net": {"class_path": "MLP", "init_args": {"hidden": 4}}},
    },
    "data": {
        "class_path": "Digits",
        "init_args": {
            "num_clients": 2,
            "partition": {"class_path": "Dirichlet", "init_args": {"alpha": 0.5}},
            "max_samples": 200,
            "batch_size": 16,
        },
    },
}
PARSING = Lock()
OWNER = {"client": 0, "folder": "site0", "superlink": "127.0.0.1:1", "methods": ["FedPer"]}


def owner(**changed):
    """Write an owner's file, whose data have a batch size of their own, and return it parsed."""
    own = {**RUN["data"]["init_args"]}
    del own["batch_size"]
    content = {**OWNER, "data": {"class_path": "Digits", "init_args": own}, **changed}
    Path("my_site.yaml").write_text(yaml.safe_dump(content))
    return Experiment.parse(make_parser("site"), ["--config", "my_site.yaml"])


def host(client=0, build=None, allowed=None, **changed):
    told = []
    shop = workshop(client=client, **changed)

    def alone(run):
        # A parser changes the working folder while it reads a file.
        with PARSING:
            return (build or shop.build)(run)

    found = Host(
        client,
        client,
        Path(f"site{client}/kept").resolve(),
        allowed or Allowed(("FedPer", "FedAvg", "FedAS")),
        alone,
        told.append,
        shop.export,
    )
    return found, told


def workshop(client=0, **changed):
    folder = Path(f"site{client}").resolve()
    folder.mkdir(exist_ok=True)
    return verb.Workshop(owner(client=client, **changed), folder)


class Hosted(RemoteEngine):
    """Reaches hosts of this process."""

    name = "hosted"

    def __init__(self, hosts):
        super().__init__()
        self.hosts = hosts

    def connect(self, context):
        hosts = self.hosts

        class Here:
            def sites(self):
                return {int(one.answer({"verb": "who"}, b"")): "here" for one in hosts}

            def call(self, client, verb, content):
                return hosts[client].answer({"verb": verb}, content)

            def close(self):
                pass

        return Here()


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")


def ran(*hosts, method="FedPer", **changed):
    """Run the run's configuration, over hosts if there are any."""
    model = {**RUN["model"], "class_path": method}
    content = {**RUN, "model": model, "loop": {**RUN["loop"], **changed}}
    Path("run.yaml").write_text(yaml.safe_dump(content))
    found = Experiment.parse(make_parser("fit"), ["--config", "run.yaml"])
    if hosts:
        found.loop.engine = Hosted(hosts)
    return found.loop.fit(found.module, found.data, config=found.text)


def test_sites_that_build_what_the_server_names_give_the_sequential_bits():
    (one, told), (other, _) = host(0), host(1)
    assert ran(one, other).fingerprint == ran().fingerprint
    assert told[0] == "a server asks for FedPer, 2 rounds"
    assert [line.split(",")[0] for line in told[1:]] == ["round 1: trained", "round 2: trained"]
    # What was built lies before the owner; callbacks and folders of the server's are no part of it.
    built = yaml.safe_load(Path("site0/run.yaml").read_text())
    assert built.keys() == {"seed", "loop", "model", "data"}
    assert built["loop"].keys() == {"precision", "gradient_clip_val", "accelerator"}


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        (Allowed(("FedAvg", "Ditto")), "the owner ~ FedAvg, Ditto ~ FedPer"),
        (Allowed(("FedPer",), most_rounds=1), "the owner ~ 1 rounds ~ 2"),
        (
            Allowed(("FedPer",), upload_megabytes=0.001),
            "the owner ~ 0.001 MB ~ train ~ 0.0014",
        ),
    ],
)
def test_what_the_owner_does_not_allow_ends_the_run_with_both_values(allowed, told):
    (one, said), (other, _) = host(0, allowed=allowed), host(1)
    with pytest.raises(SiteError, match=parts(f"client 0 (here) refuses ~ : {told}")):
        ran(one, other)
    assert re.search(parts(told), said[-1])


def test_rounds_beyond_the_last_are_refused_whatever_the_run_said():
    found, _ = host(allowed=Allowed(("FedPer",), most_rounds=3))
    found._site = object()
    order = wire.Order(0, 4, 9, 1, [], "personal", False, op_threads=1)
    answer = found.answer({"verb": "train"}, wire.written("train", order))
    record, _ = wire.read("train", wire.Report, answer)
    assert record == wire.Failure("refused", "the owner allows 3 rounds; this is round 4")


@pytest.mark.parametrize(
    ("verb", "content", "told"),
    [
        ("train", b"", "no server has said hello yet"),
        ("hello", b"noise", "too few for a message"),
        ("hello", wire.written("hello", wire.Hello({}, False)), "started from Python"),
        ("hello", wire.written("hello", wire.Hello({}, False, "a: [")), "this is not YAML"),
        ("hello", wire.written("hello", wire.Hello({}, False, "a: 1")), "lacks model, data or"),
    ],
)
def test_other_messages_are_refused_in_words(verb, content, told):
    found, _ = host()
    record, _ = wire.read(verb, wire.Report, found.answer({"verb": verb}, content))
    assert told in record.message


@pytest.mark.parametrize(
    "model",
    [
        {"class_path": "os.system"},
        {"class_path": "FedPer", "init_args": {"net": {"class_path": "my_code.Net"}}},
        {"class_path": "FedPer", "init_args": {"net": ["my_code.Net"]}},
    ],
)
def test_a_server_names_nothing_of_the_owners_own(model):
    """A module of the working folder is not even imported."""
    Path("my_code.py").write_text("open('imported', 'w')\nclass Net: pass\n")
    with pytest.raises(Refusal, match=r"the run's method .*names (os|my_code)"):
        workshop().build({**RUN, "model": model})
    assert not Path("imported").exists()


def test_the_same_hello_builds_once():
    built = []

    def build(run):
        built.append(run["seed"])
        return shop.build(run)

    shop = workshop()
    (one, _), (other, _) = host(0, build=build), host(1)
    ran(one, other)
    ran(one, other)
    assert built == [7]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"superlink": None}, "give either kit, NVFlare's startup kit, or superlink"),
        ({"kit": "kit"}, "give either kit, NVFlare's startup kit, or superlink"),
        ({"superlink": "somewhere"}, "superlink: expected host:port, got somewhere"),
        ({"root_certificates": "ca.crt"}, "root_certificates: there is no file ca.crt"),
        ({"superlink": None, "kit": "kit"}, "kit is no startup kit of a site"),
        ({"client": 2}, "local: the data have the clients 0 to 1, not 2"),
        ({"kits": "kit"}, "kits"),
    ],
)
def test_a_mistake_of_the_owner_is_told_in_one_line(changed, told, capsys):
    owner_file = {**OWNER, "data": RUN["data"], **changed}
    Path("my_site.yaml").write_text(yaml.safe_dump(owner_file))
    assert main(["site", "--config", "my_site.yaml"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_kit_that_does_not_allow_the_job_is_refused(tmp_path):
    for name in ("startup/fed_client.json", "local/resources.json.default"):
        file = tmp_path / "kit" / name
        file.parent.mkdir(parents=True)
        file.write_text('{"class_allow_list": ["nvflare.collab.runtime."]}')
    with pytest.raises(
        ValueError,
        match=parts("resources.json.default ~ pfl.engines.remote.nvflare_job. ~ class_allow_list"),
    ):
        nvflare.client_command(tmp_path / "kit", tmp_path / "door")


@pytest.mark.parametrize("method", [FedAS, FedAvg, FedPer])
def test_an_owner_gets_the_model_that_was_tested_last(method):
    """Tested after training, as the global model, and after the broadcast; the bits stay."""
    (one, _), (other, _) = host(0, export="model.ckpt"), host(1)
    run = ran(one, other, method=method.__name__)
    assert run.fingerprint == ran(method=method.__name__).fingerprint
    data = owner().data
    test = data.split(0, "test")
    batch = test.batch(torch.arange(len(test)))
    model = method.load_from_checkpoint("model.ckpt").eval()
    with torch.inference_mode():
        right = (model(batch.x).argmax(1) == batch.y).double().mean().item()
    assert right == pytest.approx(run.latest.clients[0]["test/personal/acc"])
    assert not Path("site1/model.ckpt").exists()


def test_a_table_s_scale_lies_beside_the_owner_s_model():
    lines = ["hospital,age,ill", *(f"{n % 2},{20 + n % 50},{n % 3 == 0:d}" for n in range(80))]
    Path("table.csv").write_text("\n".join(lines))
    options = {"path": "table.csv", "target": "ill", "client_column": "hospital", "task": "binary"}
    shop = workshop(export="model.ckpt", data={"class_path": "TabularData", "init_args": options})
    data = {"class_path": "TabularData", "init_args": {**options, "batch_size": 16}}
    shop.export(shop.build({**RUN, "data": data}))
    assert "moments" in json.loads(Path("site0/transforms.json").read_text())


def test_an_owner_s_full_disk_does_not_end_the_run(capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pfl.core.export.tensor_file.write", full)
    (one, _), (other, _) = host(0, export="model.ckpt"), host(1)
    assert ran(one, other).round == 2
    assert re.search("the model was not written: .*No space left", capsys.readouterr().out)


def test_a_model_replaces_no_other_file():
    Path("notes.txt").write_text("of the owner")
    with pytest.raises(ValueError, match=r"notes\.txt exists and is no exported model"):
        workshop(export="notes.txt")


def test_a_site_that_is_started_anew_goes_on_where_it_was():
    (one, _), (other, _) = host(0), host(1)
    run = ran(one, other)
    anew, _ = host(0)
    content = wire.written("state_hash", wire.Empty())
    answers = [one.answer({"verb": "state_hash"}, content)]
    one.close()
    answers += [anew.answer({"verb": "state_hash"}, content)]
    assert answers[0] == answers[1]
    record, _ = wire.read("state_hash", wire.Versions, answers[1])
    assert [version.round for version in record.versions] == [1, 2]
    assert run.round == 2


class Stop(Callback):
    """Interrupts the run in its second round."""

    def on_round_end(self, run, result):
        raise KeyboardInterrupt


def test_a_resumed_run_finds_the_states_that_sites_keep():
    Path("run.yaml").write_text(yaml.safe_dump(RUN))
    (one, _), (other, _) = host(0), host(1)

    def again(*words, callbacks=()):
        found = Experiment.parse(make_parser("fit"), ["--config", "run.yaml", *words])
        found.loop.engine = Hosted((one, other))
        found.loop.callbacks += callbacks
        return found.loop.fit(found.module, found.data, found.values.ckpt_path, found.text)

    with pytest.raises(KeyboardInterrupt):
        again("--loop.default_root_dir=runs", callbacks=[Stop()])
    (run,) = Path("runs").glob("*/*")
    resumed = again("--loop.default_root_dir=runs", "--ckpt_path", str(run))
    assert resumed.fingerprint == fit(["--config", "run.yaml"]).fingerprint
