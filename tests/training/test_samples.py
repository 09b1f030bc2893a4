"""Parts of a plan that go through validation or public data, and the index of samples."""

from functools import partial

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from pfl.core.types import Outcome, Pass, Phase
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.testing.contract import check_method
from pfl.training import client_round
from pfl.training.declaration import MethodError
from tests.helpers.federation import SGD, context, fit, job
from tests.helpers.messages import parts
from tests.helpers.toy import Line, ToyData, blobs, mlp

SIZES = (4, 9, 1, 17, 6)
# Validation data in another order of sizes than training data; one client has none.
VALIDATION = (3, 0, 8, 2, 8)


def data(**options):
    """Return training, validation and public samples that all differ."""
    made = blobs(SIZES, **options)
    other = blobs(VALIDATION, seed=1).splits["train"]
    made.splits["val"] = other
    return made


class Looks(FedAvg):
    """FedAvg that looks at validation data, learns from public data, and keeps a row a sample."""

    vectorizable = True

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.register_buffer("seen", torch.zeros(5))
        self.register_buffer("first", torch.tensor(1))
        for name in ("bank", "rows", "some_bank", "some_rows"):
            self.register_buffer(name, torch.zeros(max(SIZES), 5))

    @property
    def kept(self):
        return ("seen", "bank", "rows", "some_bank", "some_rows")

    def _remembered(self, name, batch):
        # The padding of a stack repeats a sample, with its index.
        bank = getattr(self, name).index_copy(0, batch.index, batch.x)
        return Outcome(self.losses(batch), {name: bank})

    def plan(self):
        def total(batch):
            weight = torch.ones_like(batch.x[:, 0]) if batch.weight is None else batch.weight
            return {"x": weight @ batch.x}

        def placed(name, totals):
            rows = torch.zeros(max(SIZES), 5).to(totals.rows["x"])
            return {name: rows.index_copy(0, totals.rows["index"], totals.rows["x"])}

        def some(own, info):
            """Return every second position, backwards; none if there is one sample."""
            return torch.arange(info.samples)[int(own["first"]) :: 2].flip(0)

        rows = partial(Pass, collect=lambda batch: {"index": batch.index, "x": batch.x})
        bank = partial(partial, self._remembered)
        return [
            Pass(name="look", split="val", statistic=total, then=lambda t: {"seen": t.sums["x"]}),
            Phase(name="learn", split="public", objective=self.losses),
            Phase(name="local", objective=bank("bank")),
            rows(name="rows", then=partial(placed, "rows")),
            Phase(name="some", subset=some, objective=bank("some_bank")),
            rows(name="some_rows", subset=some, then=partial(placed, "some_rows")),
        ]


@pytest.mark.parametrize("engine", ["sequential", ThreadsEngine(2), VectorisedEngine()])
@pytest.mark.parametrize("held", [True, False], ids=["held", "read"])
def test_each_part_has_its_own_samples(engine, held, monkeypatch):
    """Validation data are summed, public data trained on, and each sample has its own row.

    The samples of a subset have the rows of their places in it.
    """
    if not held:
        monkeypatch.setattr("pfl.training.batching.HELD_BYTES", 0)
    run = fit(Looks(mlp(), optimizer=SGD), data(), 1, engine=engine)
    assert "not" not in run.header
    for client in range(len(SIZES)):
        kept, own = run.kept[client], data()
        x = own.split(client, "train").x
        torch.testing.assert_close(kept["seen"], own.split(client, "val").x.sum(0))
        for name, wanted in (("", x), ("some_", x[1::2].flip(0))):
            for found in (kept[f"{name}bank"], kept[f"{name}rows"]):
                torch.testing.assert_close(found[: len(wanted)], wanted)
                assert not found[len(wanted) :].any()


def test_public_data_count_in_the_samples_seen_and_not_in_the_weight():
    """One step on the public 3 and 5, of which the mean is 4; then one on the client's 1."""

    class Pull(FedAvg):
        def losses(self, batch):
            return {"pull": (batch.x * self.net.w).mean()}

        def plan(self):
            return [
                Phase(name="public", split="public", objective=self.losses),
                Phase(name="local", objective=self.losses),
            ]

    y = torch.zeros(2, dtype=torch.long)
    toy = ToyData([(torch.tensor([[3.0], [5.0]]), y), (torch.tensor([[1.0]]), y[:1])])
    module = Pull(Line(), optimizer=partial(torch.optim.SGD, lr=0.1))
    result = client_round.train(context(module, toy), job(toy, client=1))
    assert result.upload.shared["net.w"].item() == pytest.approx(1 - 0.1 * (4 + 1))
    assert (result.samples, result.upload.samples, result.steps) == (3, 1, 2)


def test_poisoned_labels():
    """Labels of test data change nothing, those of validation data only what a pass reads."""

    class Labels(Looks):
        def plan(self):
            look = Pass(
                name="look",
                split="val",
                statistic=lambda batch: {"y": batch.y.sum().float()},
                then=lambda totals: {"seen": totals.sums["y"].expand(5)},
            )
            return [look, *super().plan()[1:]]

    def trained(poisoned):
        toy = data()
        for name in poisoned:
            toy.splits[name] = [(x, (y + 1) % 3) for x, y in toy.splits[name]]
        run = fit(Labels(mlp(), optimizer=SGD), toy, 2)
        seen = [run.kept[client].pop("seen") for client in range(len(SIZES))]
        return seen, [*run.server.shared.values()], [*run.kept[3].values()]

    seen, server, kept = trained(())
    for poisoned, moved in ((("test",), False), (("val",), True)):
        other, *rest = trained(poisoned)
        assert any(not torch.equal(*pair) for pair in zip(seen, other, strict=True)) == moved
        for ours, theirs in zip((server, kept), rest, strict=True):
            assert all(map(torch.equal, ours, theirs))


def test_a_method_with_such_parts_keeps_all_promises():
    check_method(Looks)


def test_without_public_data_a_method_that_needs_them_is_refused():
    toy = data()
    toy.split = lambda client, name: ToyData.split(toy, 1, "val")  # which is empty
    with pytest.raises(MethodError, match=parts("Looks needs public data ~ data.public")):
        fit(Looks(mlp(), optimizer=SGD), toy, 1)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (partial(Phase, name="p", objective=dict, split="val"), "Phase ~ train, public ~ 'val'"),
        (partial(Pass, name="p", then=dict, split="test"), "Pass ~ train, val, public ~ 'test'"),
    ],
)
def test_samples_that_are_for_tests_are_refused(make, told):
    with pytest.raises(ValueError, match=parts(told)):
        make()
