"""What clients keep stays at their sites: it never travels, and a run resumes by its hashes."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from torch import nn

from lightning_modules.ditto import Ditto
from lightning_modules.fedper import FedPer
from lightning_modules.fedrep import FedRep
from pfl.cli.runs import RUN_REFUSALS
from pfl.core.state import digest
from pfl.disk import container
from pfl.disk.lock import BusyError
from pfl.engines.keeper import NotHereError
from pfl.engines.transport import wire
from pfl.extras.sites.states import KeptVersions
from pfl.extras.sites.transport import LostStateError, SiteError
from pfl.federation import checkpoint
from pfl.federation.resume import FILE
from pfl.loop import FederatedLoop
from tests.extras.sites.asking import read, report
from tests.extras.sites.sites import Recorded, fit, same, small
from tests.helpers.federation import SGD
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

SIZES = (4, 9, 3)


def states(folder):
    """Return what the sites keep, as files and as states."""
    files = sorted(folder.rglob("*.state"))
    return [(file, container.read(file)[1]) for file in files]


def raw(value):
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("method", [FedPer, FedRep, Ditto])
def test_neither_kept_tensors_nor_samples_are_in_the_traffic(method, tmp_path):
    engine = Recorded(tmp_path / "sites")
    # Several steps each: Ditto's first step of the client's own model is the common one's.
    data = blobs((9, 13, 6))
    options = {"default_root_dir": str(tmp_path), "evaluate_at": ["post_local", "post_broadcast"]}
    net = mlp()
    # All its units learn from every sample; a dead one would keep what it was sent.
    net.backbone[1] = nn.Tanh()
    run = fit(method(net, optimizer=SGD), engine, data=data, **options)
    traffic = b"".join(call.sent + call.answer for call in engine.calls)
    kept = [value for _, state in states(tmp_path / "sites") for value in state.values()]
    secret = [raw(row) for value in kept for row in value]
    split = [data.split(client, name) for client in range(3) for name in ("train", "val", "test")]
    secret += [raw(row) for one in split for row in one.x]
    assert len(secret) > 50
    # Of at least two numbers, as chance may send one.
    found = [item for item in secret if len(item) >= 8 and item in traffic]
    assert not found
    # The search finds what does travel.
    assert raw(run.server.shared["net.backbone.0.weight"]) in traffic
    content = (run.folder / FILE).read_bytes()
    assert not [item for item in secret if len(item) >= 8 and item in content]


def test_run_and_checkpoint_have_the_hashes_alone(tmp_path):
    engine = Recorded(tmp_path / "sites")
    run = fit(small(), engine, data=blobs(SIZES), default_root_dir=str(tmp_path))
    at_sites = {digest(state): state for _, state in states(tmp_path / "sites")}
    stored = checkpoint.load(run.folder / FILE)
    assert not stored["kept"]
    tickets = {client: (one.digest, one.round) for client, one in run.keeper.tickets.items()}
    assert stored["tickets"] == tickets
    assert sorted(run.kept) == sorted(tickets) == [0, 1, 2]
    for name, number in tickets.values():
        assert set(at_sites[name]) == {"net.head.weight", "net.head.bias"}
        assert 1 <= number <= 3
    alone = fit(small(), "sequential", data=blobs(SIZES))
    hashes = {client: run.keeper.digest(client) for client in run.kept}
    assert hashes == {client: digest(state) for client, state in alone.kept.items()}


def test_versions_are_the_new_one_and_the_one_it_came_from(tmp_path):
    """Round 2 is lost with the server, which asks for round 1 again; round 3 comes from there."""
    kept = KeptVersions(tmp_path)
    one, two, three, four = ({"w": torch.tensor([float(n)])} for n in range(1, 5))
    first = kept.store(one, 1, None)
    kept.store(two, 2, first)
    third = kept.store(three, 3, first)
    assert kept.versions() == [first, third]
    kept.store(four, 4, third)
    assert torch.equal(kept.load(third)["w"], three["w"])
    with pytest.raises(LostStateError, match=parts("round 1 ~ 3, 4")):
        kept.load(first)


@pytest.mark.parametrize("at", range(1, 16, 2))
def test_a_server_that_ends_at_any_call_resumes_with_its_sites_alive(at, tmp_path):
    """The call of this number does not come through; on a resume everything does."""
    options = {"data": blobs(SIZES), "default_root_dir": str(tmp_path / "runs")}
    calls = []

    def before(client, verb, content):
        if verb in ("train", "test"):
            calls.append(verb)
            if len(calls) == at:
                raise SiteError("the line is dead")

    with pytest.raises(SiteError, match=parts("site ~ is gone (loopback): the line is dead")):
        fit(small(), Recorded(tmp_path / "sites", before), **options)
    found = [*(tmp_path / "runs").rglob("last.ckpt")]
    assert bool(found) == (at > 5)
    ckpt_path = str(found[0]) if found else None
    resumed = fit(small(), Recorded(tmp_path / "sites"), ckpt_path=ckpt_path, **options)
    assert same(resumed, fit(small(), "sequential", data=blobs(SIZES)))


def broken(tmp_path, harm, **options):
    """Run a round, harm the files of client 1, and go on."""
    loop = FederatedLoop(3, engine=Recorded(tmp_path, **options), progress=False)
    runs = []
    for run, result in loop.rounds_of(small(), blobs(SIZES)):
        runs.append(run)
        if result.round == 1:
            for file in (tmp_path / "1").rglob("*.state"):
                harm(file)
    return runs[-1]


def spoil(file):
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(bytes(content))


def swap(file):
    container.write(file, {"round": 1}, {"net.head.bias": torch.zeros(3)})


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (
            lambda file: file.unlink(),
            "round 1 ~ is missing; ~ none",
        ),
        (spoil, "damaged: ~ checksum"),
        (swap, "damaged: ~ another state"),
    ],
)
def test_a_site_that_lost_its_state_says_so_and_stops_the_run(harm, told, tmp_path):
    told = f"client 1 (loopback) ~ client 1 ~ {told} ~ files back ~ on_lost to initial"
    with pytest.raises(LostStateError, match=parts(told)):
        broken(tmp_path, harm)


def test_a_client_may_start_again_from_the_initial_values(tmp_path):
    """The same as a run in which what client 1 keeps is removed after the first round."""
    with pytest.warns(UserWarning, match=parts("initial values")):
        away = broken(tmp_path, lambda file: file.unlink(), on_lost="initial")
    loop = FederatedLoop(3, engine="sequential", progress=False)
    for run, result in loop.rounds_of(small(), blobs(SIZES)):
        if result.round == 1:
            del run.kept[1]
    assert same(away, run)
    engine = Recorded(tmp_path / "anew")
    loop = FederatedLoop(3, engine=engine, progress=False)
    for run, result in loop.rounds_of(small(), blobs(SIZES)):
        if result.round == 1:
            run.kept[1] = {}
    assert same(away, run)


@pytest.mark.parametrize("engine", ["sequential", "sites"])
def test_each_round_is_saved_if_sites_keep_the_states_of_two(engine, tmp_path):
    made = Recorded(tmp_path / "sites") if engine == "sites" else engine
    loop = FederatedLoop(3, engine=made, progress=False, default_root_dir=str(tmp_path / "runs"))
    saved = []
    for run, _ in loop.rounds_of(small(), blobs(SIZES)):
        file = run.folder / FILE
        saved.append(checkpoint.load(file)["round"] if file.exists() else None)
    assert saved == ([None, 1, 2] if engine == "sites" else [None] * 3)


def test_a_state_cannot_be_set_from_the_server(tmp_path):
    loop = FederatedLoop(2, engine=Recorded(tmp_path), progress=False)
    rounds = loop.rounds_of(small(), blobs(SIZES))
    run, _ = next(rounds)
    with pytest.raises(SiteError, match=parts("client 0 ~ at its site")):
        run.kept[0] = {"net.head.weight": torch.zeros(3, 6), "net.head.bias": torch.zeros(3)}
    with pytest.raises(NotHereError, match=parts("client 0 ~ at its site")):
        run.kept[0]


def test_a_personal_model_exists_only_at_its_site(tmp_path):
    loop = FederatedLoop(
        1, engine=Recorded(tmp_path / "sites"), progress=False, default_root_dir=str(tmp_path)
    )
    run = loop.fit(small(), blobs(SIZES))
    folder = str(run.folder)
    with pytest.raises(NotHereError, match=parts("client 1 ~ at its site")):
        loop.personal(small(), blobs(SIZES), folder, 1)
    with pytest.raises(NotHereError, match=parts("client 1 ~ at its site")):
        run.personal(1)


@pytest.mark.parametrize("engine", ["sequential", "threads", "vectorised", "processes"])
def test_no_local_engine_goes_on_without_the_states_at_sites(engine, tmp_path):
    options = {"data": blobs(SIZES), "default_root_dir": str(tmp_path / "runs")}
    folder = str(fit(small(), Recorded(tmp_path / "sites"), 1, **options).folder)
    with pytest.raises(NotHereError, match=parts("client ~ at its site")) as caught:
        fit(small(), engine, 2, ckpt_path=folder, **options)
    # A command says it in a line.
    assert isinstance(caught.value, RUN_REFUSALS)


def test_states_that_are_here_do_not_go_to_sites(tmp_path):
    options = {"data": blobs(SIZES), "default_root_dir": str(tmp_path / "runs")}
    folder = str(fit(small(), "sequential", 1, **options).folder)
    with pytest.raises(SiteError, match=parts("client ~ a run without sites")):
        fit(small(), Recorded(tmp_path / "sites"), 2, ckpt_path=folder, **options)


def test_a_hash_that_is_a_path_leads_nowhere():
    away = {"digest": "../" * 5 + "etc/passwd", "round": 1}
    with pytest.raises(container.ContainerError, match=r"kept.digest: .* match pattern"):
        read(
            "train", wire.Report, container.pack({"train": {**asdict(report()), "kept": away}}, {})
        )


def test_a_link_in_the_place_of_a_state_is_not_followed(tmp_path):
    kept = KeptVersions(tmp_path / "site")
    stored = kept.store({"w": torch.ones(1)}, 1, None)
    (file,) = (tmp_path / "site").glob("*.state")
    file.rename(tmp_path / "away")
    file.symlink_to(tmp_path / "away")
    with pytest.raises(LostStateError, match="is missing"):
        kept.load(stored)
    with pytest.raises(OSError, match="is a link"):
        kept.store({"w": torch.ones(1)}, 1, None)


def test_what_a_killed_site_was_writing_is_removed_and_nothing_else(tmp_path):
    stored = KeptVersions(tmp_path).store({"w": torch.ones(1)}, 1, None)
    (tmp_path / f".{stored.round}-{stored.digest}.state.123").touch()
    (tmp_path / "notes.txt").touch()
    assert KeptVersions(tmp_path).versions() == [stored]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        ".lock",
        f"1-{stored.digest}.state",
        "notes.txt",
    ]


def test_two_sites_never_use_one_folder(tmp_path):
    kept = KeptVersions(tmp_path)
    with pytest.raises(BusyError, match=parts("process ~ working on")):
        KeptVersions(tmp_path)
    kept.close()
    KeptVersions(tmp_path)
