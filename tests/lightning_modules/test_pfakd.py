"""PFAKD: the invariants in docs/methods, with hand-worked numbers."""

from functools import partial

import pytest
import torch
from torch import nn

from lightning_modules.nets import SplitNet
from lightning_modules.pfakd import PFAKD
from pfl.core.seeds import generator
from pfl.core.state import select
from pfl.core.types import Batch
from pfl.federation.summary import summarise
from tests.helpers import facts
from tests.helpers.draws import some
from tests.helpers.federation import SGD, Federation, equal
from tests.helpers.toy import blobs, mlp, normed

FACTS = {
    PFAKD: facts.Facts(
        travels=("net.backbone.",),
        stays=("net.head.",),
        floats=facts.BODY,
        stacks=[{"teacher_mode": "eval", "distill_reduction": "sum_dim"}],
        needs_parts=True,
    ),
}


def make(net, **options):
    return PFAKD(net, **{"optimizer": SGD, **options})


def objective(module):
    (phase,) = module.plan()
    return phase.objective


def drifted(net=mlp, **options):
    """Return a client within its round: received, then moved away from the teacher."""
    module = Federation(make(net(), **options)).start()
    rng = generator(2, "drift")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))
    return module


def test_the_objective_by_hand():
    """f(x) = x became 3x; on x = 1, 2 and a zero head: log 2 + beta (2^2 + 4^2) / 2."""
    net = SplitNet(nn.Linear(1, 1, bias=False), nn.Linear(1, 2))
    with torch.no_grad():
        net.backbone.weight.fill_(1.0)
        net.head.weight.zero_(), net.head.bias.zero_()
    module = make(net, distill_weight=0.5)
    with torch.no_grad():
        net.backbone.weight.fill_(3.0)
    batch = Batch(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    terms = objective(module)(batch)
    assert terms["ce"].item() == pytest.approx(0.6931, abs=1e-4)
    assert terms["kd"].item() == pytest.approx(5.0)
    # Before any broadcast, under a plain Trainer, there is no teacher.
    assert module.training_step(batch, 0)["loss"].item() == pytest.approx(0.6931, abs=1e-4)


@pytest.mark.parametrize("net", [mlp, normed])
def test_on_arrival_the_teacher_pulls_nowhere(net):
    """Invariant 2."""
    module = Federation(make(net())).start().train()
    value = objective(module)(some())["kd"]
    slopes = torch.autograd.grad(value, list(module.net.backbone.parameters()))
    assert value.item() == 0
    assert not any(slope.any() for slope in slopes)


def test_the_sum_is_d_times_the_mean():
    """Invariant 3: D = 6."""
    mean, total = (
        objective(drifted(distill_reduction=reduction))(some())["kd"].item()
        for reduction in ("mean", "sum_dim")
    )
    assert total == pytest.approx(6 * mean)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("net", [mlp, normed])
def test_training_leaves_the_teacher_as_it_was_received(net, mode):
    """Invariant 4."""
    federation = Federation(make(net(), teacher_mode=mode, epochs=2))
    federation.round()
    sent = select(federation.state.shared, ("net.backbone.*",))
    result = federation.train(0)
    teacher = federation.module.teacher
    found = teacher.state_dict()
    for name, value in sent.items():
        assert torch.equal(found[name.replace("net.backbone.", "module.")], value)
    assert not list(teacher.parameters())
    assert not any(name.startswith("teacher") for name in {**result.kept, **result.upload.shared})


def test_the_teacher_s_batch_norms_use_the_batch_or_the_client_s_statistics():
    """x = 1, 3: batch statistics give -1, 1, running ones (mean 0, variance 1) the inputs."""
    features = {}
    for mode in ("train", "eval"):
        net = SplitNet(nn.BatchNorm1d(1, eps=1e-12), nn.Linear(1, 2))
        module = PFAKD(net, teacher_mode=mode).train()
        features[mode] = module.teacher(torch.tensor([[1.0], [3.0]])).flatten().tolist()
    assert features["train"] == pytest.approx([-1, 1])
    assert features["eval"] == pytest.approx([1, 3])


def test_the_head_s_gradient_knows_no_beta():
    """Invariant 5."""
    slopes = {}
    for beta in (0.0, 10.0):
        module = drifted(distill_weight=beta)
        sum(objective(module)(some()).values()).backward()
        slopes[beta] = {n: p.grad for n, p in module.net.named_parameters()}
    head, base = ("head.*",), ("backbone.*",)
    assert equal(select(slopes[0.0], head), select(slopes[10.0], head))
    assert not equal(select(slopes[0.0], base), select(slopes[10.0], base))


def test_beta_keeps_features_near_the_teacher():
    """Invariant 9."""
    distances = {}
    for beta in (0.0, 10.0):
        module = make(mlp(), distill_weight=beta, optimizer=partial(torch.optim.SGD, lr=0.02))
        federation = Federation(module)
        federation.train(0)
        x = federation.data.split(0, "train").x
        distances[beta] = (module.net.backbone(x) - module.teacher(x)).norm(dim=1).mean().item()
    assert 0 < distances[10.0] < distances[0.0]


def test_the_mean_of_the_last_ten_takes_what_there_is():
    """Invariant 10. Of twelve rounds, 3 to 12: 7.5. Of three, all: 2."""
    for rounds, expected in ((12, 7.5), (3, 2.0)):
        history = [{"round": r, "test/personal/acc": float(r)} for r in range(1, rounds + 1)]
        assert summarise(history)["test/personal/acc/mean_last10"] == expected


def test_the_client_s_statistics_see_its_own_features_only():
    """One full batch moves the running mean by a tenth of the batch's mean: no teacher in it."""
    data = blobs(batch_size=99)
    federation = Federation(make(normed(), distill_weight=5.0), data)
    first = federation.module.net.backbone[0]
    expected = 0.1 * first(data.split(0, "train").x).mean(0).detach()
    found = federation.train(0).kept["net.backbone.1.running_mean"]
    torch.testing.assert_close(found, expected)
