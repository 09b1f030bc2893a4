"""UniVarFL: the invariants in docs/methods; those of the bare loss terms (2 to 7 and 10) are
tested in ``losses/test_spread.py``.
"""

import math
from functools import partial

import pytest
import torch
from torch import nn

from lightning_modules.nets import LeNet5, SplitNet
from lightning_modules.univarfl import UniVarFL
from pfl.core.seeds import generator, scoped
from pfl.core.types import Batch, ClientInfo
from tests.helpers import facts
from tests.helpers.draws import some
from tests.helpers.federation import SGD, fit
from tests.helpers.messages import parts
from tests.helpers.toy import ToyData, blobs, mlp

FACTS = {
    UniVarFL: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
        variants=[{"he_form": "inverse"}],
        stacks=[
            {"he_form": "log", "cv_statistic": "std"},
            {"he_form": "chord", "cv_statistic": "std"},
            {"he_form": "rbf", "cv_statistic": "std"},
            {"normalize_for_head": True, "cv_unbiased": True},
        ],
        needs_classes=True,
        needs_parts=True,
        not_private="phase 'local': its term 'he' is not a mean over the samples of a batch",
    ),
}

# The toy networks' six unnormalised ReLU units do not bear much of the paper's energy.
CALM = {"he_form": "inverse", "w_he": 0.02, "lr_schedule": "constant"}


def make(net, **options):
    return UniVarFL(net, **{"optimizer": SGD, **CALM, **options})


def line():
    """Build a network whose features are the two inputs, and so are the logits."""
    net = SplitNet(nn.Identity(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        net.head.weight.copy_(torch.eye(2))
    return net


def two_points():
    """Return orthogonal features of lengths log 3 and log 3."""
    return Batch(math.log(3) * torch.eye(2), torch.tensor([0, 1]))


def test_the_objective_by_hand():
    """p = (3/4, 1/4) and (1/4, 3/4): CE = log 4/3.

    Orthogonal features: L_HE = 1 / (1 + 1/4). Each column has variance 1/16 under the floor 1/4:
    L_CV = 3/16, with the weight C / 4 = 1/2.
    """
    terms = UniVarFL(line(), w_he=2.0, he_form="inverse", eps=0.25).losses(two_points())
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"ce": math.log(4 / 3), "he": 2 * 0.8, "cv": 3 / 32}
    )


@pytest.mark.parametrize(
    ("options", "term", "value"),
    [
        ({"he_form": "log", "eps": 0.25}, "he", -math.log(1.25)),
        ({"he_form": "chord", "eps": 0.25}, "he", 1 / 2.25),
        # One pair, which is its own median.
        ({"he_form": "rbf"}, "he", math.exp(-1)),
        ({}, "he", math.exp(-1)),
        ({"cv_unbiased": True}, "cv", 1 / 2 - 1 / 8),
        ({"cv_statistic": "std"}, "cv", 1 / 2 - 1 / 4),
        ({"cv_statistic": "std", "cv_unbiased": True}, "cv", math.sqrt(1 / 2) - math.sqrt(1 / 8)),
        # Logits of length one: p = (s, 1 - s), variance (s - 1/2)^2 with s = e / (e + 1).
        ({"normalize_for_head": True}, "cv", 1 / 4 - (math.e / (math.e + 1) - 1 / 2) ** 2),
    ],
)
def test_every_reading_by_hand(options, term, value):
    module = UniVarFL(line(), w_he=1.0, w_cv=1.0, **options)
    assert module.losses(two_points())[term].item() == pytest.approx(value, abs=1e-6)


def test_the_tested_model_reads_what_training_read():
    """Lengths are lost on a classifier of normalised features."""
    x = some().x
    module = UniVarFL(mlp(), normalize_for_head=True)
    features = module.net.backbone(x)
    expected = module.net.head(features / features.norm(dim=-1, keepdim=True).clamp_min(1e-12))
    assert torch.allclose(module(x), expected)
    assert torch.equal(UniVarFL(mlp())(x), mlp()(x))


@pytest.mark.parametrize("classes", [10, 100])
def test_the_weight_of_the_variance_is_a_quarter_of_the_classes(classes):
    """2.5 at C = 10, where equal predictions cost 2.5 * 0.09 = 0.225; 25 at C = 100."""
    module = UniVarFL(mlp(num_classes=classes))
    assert module.w_cv == classes / 4
    for parameter in module.net.head.parameters():
        nn.init.zeros_(parameter)
    floor = (classes - 1) / classes**2
    assert module.losses(some())["cv"].item() == pytest.approx(classes / 4 * floor)


