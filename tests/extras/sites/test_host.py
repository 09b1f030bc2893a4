"""``pfl site``: what an owner allows, and a run over two owners' own data and settings."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torchmetrics import MeanMetric

from datamodules import Digits
from lightning_modules.fedas import FedAS
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.nets import MLP
from pfl.__main__ import main
from pfl.cli.config import Experiment
from pfl.disk import container
from pfl.disk.container import ContainerError
from pfl.engines.transport import wire
from pfl.extras.sites import command, nvflare
from pfl.extras.sites.site import Allowed, Refusal, Site
from pfl.extras.sites.transport import SiteError
from pfl.extras.sites.words import without_folders
from pfl.imports.trust import Trust
from tests.extras.sites.asking import RUN as RUN_KEY
from tests.extras.sites.asking import hello, order, read
from tests.extras.sites.hosts import OWNER, RUN, host, owner, ran, workshop
from tests.helpers.extras import needs
from tests.helpers.federation import contexts
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp


class OwnersData(Digits):
    """A data set of the owner's own code."""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # What a site must not import could be.
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "disabled")


def test_sites_that_build_what_the_server_names_give_the_sequential_bits():
    """Also where the owner allows no round more: the last tests are of the last round."""
    (one, told), (other, _) = host(0, allowed=Allowed(("FedPer",), most_rounds=2)), host(1)
    assert ran(one, other).fingerprint == ran().fingerprint
    assert told[0] == "a server requests FedPer, 2 rounds"
    assert [line.split(",")[0] for line in told[1:]] == ["round 1: trained", "round 2: trained"]
    # What was built lies before the owner; callbacks and folders of the server's are no part of it.
    built = yaml.safe_load(Path("site0/run.yaml").read_text())
    assert built.keys() == {"seed", "loop", "model", "data"}
    assert built["loop"].keys() == {"precision", "gradient_clip_val", "features", "accelerator"}


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        (Allowed(("FedAvg", "Ditto")), "the owner ~ FedAvg, Ditto ~ FedPer"),
        (Allowed(("FedPer",), most_rounds=1), "the owner ~ 1 rounds ~ 2"),
        (
            Allowed(("FedPer",), upload_megabytes=0.001),
            "the owner ~ 0.001 MB ~ train ~ 0.0018",
        ),
    ],
)
def test_what_the_owner_does_not_allow_ends_the_run_with_both_values(allowed, told):
    (one, said), (other, _) = host(0, allowed=allowed), host(1)
    with pytest.raises(SiteError, match=parts(f"client 0 (here) refuses ~ : {told}")):
        ran(one, other)
    assert re.search(parts(told), said[-1])


@pytest.mark.parametrize("held", ["cached", "computed"])
def test_sites_compute_features_of_a_frozen_part_as_a_simulation_does(held, monkeypatch):
    """Once for each sample or in each step, in batches of other sizes, which moves last bits."""
    inner = {"class_path": "MLP", "init_args": {"hidden": [40, 30]}}
    net = {"class_path": "FrozenParts", "init_args": {"net": inner, "patterns": ["backbone.*"]}}
    monkeypatch.setitem(RUN, "model", {"init_args": {"net": net}})
    alone = ran(method="FedAvg", features=held)
    hosted = ran(host(0)[0], host(1)[0], method="FedAvg", features=held)
    assert hosted.fingerprint == alone.fingerprint
    assert ("features" in hosted.header) == ("features" in alone.header) == (held == "cached")


@pytest.fixture
def autoencoders(monkeypatch):
    net = {"class_path": "tests.any_module.modules.Autoencoder"}
    model = {"class_path": "FedPer", "init_args": {"personal_layers": 1, "net": net}}
    monkeypatch.setitem(RUN, "model", model)


@pytest.mark.usefixtures("autoencoders")
def test_a_module_with_steps_of_its_own_is_refused_by_owners_who_have_not_installed_it():
    with pytest.raises(SiteError) as refused:
        ran(host(0)[0], host(1)[0])
    assert re.search(
        r"modules\.Autoencoder, .* a plug-in that is installed here$", str(refused.value)
    )


