"""Private runs as wholes: what they equal, when they end, who is refused, and how they resume."""

import math
import re
from dataclasses import replace

import pytest
import torch

from datamodules.partition.partitioner import IID
from datamodules.tensors import TensorData
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.fedproto import FedProto
from lightning_modules.scaffold import SCAFFOLD
from pfl.core.data_view import DataView
from pfl.core.folds import Uploads
from pfl.core.server import Server
from pfl.core.types import Broadcast, ClientInfo
from pfl.engines.sequential import SequentialEngine
from pfl.extras.privacy import accountant
from pfl.extras.privacy.clients import ClientAccount
from pfl.extras.privacy.privacy import Privacy
from pfl.extras.privacy.refusal import unsupported_reason
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.run import Callback
from pfl.federation.sampling import (
    BernoulliSampler,
    FixedStragglers,
    UniformSampler,
)
from pfl.loop import FederatedLoop
from pfl.results.files import read_table
from pfl.testing import blobs, mlp, normed
from pfl.testing.federation import fit, outcome
from tests.helpers import discovery
from tests.helpers.extras import LOOPBACK, needs
from tests.helpers.messages import parts

POISSON = BernoulliSampler(0.5, minimum=0, train_all=False)
# What weighs uploads is not sent by a private client: then all count equally.
WEIGHED = ("FedAS", "PFedVEM", "PFedVEMVariant")


@pytest.fixture(autouse=True)
def _half_an_epsilon_a_round(monkeypatch):
    """Tell epsilon without the package that computes it."""
    monkeypatch.setattr(accountant, "epsilon", lambda rate, sigma, rounds, delta: rounds / 2)
    monkeypatch.setattr(accountant, "described", lambda: "half a round")


def run(method=FedAvg, privacy=None, rounds=4, sampler=POISSON, net=mlp, **options):
    module = discovery.build(method, net()) if isinstance(method, type) else method
    uplink = None if privacy is None else [privacy]
    return fit(module, rounds=rounds, uplink=uplink, sampler=sampler, **options)


def noisy(**options):
    return Privacy(**{"clip": 1.0, "sigma": 0.5, "delta": 1e-2, **options})


def without_noise(**options):
    return Privacy(math.inf, 0.0, 1e-2, **options)


def test_without_noise_and_clip_it_is_fedavg_with_equal_weights_bit_for_bit():
    everyone = UniformSampler(1.0)
    plain = run(FedAvg(mlp(), weighting="uniform"), sampler=everyone)
    own = run(FedAvg(mlp()), without_noise(), sampler=everyone)
    assert own.fingerprint == plain.fingerprint
    assert own.summary == plain.summary


def refused(module):
    infos = [ClientInfo(client, 1, None, rounds=2) for client in range(3)]
    return unsupported_reason(module, module.server(), infos)


def runnable():
    for method in discovery.methods():
        module = discovery.build(method, mlp())
        if refused(module) is None and method.__name__ not in WEIGHED:
            yield method


@pytest.mark.parametrize("method", [*runnable()], ids=lambda method: method.__name__)
def test_without_noise_and_clip_a_mean_does_what_all_uploads_do(method):
    """Folds of a mean agree with those of equal uploads, in float64."""
    options = {"sampler": UniformSampler(1.0), "precision": "64-true", "engine": "sequential"}
    plain = discovery.build(method, mlp())
    plain.weighting = "uniform"
    plain = run(plain, rounds=2, **options)
    own = run(method, without_noise(), rounds=2, **options)
    for name, value in plain.server.shared.items():
        assert torch.allclose(own.server.shared[name], value, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, adaptive):
    """The adaptive clip goes on from what the last round reported."""
    options = {"clip": 0.1, "sigma": 0.05, "adaptive": adaptive}
    whole = run(SCAFFOLD, noisy(**options), rounds=4)
    place = {"default_root_dir": str(tmp_path), "name": "x"}
    first = run(SCAFFOLD, noisy(**options), rounds=2, **place)
    resumed = run(SCAFFOLD, noisy(**options), rounds=4, ckpt_path=str(first.folder), **place)
    assert outcome(resumed)["history"] == outcome(whole)["history"]
    assert resumed.fingerprint == whole.fingerprint
    clips = [row["server/clip"] for row in whole.history]
    assert (len(set(clips)) > 1) == adaptive


