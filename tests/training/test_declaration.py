"""A plan is read once and sees no values; what differs between clients is a function in it."""

import pytest
import torch
from torch import nn

from lightning_modules.base import ClientModule
from lightning_modules.fedcp import FedCP
from pfl.core.types import Outcome, Pass, Phase
from pfl.engines.stack import round as stack_round
from pfl.training import client_round
from pfl.training.declaration import MethodError, declared
from pfl.training.optimizer_state import of_all_phases
from tests.helpers.discovery import build, methods
from tests.helpers.federation import HEAVY, context, fit, job
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp, normed


class Reader(ClientModule):
    """Asks in its plan for the value of an entry, in a way that a test chooses."""

    kept = ("visits",)

    def __init__(self, read, verb="plan"):
        super().__init__(mlp())
        self.register_buffer("visits", torch.zeros(()))
        self.register_buffer("means", torch.ones(3))
        self.read, self.verb = read, verb

    def plan(self):
        if self.verb == "plan":
            self.read(self)
        return super().plan()

    def adapt(self):
        if self.verb == "adapt":
            self.read(self)
        return ()


READS = {
    "if": lambda m: 1 if m.visits else 0,
    "comparison": lambda m: bool(m.visits + 1 > 2),
    "item": lambda m: m.visits.item(),
    "int": lambda m: int(m.visits * 2),
    "tolist": lambda m: m.visits.tolist(),
    "numpy": lambda m: m.visits.numpy(),
    "cpu": lambda m: m.visits.cpu(),
    "equal": lambda m: torch.equal(m.visits, torch.zeros(())),
    "nonzero": lambda m: m.visits.nonzero(),
    "state_dict": lambda m: float(m.state_dict()["visits"]),
}


@pytest.mark.parametrize("verb", ["plan", "adapt"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_plan_that_reads_a_value_is_refused_by_method_verb_and_entry(read, verb):
    with pytest.raises(MethodError, match=parts(f"Reader.{verb}() ~ 'visits'")):
        context(Reader(read, verb), blobs())


def test_shapes_types_and_names_of_entries_may_be_asked_for():
    def look(module):
        assert module.means.shape == (3,)
        assert module.means.dtype == torch.float32
        assert [len(value) for value in module.net.head.parameters()] == [3, 3]
        assert (module.means * 2).sum().dim() == 0

    context(Reader(look), blobs())


class Keeps(ClientModule):
    """Its plan carries a tensor of an entry away."""

    def plan(self):
        start = self.net.head.bias.sum()
        return [Phase(name="local", objective=lambda batch: {"ce": self(batch.x).sum() + start})]


def test_a_tensor_that_a_plan_carries_away_has_no_value_either():
    with pytest.raises(MethodError, match=parts("Keeps.plan() ~ 'net.head.bias'")):
        fit(Keeps(mlp()), blobs())


def test_a_plan_holds_phases_and_passes_of_different_names():
    class Odd(ClientModule):
        def plan(self):
            return self.given

    odd = Odd(mlp())
    phase = Phase(name="a", objective=odd.losses)
    for given, sentence in (([phase, phase], "Odd.plan() ~ two ~ 'a'"), (["a"], "'a' ~ Phase")):
        odd.given = given
        with pytest.raises(MethodError, match=parts(sentence)):
            declared(odd, "plan")


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    ("returned", "told"),
    [
        # A loss as a training_step returns it, and a return that was forgotten.
        (torch.zeros(()), "returns a Tensor: ~ 'ce'"),
        (None, "returns a NoneType: ~ 'ce'"),
        ({}, "returns {}: ~ 'ce'"),
        ({"ce": torch.zeros(2)}, "returns {'ce': [2]}: ~ one number"),
        (Outcome({"ce": 0.5}), "returns {'ce': float}: ~ tensor"),
    ],
)
def test_an_objective_without_named_terms_is_told_in_words(returned, told, engine):
    class Odd(ClientModule):
        vectorizable = True

        def plan(self):
            return [Phase(name="a", objective=lambda batch: returned)]

    with pytest.raises(MethodError, match=parts(f"the objective of phase 'a' {told}")):
        fit(Odd(mlp()), blobs(), engine=engine)


def test_patterns_without_a_comma_are_refused():
    """The letters of ("net.head.*") would be patterns, and the last one fits every parameter."""
    for patterns in ("net.head.*", ["net.head.*"]):
        with pytest.raises(ValueError, match=parts(f"trains must be a tuple ~ {patterns!r}")):
            Phase(name="a", objective=len, trains=patterns)
        for field in ("shared", "kept", "extra"):
            odd = type("Odd", (ClientModule,), {field: patterns})
            with pytest.raises(ValueError, match=parts(f"{field} must be a tuple ~ {patterns!r}")):
                fit(odd(mlp()), blobs())


def test_a_server_that_is_none_is_refused():
    class Odd(ClientModule):
        def server(self):
            """Return nothing: a return was forgotten."""

    with pytest.raises(MethodError, match=parts("Odd.server() ~ Server, got NoneType")):
        fit(Odd(mlp()), blobs())


def test_a_training_step_of_ones_own_is_refused():
    class Own(ClientModule):
        def training_step(self, batch, batch_idx):
            return {}

    with pytest.raises(MethodError, match=parts("Own ~ training_step ~ losses")):
        context(Own(mlp()), blobs())


class Uneven(ClientModule):
    """The fewer samples a client has, the longer it trains; every second client sits out."""

    kept = ("net.*", "count", "seen")
    shared = ()
    vectorizable = True

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(2))

    def plan(self):
        return [
            Phase(
                name="local",
                objective=self.counted,
                epochs=lambda own, info: 20 // info.samples + int(own["count"] > 0),
            ),
            Phase(
                name="extra",
                objective=self.losses,
                steps=lambda own, info: info.client % 2,
                trains=("net.head.*",),
            ),
            Pass(
                name="seen",
                then=lambda t: {"seen": torch.tensor([float(t.steps), float(t.samples)])},
                when=lambda own, info: info.client != 3,
            ),
        ]

    def counted(self, batch):
        return Outcome(self.losses(batch), {"count": self.count + 1})