@pytest.mark.usefixtures("autoencoders")
def test_a_module_with_steps_of_its_own_has_the_sequential_bits_at_hosts(monkeypatch):
    monkeypatch.setattr(command, "_OF_SERVER", Trust(own=("tests.any_module",)))
    alone, hosted = ran(), ran(host(0)[0], host(1)[0])
    assert hosted.fingerprint == alone.fingerprint
    for name in ("test/personal/mse", "log/train/mse"):
        assert hosted.history[-1][name] == alone.history[-1][name]


def test_rounds_beyond_the_last_are_refused_whatever_the_run_said(tmp_path):
    found = contexts(FedPer(mlp()), blobs())
    site = Site(found, 0, tmp_path, allowed=Allowed(most_rounds=3))
    asked = order(round=4, rounds=9, splits=[])
    for name, form in (("train", wire.Report), ("test", wire.Marks)):
        content = wire.written(name, asked)
        record, _ = read(name, form, site.answer(name, content))
        told = "the owner allows 3 rounds; this is round 4"
        known = wire.identity(asked, content)
        assert record == wire.Failure(**known, kind="refused", message=told)


def test_a_failure_is_one_of_its_question_alone(tmp_path):
    """Last round's "lost" would restart a client; who could not read a question says only that."""
    site = Site(contexts(FedPer(mlp()), blobs()), 0, tmp_path, allowed=Allowed(most_rounds=3))
    orders = [order(round=number, rounds=9, splits=[]) for number in (4, 5)]
    contents = [wire.written("train", one) for one in orders]
    answers = [site.answer("train", content) for content in contents]
    for index, (asked, content) in enumerate(zip(orders, contents, strict=True)):
        identity = wire.identity(asked, content)
        record, _ = wire.answered("train", wire.Report, answers[index], identity)
        assert record.kind == "refused"
        with pytest.raises(ContainerError, match=f"round {5 - index}"):
            wire.answered("train", wire.Report, answers[1 - index], identity)
    damaged = site.answer("train", contents[0][:-1])
    with pytest.raises(ContainerError, match="could not be read there: the header"):
        wire.answered("train", wire.Report, damaged, identity)


def test_a_goodbye_is_one_of_its_run(tmp_path):
    """That of an earlier server, which arrives late, is not one of the run that goes on."""
    site = Site(contexts(FedPer(mlp()), blobs()), 0, tmp_path)
    site.answer("hello", hello(site._facts))
    for run, right in (("1" * 32, False), (RUN_KEY, True)):
        question = wire.Question(run=run, client=0, round=0)
        content = wire.written("bye", question)
        known = wire.identity(question, content)
        record, _ = wire.answered("bye", wire.Answer, site.answer("bye", content), known)
        assert (record == wire.Answer(**known)) is right


@pytest.mark.parametrize(
    ("verb", "content", "told"),
    [
        ("train", b"", "no server has sent hello yet"),
        ("hello", b"noise", "5 bytes are not a message: too few"),
        ("hello", hello(), "started from Python"),
        ("hello", hello(config="a: ["), "this is not YAML"),
        ("hello", hello(config="a: 1"), "lacks model, data or"),
    ],
)
def test_other_messages_are_refused_in_words(verb, content, told):
    found, _ = host()
    record, _ = read(verb, wire.Report, found.answer({"verb": verb}, content))
    assert told in record.message


class OwnersNet(MLP):
    """A network of the owner's own code."""


class OwnersMetric(MeanMetric):
    """A metric of the owner's own code."""


def refused(told, model=RUN["model"], loop=(), **options):
    """Expect a run with some options of the data to be refused, without an import of its code."""
    code = f"open({str(Path('imported').resolve())!r}, 'w')\nclass Net: pass\n"
    for name in ("my_code", "my-code", "é"):
        Path(f"{name}.py").write_text(code)
    data = {**RUN["data"], "init_args": {**RUN["data"]["init_args"], **options}}
    run = {**RUN, "model": model, "loop": {**RUN["loop"], **dict(loop)}, "data": data}
    with pytest.raises(Refusal, match=parts(f"the run's method ~ {told}")):
        workshop().build(run)
    assert not Path("imported").exists()


NAMED = {"class_path": "my_code.Net"}