def test_a_resume_in_python_keeps_its_privacy(tmp_path):
    """Or it would tell an epsilon that does not hold for the rounds before; tests tell none."""
    place = {"default_root_dir": str(tmp_path), "name": "x"}
    often = BernoulliSampler(0.6, minimum=0, train_all=False)
    for privacy, others in (
        (None, [(noisy(), POISSON, "loop.uplink.0.sigma None (now 0.5)")]),
        (
            noisy(),
            [
                (None, POISSON, "loop.uplink.0.sigma 0.5 (now None)"),
                (noisy(sigma=0.6), POISSON, "loop.uplink.0.sigma 0.5 (now 0.6)"),
                (noisy(), often, "loop.sampler.probability 0.5 (now 0.6)"),
            ],
        ),
    ):
        begun = run(FedAvg, privacy, rounds=1, **place)
        for other, sampler, message in others:
            options = {"privacy": other, "sampler": sampler, "ckpt_path": str(begun.folder)}
            with pytest.raises(CheckpointError, match=re.escape(message)):
                run(FedAvg, **options, **place)
        assert run(FedAvg, privacy, rounds=2, ckpt_path=str(begun.folder), **place).round == 2
    loop = FederatedLoop(sampler=POISSON, progress=False, **place)
    assert "test/personal/acc" in loop.test(FedAvg(mlp()), blobs(), str(begun.folder))


@pytest.mark.parametrize("engine", ["threads", LOOPBACK])
def test_engines_give_the_same_bits(engine):
    given = noisy(sigma=0.01, adaptive=True)
    assert (
        run(FedPer, given, engine=engine).fingerprint
        == run(FedPer, given, engine="sequential").fingerprint
    )


@needs("papers")
def test_what_a_client_sends_is_shown_to_no_callback(tmp_path):
    """It is a difference, whose singular values would be taken for those of a classifier."""
    from pfl.extras.papers.spectrum import ClassifierSpectrum

    place = {"default_root_dir": str(tmp_path), "callbacks": [ClassifierSpectrum()]}
    found = run(FedAvg, noisy(), rounds=1, sampler=UniformSampler(1.0), **place)
    assert {*read_table(found.folder / "spectrum.csv")["client"]} == {-1}


def test_stacked_clients_send_the_same_differences():
    options = {"precision": "64-true", "rounds": 2}
    one = run(FedPer, noisy(), engine="sequential", **options)
    stack = run(FedPer, noisy(), engine="vectorised", **options)
    for name, value in one.server.shared.items():
        assert torch.allclose(stack.server.shared[name], value, rtol=0, atol=1e-10)


def test_rounds_without_clients_are_played_and_have_noise():
    rare = BernoulliSampler(1e-9, minimum=0, train_all=False)
    found = run(FedAvg, noisy(), sampler=rare, rounds=2)
    assert [row["train/steps"] for row in found.history] == [0, 0]
    assert found.server.round == 2
    assert found.server.shared["net.head.bias"].abs().min() > 1e3  # the denominator is q N


def test_the_run_ends_before_the_round_that_would_exceed_epsilon():
    """At half an epsilon a round, 1.6 pays for three rounds; the last one is tested."""
    found = run(FedAvg, noisy(epsilon=1.6), rounds=10, evaluate_every=10)
    assert (found.round, found.rounds) == (3, 3)
    assert "test/personal/acc" in found.history[-1]
    assert "epsilon 1.5 at delta 0.01 after 3 rounds" in found.header["privacy"]
    assert "ends there, as round 4 of 10 would exceed 1.6" in found.header["privacy"]


@pytest.mark.parametrize(
    ("most", "rounds"), [(1, 1), (6.9, 6), (7, 7), (99, 99), (100, 100), (1e9, 100)]
)
def test_the_rounds_that_epsilon_pays_for_are_found_with_few_questions(monkeypatch, most, rounds):
    asked = []
    monkeypatch.setattr(
        accountant, "epsilon", lambda q, sigma, count, d: asked.append(count) or count
    )
    account = ClientAccount(noisy(epsilon=most), 0.5, 4, {}, 0, Server(), Broadcast)
    assert account.max_rounds(100) == rounds
    assert len(asked) < 10


def test_an_epsilon_below_one_round_is_refused():
    with pytest.raises(ValueError, match=parts("single round ~ epsilon 0.5 ~ 0.1")):
        run(FedAvg, noisy(epsilon=0.1))


def test_the_header_says_what_is_private_and_what_is_not():
    header = run(FedAvg, noisy()).header
    assert header["private"] == ClientAccount.meaning
    for what in ("choice of settings", "standardised", "sizes, losses and scores"):
        assert what in header["unaccounted"]
    assert "clip 1; sigma 0.5; Poisson cohorts, rate 0.5 of 3 clients" in header["mechanism"]
    assert "who knows the seed" in header["noise"]
    assert "privacy" not in run(FedAvg).header


def test_noise_and_cohorts_of_the_system_have_no_seed():
    first, second = (run(FedAvg, noisy(noise="system"), rounds=2) for _ in range(2))
    assert first.fingerprint != second.fingerprint
    assert "operating system" in first.header["noise"]
    assert "plays rounds again" in first.header["unaccounted"]
    assert "again" not in run(FedAvg, noisy(), rounds=1).header["unaccounted"]