SIZES = (4, 9, 1, 17, 6)


def test_what_differs_between_clients_is_asked_of_each():
    """Client 1 has 9 samples and batches of 4: 2 epochs of 3 steps, 3 later; 1 more step."""
    ctx = context(Uneven(mlp()), blobs(SIZES))
    first = client_round.train(ctx, job(ctx.data, 1))
    assert (first.steps, first.kept["count"].item()) == (7, 6)
    assert first.kept["seen"].tolist() == [7, 22]
    second = client_round.train(ctx, job(ctx.data, 1, kept=first.kept))
    assert (second.steps, second.kept["count"].item()) == (10, 15)
    assert client_round.train(ctx, job(ctx.data, 0)).steps == 5
    assert client_round.train(ctx, job(ctx.data, 3)).kept["seen"].tolist() == [0, 0]


@pytest.mark.parametrize("net", [mlp, normed], ids=["plain", "batch_norm"])
@pytest.mark.parametrize("persist", [False, True])
def test_a_stack_gives_clients_of_other_lengths_the_sequential_numbers(net, persist):
    data = blobs(SIZES)
    module = Uneven(net(), optimizer=HEAVY, persist_optimizer=persist)
    ctx = context(module, data, "64-true")
    clients = [3, 1, 4, 0, 2]
    kept = {client: {} for client in clients}
    for _ in range(2):
        jobs = [job(data, client, kept=kept[client]) for client in clients]
        alone = [client_round.train(ctx, one) for one in jobs]
        stacked = stack_round.train(ctx, jobs)
        for one, other in zip(alone, stacked, strict=True):
            assert (one.steps, one.samples) == (other.steps, other.samples)
            torch.testing.assert_close(one.kept, other.kept, rtol=1e-10, atol=1e-12)
            assert one.train == pytest.approx(other.train)
        kept = {result.client: result.kept for result in alone}


def test_optimiser_state_outlives_a_round_that_skips_its_phase():
    class Sometimes(ClientModule):
        kept = ("visits",)

        def __init__(self):
            super().__init__(mlp(), optimizer=HEAVY, persist_optimizer=True)
            self.register_buffer("visits", torch.zeros(()))

        def plan(self):
            every = lambda own, info: int(own["visits"] % 2 == 0)  # noqa: E731
            visit = Pass(name="visit", then=lambda _: {"visits": self.visits + 1})
            return [Phase(name="local", objective=self.losses, epochs=every), visit]

    data = blobs((9,))
    ctx = context(Sometimes(), data)
    first = client_round.train(ctx, job(data))
    second = client_round.train(ctx, job(data, kept=first.kept))
    assert (first.steps, second.steps) == (3, 0)
    momentum = of_all_phases(first.kept)
    assert momentum
    assert all(torch.equal(second.kept[name], value) for name, value in momentum.items())


def test_an_entry_that_the_module_does_not_have_cannot_be_set():
    class Sets(ClientModule):
        vectorizable = True

        def plan(self):
            return [Pass(name="set", then=lambda _: {"mean": torch.zeros(1)})]

    for engine in ("sequential", "vectorised"):
        with pytest.raises(MethodError, match=parts("Sets ~ 'mean' ~ buffer")):
            fit(Sets(nn.Linear(5, 3)), blobs(), engine=engine)


@pytest.mark.parametrize("draws", [False, True])
def test_a_phase_draws_noise_only_if_its_class_says_so(draws):
    class Noisy(ClientModule):
        draws_noise = draws

        def plan(self):
            return [Phase(name="local", objective=self.losses, noise={"eps": (2,)})]

    if draws:
        assert declared(Noisy(mlp()), "plan")[0].noise == {"eps": (2,)}
    else:
        with pytest.raises(MethodError, match=parts("Noisy.plan() ~ 'local' ~ draws_noise = True")):
            declared(Noisy(mlp()), "plan")


def test_only_methods_whose_phases_draw_noise_say_so():
    """The generator of all others is not recorded, so that their runs outlive a change of it."""
    for module in [*(build(method, mlp()) for method in methods()), FedCP(mlp(), gumbel_batch=4)]:
        drawn = any(isinstance(part, Phase) and part.noise for part in declared(module, "plan"))
        assert drawn is (module.noise_generator(module.hparams) is not None), type(module)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_dropout_inside_a_layer_draws_from_the_client_s_stream(share):
    for layer in (nn.MultiheadAttention(4, 2, dropout=share), nn.GRU(4, 4, 2, dropout=share)):
        net = mlp()
        net.backbone.append(layer)
        found = context(ClientModule(net), blobs())
        assert len(found.drawing) == (share > 0)