@pytest.mark.parametrize(
    "options",
    [
        {"net": NAMED},
        {"net": "my_code.Net"},
        {"net": [[NAMED]]},
        {"net": {"_target_": "my_code.Net"}},
        {"net": {"class_path": "MLP", "dict_kwargs": {"hidden": NAMED}}},
        {"net": {"class_path": "MLP", "init_args": {"hidden": NAMED}}},
        {"net.class_path": "my_code.Net"},
        {"net": "MLP", "optimizer": NAMED},
        {"net": {"class_path": "é.Net"}},
    ],
)
def test_a_server_names_nothing_of_the_owners_own(options):
    """No method, no network and no optimizer; a module is not even imported."""
    refused("names my_code.Net", NAMED)
    refused("names ~ .Net", {"class_path": "FedPer", "init_args": options})


@pytest.mark.parametrize(
    "text",
    [
        "{class_path: my_code.Net}",
        '{"class_path": "my_code.Net"}',
        "- my_code.Net",
        "my_code.Net # a comment",
        "|\n my_code.Net",
        "&a my_code.Net",
        "!!python/object/apply:os.system [touch imported]",
    ],
)
def test_nor_in_text_that_a_parser_reads(text):
    told = "expected plain text"
    refused(told, {"class_path": "FedPer", "init_args": {"net": text}})
    refused(told, loop={"precision": text})
    refused(told, metrics=[text])
    refused(told, batch_size=text)


def of_net(net):
    return {"model": {"class_path": "FedPer", "init_args": {"net": net}}}


def transform(name):
    path = "torchvision.transforms.v2.Lambda"
    return of_net({"class_path": path, "init_args": {"lambd": name}})


FOREIGN = [
    # Already imported, or of no module that has a name.
    (
        of_net({"class_path": "OwnersNet", "init_args": {"hidden": 4}}),
        "model.net: there is no class 'OwnersNet'",
    ),
    (of_net("my-code.Net"), "model.net"),
    ({"metrics": ["my-code.Net"]}, "'my-code.Net' is not a metric"),
    # What runs commands or downloads.
    (of_net({"class_path": "os.system", "init_args": {"command": "touch imported"}}), "names os"),
    (of_net({"class_path": "torch.hub.load"}), "names torch.hub.load"),
    (of_net({"class_path": "LightningModule"}), "there is no class 'LightningModule'"),
    (transform("os.abort"), "names os.abort"),
    (transform("pfl.core.export.write"), "the function pfl.core.export.write is not allowed here"),
    (transform("pfl.imports.plugins.installed"), "plugins.installed is not allowed"),
    (
        of_net({"class_path": "torchvision.models.resnet18", "init_args": {"weights": "DEFAULT"}}),
        "weights may be downloaded only with",
    ),
    # A plug-in of Lightning's, and a metric of the owner's.
    *(({"loop": {"precision": word}}, "names") for word in (NAMED, "my_code.Net")),
    ({"loop": {"precision": "lightning.fabric.MixedPrecision"}}, "names"),
    ({"metrics": [{"metric": f"{__name__}.OwnersMetric"}]}, "names ~ OwnersMetric"),
    ({"metrics": [[f"{__name__}.OwnersMetric"]]}, "names ~ OwnersMetric"),
    ({"metrics": [{"metric": "my_code.Net"}]}, "names my_code.Net"),
]


@pytest.mark.parametrize("case", range(len(FOREIGN)))
def test_nor_anything_else_that_is_not_the_projects(case):
    options, told = FOREIGN[case]
    refused(told, **options)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("batch_size", "abc", "expected int, got abc"),
        ("batch_size", 0, "batch_size must be at least 1, got 0"),
        ("drop_last", [1], "expected bool"),
        ("metrics", "abc", "expected list, got abc"),
    ],
)
def test_options_of_the_run_are_checked_as_those_of_a_configuration(option, value, told):
    refused(told, **{option: value})
    # The owner's data are as they were.
    builder = workshop()
    before = vars(builder._owner.data)[option]
    with pytest.raises(Refusal):
        builder.build({**RUN, "data": {"init_args": {option: value}}})
    assert vars(builder._owner.data)[option] == before