class Real(SequentialEngine):
    def connect(self, contexts, config):
        return replace(DataView.of(contexts.data), real=True)


def test_real_clients_get_no_noise_of_a_seed():
    with pytest.raises(ValueError, match="set noise: system"):
        run(FedAvg, noisy(), engine=Real())
    assert run(FedAvg, noisy(noise="system"), engine=Real(), rounds=1).round == 1


# Who is refused.


@pytest.mark.parametrize(
    "sampler",
    [
        UniformSampler(0.5),
        UniformSampler(1.0, numpy_seed=0),
        BernoulliSampler(0.5),
        BernoulliSampler(0.5, minimum=0, numpy_seed=0),
        FixedStragglers(),
    ],
)
def test_cohorts_that_are_not_poisson_are_refused(sampler):
    with pytest.raises(ValueError, match=parts("Poisson ~ empty")):
        run(FedAvg, noisy(), sampler=sampler)


def test_cohorts_are_poisson():
    """Sizes vary as a binomial's do, and pairs of clients are independent."""
    rng = torch.Generator().manual_seed(1)
    drawn = [POISSON((0, 1, 2), rng, 1).uploads for _ in range(4000)]
    shares = [sum(len(one) == size for one in drawn) / len(drawn) for size in range(4)]
    assert shares == pytest.approx([1 / 8, 3 / 8, 3 / 8, 1 / 8], abs=0.03)
    both = sum(0 in one and 1 in one for one in drawn) / len(drawn)
    assert both == pytest.approx(1 / 4, abs=0.03)


@pytest.mark.parametrize("level", ["user", "sample"])
@pytest.mark.parametrize("engine", ["sequential", LOOPBACK])
def test_weights_that_are_counted_in_the_data_are_refused(level, engine):
    """Six samples of each class have the weights 1, 1, 1, which may be given as well."""
    x, y = torch.randn(18, 5, generator=torch.Generator().manual_seed(0)), torch.arange(18) % 3

    def weighted(weights):
        data = TensorData({"x": x, "y": y}, 3, IID(), loss={"class_weights": weights})
        data.setup()
        options = {"engine": engine, "sampler": POISSON, "uplink": [noisy(level=level)]}
        return fit(FedAvg(mlp(), task=data.task), data, rounds=1, **options)

    with pytest.raises(ValueError, match=parts("balanced counts ~ give the weights as numbers")):
        weighted("balanced")
    assert level == "sample" or weighted([1.0, 1.0, 1.0]).round == 1


def test_a_method_that_cannot_be_summed_is_refused_by_the_name_of_its_entry():
    with pytest.raises(ValueError, match=parts("FedProto ~ 'prototypes' ~ statistic")):
        run(FedProto, noisy())


def test_statistics_of_batch_norms_do_not_travel():
    with pytest.raises(ValueError, match=parts("running_mean' ~ batch norm ~ buffers")):
        run(FedAvg(normed()), noisy())
    assert run(FedAvg(normed(), buffers="local"), noisy()).round == 4


def test_a_delta_that_could_publish_a_client_is_refused():
    with pytest.raises(ValueError, match=parts("delta=0.5 ~ below 0.333")):
        run(FedAvg, noisy(delta=0.5))


def test_too_few_clients_for_an_adaptive_clip_are_refused_before_the_run_begins():
    begun = []

    class Notes(Callback):
        def on_fit_start(self, run):
            begun.append(run)

    with pytest.raises(ValueError, match=parts("adaptive: ~ 1.5 clients ~ sigma=0.5")):
        run(FedAvg, noisy(adaptive=True), callbacks=[Notes()])
    assert begun == []


def test_the_server_knows_no_sizes():
    told = []

    class Curious(Server):
        def init(self, shared, clients):
            # The run's own server is the last one: those of trials before it see an excerpt.
            told[:] = [(info.samples, info.label_counts) for info in clients]
            return super().init(shared, clients)

    class Method(FedAvg):
        def server(self):
            return Curious()

    run(Method(mlp()), noisy(), rounds=1)
    assert told == [(1, None)] * 3


def test_a_server_that_needs_single_uploads_is_refused():
    class Holds(Server):
        def begin(self, state, senders):
            return {**super().begin(state, senders), "uploads": Uploads()}

    class Weighs(Server):
        def weight(self, upload):
            return 2.0

    class Method(FedAvg):
        kind = Holds

        def server(self):
            return self.kind()

    class Weighed(Method):
        kind = Weighs

    assert refused(Method(mlp())) == "its Holds uses 'net.backbone.0.weight' of individual uploads"
    assert refused(Weighed(mlp())) is None
