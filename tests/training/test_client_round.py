"""The arithmetic of a client's round, on one parameter."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from lightning_modules.base import ClientModule
from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import SplitNet
from pfl.core.state import clone
from pfl.core.types import Broadcast, ClientInfo, Job, Outcome, Pass, Phase
from pfl.training import client_round
from pfl.training.batching import Length
from tests.helpers.federation import SGD, context, equal, sgd, steps
from tests.helpers.messages import parts
from tests.helpers.toy import Line, ToyData, blobs, mlp, normed


class Pull(ClientModule):
    """Loss mean(x) * w, whose gradient is mean(x)."""

    def losses(self, batch):
        return {"pull": (batch.x * self.net.w).mean()}


def job(client=0, kept=None, broadcast=None, samples=4, seed=3, round=1):
    info = ClientInfo(client, samples, torch.zeros(3, dtype=torch.long), round, 10)
    return Job(info, kept or {}, broadcast, seed, ())


def numbers(*x):
    x = torch.tensor(x).reshape(-1, 1)
    return ToyData([(x, torch.zeros(len(x), dtype=torch.long))], outputs=3, batch_size=2)


def pull(**options):
    return Pull(Line(), optimizer=SGD, **options)


def spatial():
    """Build a network with batch norm over maps of one pixel."""
    body = nn.Sequential(nn.Linear(5, 6), nn.Unflatten(1, (6, 1, 1)), nn.BatchNorm2d(6))
    return SplitNet(nn.Sequential(body, nn.Flatten()), nn.Linear(6, 3))


class Planned(Pull):
    """Pull in one phase with the options that a test gives."""

    def plan(self):
        return [Phase(name="local", objective=self.losses, **self.given)]


@pytest.mark.parametrize(
    ("options", "given", "round", "w", "steps"),
    [
        # Batches of two of 1, 2, 3, 4: gradients that add up to 5.
        ({}, {}, 1, 1 - 0.1 * 5, 2),
        # A quarter of the rate in round 3.
        ({"lr_decay": 0.5}, {}, 3, 1 - 0.025 * 5, 2),
        ({}, {"steps": 3, "batch_size": 4}, 1, 1 - 0.1 * 7.5, 3),
        ({}, {"epochs": 2, "full_batch": True}, 1, 1 - 0.1 * 5, 2),
    ],
    ids=["two steps", "decay", "steps", "full batch"],
)
def test_steps_by_hand(options, given, round, w, steps):
    module = Planned(Line(), optimizer=SGD, **options)
    module.given = given
    ctx = context(module, numbers(1.0, 2.0, 3.0, 4.0))
    result = client_round.train(ctx, job(round=round))
    assert result.upload.shared["net.w"].item() == pytest.approx(w)
    assert result.steps == steps
    assert result.samples == (12 if "steps" in given else 8 if "full_batch" in given else 4)


class HeadOnly(ClientModule):
    def plan(self):
        head = ("net.head.*",)
        return [Phase(name="head", objective=self.losses, trains=head, evals=("net.backbone",))]


@pytest.mark.parametrize(
    ("client", "net", "sizes", "options", "seen"),
    [
        # A short batch is left out with drop_last, unless it is the only one.
        # A class itself would put its case into the long tier.
        (partial(FedAvg), mlp, (5,), {"batch_size": 4, "drop_last": True}, 4),
        (partial(FedAvg), mlp, (3,), {"batch_size": 4, "drop_last": True}, 3),
        # Batch norm never sees a single sample, but in eval mode.
        (partial(FedAvg), mlp, (5,), {"batch_size": 4}, 5),
        (partial(FedAvg), normed, (5,), {"batch_size": 4}, 4),
        (HeadOnly, normed, (5,), {"batch_size": 4}, 5),
        (HeadOnly, normed, (5,), {"batch_size": 1}, 5),
        # Without a phase of its own, a client still uploads.
        (partial(FedAvg, epochs=0), normed, (1,), {"batch_size": 4}, 0),
    ],
)
def test_which_samples_are_seen(client, net, sizes, options, seen):
    data = blobs(sizes=sizes)
    for name, value in options.items():
        setattr(data, name, value)
    result = client_round.train(context(client(net()), data), job())
    assert (result.samples, result.upload is None) == (seen, False)


def test_rates_fall_as_a_cosine_over_the_rounds():
    """Rounds 1, 3, 4 of 4: 1, (1 + cos pi/2) / 2, (1 + cos 3 pi/4) / 2, beside a decay of 1/2."""
    module = pull(lr_decay=0.5, lr_schedule="cosine")
    info = job().info
    found = [module.lr_factor(replace(info, round=t, rounds=4)) for t in (1, 3, 4)]
    cosines = [1, 1 / 2, (1 - math.sqrt(1 / 2)) / 2]
    assert found == pytest.approx([c * 0.5**t for c, t in zip(cosines, (0, 2, 3), strict=True)])
    # Of how many rounds is not known.
    assert pull(lr_schedule="cosine").lr_factor(replace(info, round=3, rounds=0)) == 1
    assert pull().lr_factor(replace(info, round=3, rounds=4)) == 1
    with pytest.raises(ValueError, match=parts("lr_schedule ~ constant, cosine ~ 'linear'")):
        pull(lr_schedule="linear")


@pytest.mark.parametrize("net", [normed, spatial], ids=["vector", "map of one pixel"])
def test_who_has_one_sample_under_batch_norm_sits_out(net):
    """Neither a step nor an upload, and nothing that stays changes; the others go on."""
    data = blobs(sizes=(1, 5), batch_size=4)
    ctx = context(FedAvg(net(), buffers="local"), data)
    with pytest.warns(UserWarning, match=parts("client 0 ~ 'local' ~ one sample")):
        result = client_round.train(ctx, job())
    assert (result.steps, result.upload, result.finite) == (0, None, True)
    assert all(torch.equal(value, ctx.template[name]) for name, value in result.kept.items())
    assert client_round.train(ctx, job(client=1)).samples == 4


def test_batches_of_one_sample_under_batch_norm_are_refused():
    data = blobs(sizes=(5,), batch_size=1)
    with pytest.raises(ValueError, match=parts("'local' ~ batch_size to 2")):
        client_round.train(context(FedAvg(normed()), data), job())


def test_the_norm_is_clipped_and_no_single_value():
    """The gradient (3, 4) of norm 5 becomes (1.5, 2)."""

    class Mean(FedAvg):
        def losses(self, batch):
            return {"mean": self(batch.x).mean()}

    net = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(net.weight)
    data = ToyData([(torch.tensor([[3.0, 4.0]]), torch.zeros(1, dtype=torch.long))])
    module = Mean(net, optimizer=sgd(1.0))
    result = client_round.train(context(module, data, gradient_clip_val=2.5), job())
    found = result.upload.shared["net.weight"].flatten().tolist()
    assert found == pytest.approx([-1.5, -2.0])


class Halves(ClientModule):
    """Two phases, each training its own part."""

    def plan(self):
        return [
            Phase(name="head", trains=("net.head.*",), objective=self.losses, evals=("net",)),
            Phase(name="body", trains=("net.backbone.*",), objective=self.losses),
        ]


def test_a_pass_and_a_test_see_the_network_in_eval_mode():
    """Neither moves the running statistics of a batch norm that training has left in train mode."""
    modes = []

    class Looks(FedAvg):
        def plan(self):
            def look(batch):
                modes.append(self.net.backbone.training)
                return {"n": batch.y.new_ones(())}

            return [*super().plan(), Pass(name="look", statistic=look, then=lambda totals: {})]

    ctx = context(Looks(normed()), blobs())
    client_round.train(ctx, job())
    assert set(modes) == {False}
    mean = ctx.entries["net.backbone.1.running_mean"].clone()
    assert mean.any()
    ctx.module.train()
    client_round.on_splits(ctx, 0, ("test",))
    assert torch.equal(ctx.entries["net.backbone.1.running_mean"], mean)


def test_entries_of_an_outcome_are_written_after_the_step():
    """w is 5, not 5 less the step of 0.1."""

    class Sets(Pull):
        def losses(self, batch):
            return Outcome(super().losses(batch), {"net.w": torch.tensor([5.0])})

    ctx = context(Sets(Line(), optimizer=SGD), numbers(1.0))
    assert client_round.train(ctx, job()).upload.shared["net.w"].item() == 5


def test_only_the_personalised_model_is_adapted():
    """One step of 0.1 from w = 2."""

    class Adapts(Pull):
        def adapt(self):
            return self.plan()

    ctx = context(Adapts(Line(), optimizer=SGD), numbers(1.0))
    sent = job(broadcast=Broadcast({"net.w": torch.tensor([2.0])}))
    for model, expected in (("personal", 1.9), ("global", 2.0)):
        client_round.test(ctx, replace(sent, model=model))
        assert ctx.entries["net.w"].item() == pytest.approx(expected)


def test_a_phase_trains_its_parameters_only():
    """Not even momentum and weight decay move what a phase does not train."""
    decayed = sgd(momentum=0.9, weight_decay=0.1)
    ctx = context(Halves(normed(), optimizer=decayed), blobs())
    start = {name: value.clone() for name, value in ctx.entries.items()}
    head, body = ctx.module.plan()
    tally = client_round.Tally()
    ctx.load({})
    client_round.run_plan(ctx, job(), [head], tally)
    moved = {n for n in start if not torch.equal(start[n], ctx.entries[n])}
    assert moved == {"net.head.weight", "net.head.bias"}
    middle = {name: value.clone() for name, value in ctx.entries.items()}
    client_round.run_plan(ctx, job(), [body], tally)
    moved = {n for n in start if not torch.equal(middle[n], ctx.entries[n])}
    assert moved == {n for n in start if n.startswith("net.backbone.")}


def test_kept_state_and_optimiser_state_come_back():
    """With momentum 0.9 kept, the second job's first step is g + 0.9 * buffer.

    Full batches of gradient 1, jobs of one step each, w reset between them: the first step is 0.1,
    the second 0.1 * (1 + 0.9), the third 0.1 * (1 + 0.9 * 1.9).
    """

    module = Planned(Line(), optimizer=sgd(momentum=0.9), persist_optimizer=True)
    module.given = {"full_batch": True}
    ctx = context(module, numbers(1.0, 1.0))
    first = client_round.train(ctx, job())
    assert first.upload.shared["net.w"].item() == pytest.approx(0.9)
    before = clone(first.kept)
    second = client_round.train(ctx, job(kept=first.kept))
    assert second.upload.shared["net.w"].item() == pytest.approx(1 - 0.19)
    # What a job brings is left as it was.
    assert before
    assert equal(first.kept, before)
    third = client_round.train(ctx, job(kept=second.kept))
    assert third.upload.shared["net.w"].item() == pytest.approx(1 - 0.271)


def test_non_finite_training_is_reported():
    result = client_round.train(context(pull(), numbers(float("nan"), 1.0)), job())
    assert not result.finite


def test_what_is_kept_is_finite_or_reported():
    """The loss of the only step is 10, and the step too large for float32; nothing is uploaded."""

    class Alone(Pull):
        shared = ()
        kept = ("net.*",)

    for rate, finite in ((0.1, True), (1e38, False)):
        module = Alone(Line(), optimizer=sgd(rate))
        result = client_round.train(context(module, numbers(10.0)), job())
        assert result.train["local/pull"] == 10
        assert result.finite == finite


def test_more_than_one_optimiser_is_refused():
    class Two(FedAvg):
        def configure_optimizers(self):
            return [super().configure_optimizers()], []

    with pytest.raises(TypeError, match=parts("Two.configure_optimizers ~ tuple")):
        client_round.train(context(Two(mlp()), blobs()), job())


def test_a_parameter_frozen_by_the_user_stays():
    net = mlp()
    net.head.bias.requires_grad_(False)
    ctx = context(FedAvg(net, travel_frozen=True), blobs())
    client_round.train(ctx, job())
    assert torch.equal(ctx.entries["net.head.bias"], ctx.template["net.head.bias"])


def test_lightning_hooks_run_in_order():
    calls = []

    class Hooks(FedAvg):
        def on_before_zero_grad(self, optimizer):
            calls.append("zero")

        def on_before_backward(self, loss):
            calls.append("before")

        def on_after_backward(self):
            calls.append("after")

        def on_before_optimizer_step(self, optimizer):
            calls.append("step")

        def on_train_batch_end(self, outputs, batch, batch_idx):
            calls.append(f"end {batch_idx}")

    client_round.train(context(Hooks(mlp()), blobs(sizes=(8,))), job())
    step = ["zero", "before", "after", "step"]
    assert calls == [*step, "end 0", *step, "end 1"]


def test_a_share_of_the_samples_is_the_same_in_every_epoch():
    """Half of eight samples, in new orders; at least a batch (of two) of three."""
    ctx = context(pull(), numbers(*(float(2**i) for i in range(8))))
    chosen = Phase(name="part", objective=ctx.module.losses, share=0.5)

    def orders(seed):
        found = {}
        for step in steps(ctx, job(seed=seed), chosen, Length(4), 8):
            found.setdefault(step.epoch, []).append(step.positions)
        return [torch.cat(positions).tolist() for positions in found.values()]

    epochs = orders(seed=3)
    assert [len(order) for order in epochs] == [4] * 4
    assert len({frozenset(order) for order in epochs}) == 1
    assert len({tuple(order) for order in epochs}) > 1
    assert set(orders(seed=4)[0]) != set(epochs[0])
    tiny = Phase(name="part", objective=ctx.module.losses, share=0.1)
    assert [len(s.positions) for s in steps(ctx, job(), tiny, Length(1), 3)] == [2]


def test_a_phase_may_stop_before_its_epochs():
    """Asked after each epoch, with the last loss of each: 1, 0.9, 0.8; their mean is reported."""
    asked = []

    def enough(losses):
        asked.append(list(losses))
        return len(losses) == 3

    module = Planned(Line(), optimizer=SGD)
    module.given = {"epochs": 50, "full_batch": True, "until": enough}
    result = client_round.train(context(module, numbers(1.0, 1.0)), job())
    assert (result.steps, result.train["local/pull"]) == (3, pytest.approx(0.9))
    assert [len(losses) for losses in asked] == [1, 2, 3]
    assert asked[-1] == pytest.approx([1.0, 0.9, 0.8])


def test_a_global_model_that_jobs_share_is_loaded_once_and_another_again(monkeypatch):
    """Two jobs of one state, one of another, and one of a client's own model."""
    data, module = blobs(), FedAvg(mlp())
    ctx = context(module, data)
    states = [
        {name: scale * ctx.template[name] for name in module.shared_names()} for scale in (1, 2)
    ]
    jobs = [
        replace(job(client, broadcast=Broadcast(states[number])), splits=("test",), model=model)
        for client, number, model in (
            (0, 0, "global"),
            (1, 0, "global"),
            (1, 1, "global"),
            (1, 1, "personal"),
        )
    ]
    alone = [client_round.answers(ctx, one)["test"][0] for one in jobs]
    loads, load = [], ctx.load
    monkeypatch.setattr(ctx, "load", lambda kept: loads.append(1) or load(kept))
    together = [found["test"][0] for found in client_round.all_answers(lambda client: ctx, jobs)]
    assert len(loads) == 3
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