def test_the_energy_leaves_the_classifier_alone_and_the_variance_reaches_both():
    """Invariant 8."""
    terms = UniVarFL(mlp()).losses(some())
    for term, reaches_head in (("he", False), ("cv", True)):
        module = UniVarFL(mlp())
        module.losses(some())[term].backward()
        assert module.net.backbone[0].weight.grad.any()
        assert (module.net.head.weight.grad is not None) == reaches_head
    assert terms.keys() == {"ce", "he", "cv"}


@pytest.mark.parametrize("statistic", ["var", "std"])
@pytest.mark.parametrize("form", ["inverse", "log", "chord", "rbf"])
def test_a_batch_of_one_is_cross_entropy_alone(form, statistic):
    """Invariant 9."""
    module = UniVarFL(mlp(), he_form=form, cv_statistic=statistic, cv_unbiased=True)
    terms = module.losses(some(1))
    assert terms["he"].item() == terms["cv"].item() == 0
    sum(terms.values()).backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_the_rate_falls_as_a_cosine_over_the_rounds():
    """Half of it is left in round 3 of 4."""
    halfway = ClientInfo(0, 9, torch.zeros(3), 3, 4)
    assert UniVarFL(mlp()).lr_factor(halfway) == pytest.approx(0.5)
    assert UniVarFL(mlp(), lr_schedule="constant").lr_factor(halfway) == 1


def test_duplicate_images_stay_finite():
    """Their pairs cost 1 / eps; three rounds with clipped gradients go through."""
    data = blobs(sizes=(4, 4))
    data.splits["train"] = [(x[:1].repeat(4, 1), y) for x, y in data.splits["train"]]
    run = fit(make(mlp(), w_he=0.5), data, 3, gradient_clip_val=1.0)
    assert run.round == 3


def test_a_network_whose_features_all_die_stays_finite():
    module = UniVarFL(mlp(), he_form="inverse")
    nn.init.constant_(module.net.backbone[0].bias, -100.0)
    terms = module.losses(some())
    assert terms["he"].item() == pytest.approx(0.5 / 1.001)
    sum(terms.values()).backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize(("options", "trains"), [({}, True), ({"he_form": "inverse"}, False)])
def test_the_default_trains_a_network_without_batch_norm_from_features_close_together(
    options, trains
):
    """LeNet-5 on pale images, whose features start with cosines near one."""
    rng = generator(7, "images")
    y = torch.arange(40) % 2
    x = 1 + 0.3 * torch.randn(40, 3, 32, 32, generator=rng)
    x[y == 1, :, :, :16] += 1
    data = ToyData([(x[:20], y[:20]), (x[20:], y[20:])], outputs=2, batch_size=10)
    with scoped(0):
        net = LeNet5(2, (3, 32, 32))
    module = UniVarFL(net, optimizer=partial(torch.optim.SGD, lr=0.05), epochs=5, **options)
    if trains:
        last = fit(module, data, 4).history[-1]
        assert last["train/local/ce"] < 0.3
    else:
        with pytest.raises(ArithmeticError, match="not finite"):
            fit(module, data, 4)


def test_features_that_coincide_are_warned_of():
    """Equal inputs have equal features, whose energy is 1 / eps = 1,000 in every step."""
    same = torch.linspace(-2, 2, 5).expand(6, 5)
    data = ToyData([(same, torch.arange(6) % 3)] * 2)
    with pytest.warns(UserWarning, match=parts("UniVarFL ~ features ~ he_form: log ~ eps ~ w_he")):
        fit(make(mlp()), data, rounds=1)


@pytest.mark.parametrize(
    ("options", "he", "told"),
    [
        # A tenth of the pairs at 1 / eps = 1,000 and the others at 1 / 1.001 give 100.899, and he
        # has the weight.
        ({"w_he": 0.5}, 50.46, True),
        ({"w_he": 0.5}, 50.44, False),
        ({"w_he": 0.5, "he_form": "log"}, 50.46, False),
        # At eps 0.1 it is 0.1 * 10 + 0.9 / 1.1 = 1.818; features with a cosine of 0.3 have 1.25.
        ({"w_he": 1.0, "eps": 0.1}, 1.82, True),
        ({"w_he": 1.0, "eps": 0.1}, 1.81, False),
        # Of chords: 0.1 * 2 + 0.9 / 2.5 = 0.56.
        ({"w_he": 1.0, "eps": 0.5, "he_form": "chord"}, 0.57, True),
        ({"w_he": 1.0, "eps": 0.5, "he_form": "chord"}, 0.55, False),
        ({"w_he": 0.0}, None, False),
    ],
)
def test_only_an_energy_near_its_bound_is_warned_of(options, he, told):
    losses = {"local/ce": 1.0} if he is None else {"local/ce": 1.0, "local/he": he}
    assert (make(mlp(), **options).loss_warning(losses) is not None) is told