def test_an_owner_s_own_data_set_stays_allowed():
    """Only what the server names is restricted."""
    init_args = {"num_clients": 2, "partition": "IID", "max_samples": 200}
    data = {"class_path": f"{__name__}.OwnersData", "init_args": init_args}
    context = workshop(data=data).build(RUN)
    assert type(context.data) is OwnersData
    assert context.data.batch_size == 16


def test_the_same_hello_builds_once():
    built = []

    def build(run):
        built.append(run["seed"])
        return builder.build(run)

    builder = workshop()
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
        ({"superlink": None, "kit": "kit"}, "kit is not the startup kit of a site"),
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
        match=parts("resources.json.default ~ pfl.extras.sites.nvflare_job. ~ class_allow_list"),
    ):
        nvflare.client_command(tmp_path / "kit", tmp_path / "socket")


@pytest.mark.parametrize("method", [FedAS, FedAvg, FedPer])
def test_an_owner_gets_the_model_that_was_tested_last(method):
    """Evaluated after training, as the global model, and after the broadcast; the bits stay."""
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


@needs("tables")
def test_a_table_s_scale_lies_beside_the_owner_s_model():
    lines = ["hospital,age,ill", *(f"{n % 2},{20 + n % 50},{n % 3 == 0:d}" for n in range(80))]
    Path("table.csv").write_text("\n".join(lines))
    options = {"path": "table.csv", "target": "ill", "client_column": "hospital", "task": "binary"}
    builder = workshop(
        export="model.ckpt", data={"class_path": "TabularData", "init_args": options}
    )
    data = {"class_path": "TabularData", "init_args": {**options, "batch_size": 16}}
    builder.export(builder.build({**RUN, "data": data}))
    builder.accept()
    assert "moments" in json.loads(Path("site0/transforms.json").read_text())


def test_an_owner_s_full_disk_does_not_end_the_run(capsys, monkeypatch):
    def full(*_, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pfl.core.export.written", full)
    (one, _), (other, _) = host(0, export="model.ckpt"), host(1)
    assert ran(one, other).round == 2
    assert re.search("the model was not written: .*No space left", capsys.readouterr().out)


def test_a_model_replaces_no_other_file():
    Path("notes.txt").write_text("of the owner")
    with pytest.raises(ValueError, match=r"notes\.txt exists and is not an exported model"):
        workshop(export="notes.txt")


def test_clients_are_real_unless_their_sites_are_in_the_process_of_the_run():
    """So noise that protects them must not follow from a seed."""
    assert ran(host(0)[0], host(1)[0]).data.real
    assert not ran(engine="loopback").data.real


def test_a_site_that_is_started_anew_goes_on_where_it_was():
    (one, _), (other, _) = host(0), host(1)
    run = ran(one, other)
    anew, _ = host(0)
    kept = run.keeper.tickets[0]
    told = container.unpack(Path("site0", "kept", "hello").read_bytes())[0]["hello"]
    asked = wire.written("test", order(run=told["run"], round=2, kept=kept))
    answers = [one.answer({"verb": "test"}, asked)]
    one.close()
    answers += [anew.answer({"verb": "test"}, asked)]
    assert answers[0] == answers[1]
    assert "acc" in read("test", wire.Marks, answers[1])[0].scores["test"].names
    assert [file.name[0] for file in sorted(Path("site0").rglob("*.state"))] == ["1", "2"]


def test_a_connection_that_ends_is_a_failure_in_its_own_words(monkeypatch, capsys):
    ends = [sys.executable, "-c", "raise SystemExit('no such server')"]
    monkeypatch.setattr("pfl.extras.sites.command._connection", lambda *_: (ends, {}))
    owner()
    assert main(["site", "--config", "my_site.yaml"]) == 1
    log = Path("site0", "connection.log")
    assert f"the connection ended: no such server (see {log})" in capsys.readouterr().err


def everything():
    """Return the files and folders here with their sizes."""
    return {str(path): path.stat().st_size for path in Path().rglob("*") if path.is_file()}, {
        str(path) for path in Path().rglob("*") if path.is_dir()
    }


def greeted(found, run, facts=None, counts=False):
    """Return the answer to a hello: a failure, or an introduction."""
    content = hello(facts, counts, yaml.safe_dump(run))
    answer = found.answer({"verb": "hello"}, content)
    return read("hello", wire.Introduction, answer)[0]


def changed(part, **options):
    return {**RUN, part: {**RUN[part], "init_args": {**RUN[part]["init_args"], **options}}}


UNFIT = [
    changed("model", net={"class_path": "MLP", "init_args": {"hidden": "many"}}),
    changed("model", net={"class_path": "MLP", "init_args": {"hiden": 4}}),
    changed("model", net={"class_path": "MLP", "init_args": {"hidden": -4}}),
    changed("model", net={"class_path": "NoSuch"}),
    changed("model", net={"class_path": "my.Net"}),
    changed("model", optimizer={"class_path": "torch.optim.LBFGS"}),
    changed("model", net="!!python/object/apply:os.system [ls]"),
    changed("data", batch_size=0, metrics=["torchmetrics.F1Score"]),
    changed("data", batch_size=[1]),
    changed("data", metrics=["torchmetrics.NoSuch"]),
    changed("data", metrics=[3], batch_size=7),
    {**RUN, "model": {"class_path": "FedPer"}},
    {**RUN, "seed": "text"},
    {**RUN, "loop": {**RUN["loop"], "precision": "no"}},
    {**RUN, "loop": {**RUN["loop"], "gradient_clip_val": "x"}},
    RUN,  # No facts of the server's: they differ.
]


@pytest.mark.parametrize("number", range(len(UNFIT)))
def test_a_refused_hello_leaves_nothing_and_tells_no_path(number, tmp_path):
    """Neither folders of states nor options of the owner's data."""
    found, _ = host(0)
    shop = found._accepted.__self__
    before, data = everything(), {**vars(shop._owner.data)}
    failure = greeted(found, UNFIT[number])
    assert isinstance(failure, wire.Failure)
    assert failure.kind == "refused"
    assert everything() == before
    now = vars(shop._owner.data)
    assert now.keys() == data.keys()
    assert all(now[name] is data[name] for name in data)
    assert str(tmp_path) not in failure.message
    assert not re.search(r"(?<![\w.])/\w+/", failure.message)
    # Nor does it leave a site that answers.
    record, _ = read("train", wire.Report, found.answer({"verb": "train"}, b""))
    assert "no server has sent hello yet" in record.message


def test_an_accepted_run_follows_a_refused_one():
    (one, _), (other, _) = host(0), host(1)
    for run in UNFIT[-4:]:
        assert isinstance(greeted(one, run), wire.Failure)
    assert ran(one, other).fingerprint == ran().fingerprint


def test_paths_are_shortened_to_their_last_part(tmp_path):
    spaced = tmp_path / "Dr Who" / "my table.csv"
    for text, right in [
        (f"{spaced}: no column", "my table.csv: no column"),
        (f"see {spaced.parent}", "see Dr Who"),
        ("'/home/x/a.yaml', line 3", "'a.yaml', line 3"),
        (r"C:\Users\x\a.yaml: no", "a.yaml: no"),
        ("~/data/a.csv and /etc/passwd", "a.csv and passwd"),
        ("1/2 of a/b, 3 / 4; https://x.org/a", "1/2 of a/b, 3 / 4; https://x.org/a"),
    ]:
        assert without_folders(text, [spaced, spaced.parent]) == right


def test_a_large_method_is_refused_before_it_takes_memory(monkeypatch):
    net = {"class_path": "MLP", "init_args": {"hidden": 10**8}}
    build = workshop().build
    made = []
    # Undone alone, as the folder that tests work in is a patch of its own.
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "module", property(made.append))
        said = parts("most_parameters=100,000,000 ~ has 7,500,000,010 ")
        with pytest.raises(Refusal, match=said):
            build(changed("model", net=net))
        # 64 x 4 + 4 parameters of the hidden layer, and 4 x 10 + 10 of the head.
        few = workshop(most_parameters=309).build
        with pytest.raises(Refusal, match=parts("most_parameters=309 ~ has 310 parameters")):
            few(RUN)
    assert not made
    assert workshop(most_parameters=310).build(RUN)
    with pytest.raises(Refusal, match="cannot be built here"):
        build(changed("model", net={"class_path": "MLP", "init_args": {"hidden": 10**18}}))
