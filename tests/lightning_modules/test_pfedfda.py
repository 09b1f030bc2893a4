"""pFedFDA: the invariants in docs/methods; the Gaussians are tested in test_gaussians."""

import pytest
import torch
import torch.nn.functional as F

from lightning_modules.pfedfda import PFedFDA
from lightning_modules.steps.gaussians import Gaussians, discriminant, estimate, unpack
from pfl.core.state import clone, fingerprint, select
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.toy import mlp

BODY = ("net.backbone.*",)


def fda(net=None, **options):
    return PFedFDA(mlp() if net is None else net, optimizer=sgd(), **options)


def classifier(module):
    return clone({"weight": module.weight, "bias": module.bias})


def received(federation):
    """Return the global Gaussians that a client receives now."""
    shared = federation.state.shared
    return Gaussians(shared["means"].double(), unpack(shared["covariance"].double()))


def test_the_head_is_the_global_classifier_under_the_clients_shares():
    """Shares (counts / n + eps) / (1 + C eps); client 0 has nine samples."""
    federation = Federation(fda(eps=1e-2))
    module = federation.start(0)
    counts = federation.infos[0].label_counts.double()
    prior = (counts / 9 + 1e-2) / 1.03
    torch.testing.assert_close(module.prior.double(), prior)
    weight, bias = discriminant(received(federation), prior, 1e-2)
    torch.testing.assert_close(module.weight.double(), weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module.bias.double(), bias, rtol=1e-5, atol=1e-5)
    x = federation.data.split(0, "test").x
    expected = F.linear(module.net.backbone(x), module.weight, module.bias)
    assert torch.equal(module(x), expected)


def test_only_the_body_is_trained_under_a_constant_head(monkeypatch):
    """Invariant 4."""
    federation = Federation(fda(epochs=3))
    module = federation.start(0)
    heads = []
    monkeypatch.setattr(module, "on_train_batch_end", lambda *a: heads.append(classifier(module)))
    before = clone(module.net.state_dict())
    head = classifier(module)
    federation.train(0)
    assert len(heads) == 9
    assert all(equal(head, other) for other in heads)
    after = module.net.state_dict()
    assert all(
        torch.equal(after[name], value) == name.startswith("head.")
        for name, value in before.items()
    )


@pytest.mark.parametrize("stats", ["running", "fresh_pass"])
def test_one_client_with_its_own_gaussians_makes_the_global_ones(stats, monkeypatch):
    """Invariant 5: b = 1, so M and S are the client's estimates.

    A rate of zero keeps the body, so that running features are those of one walk, three times.
    """
    module = PFedFDA(mlp(), optimizer=sgd(0.0), epochs=3, stats=stats)
    ones = torch.ones(2, dtype=torch.float64)
    monkeypatch.setattr("lightning_modules.pfedfda.choose_coefficients", lambda *given: ones)
    federation = Federation(module)
    common = received(federation)
    federation.round(0)
    split = federation.data.split(0, "train")
    with torch.no_grad():
        z = module.net.backbone(split.x).double()
    times = 3 if stats == "running" else 1
    expected = estimate(z.repeat(times, 1), split.targets.repeat(times), common)
    found = received(federation)
    torch.testing.assert_close(found.means, expected.means, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=1e-5, atol=1e-5)
    assert federation.kept[0]["coefficients"].tolist() == [1.0, 1.0]


def test_every_client_adapts_before_a_test_and_nothing_of_it_stays():
    federation = Federation(fda())
    federation.round(0, 1)
    before = fingerprint([federation.state.shared])
    common = classifier(federation.start(2))
    federation.test(2)
    module = federation.module
    assert not equal(classifier(module), common)
    assert fingerprint([federation.state.shared]) == before
    body = select(module.state_dict(), BODY)
    assert equal(body, select(federation.state.shared, BODY))
    split = federation.data.split(2, "train")
    with torch.no_grad():
        z = module.net.backbone(split.x).double()
    local = estimate(z, split.targets, received(federation))
    b_mean = module.coefficients[0].double()
    expected = torch.lerp(received(federation).means, local.means, b_mean)
    torch.testing.assert_close(module.means.double(), expected, rtol=1e-5, atol=1e-5)


def test_the_global_model_takes_classes_as_equally_likely():
    federation = Federation(fda())
    federation.round()
    module = federation.module
    module.load_global(federation.server.broadcast(federation.state, 0, 1))
    assert module.prior.tolist() == pytest.approx([1 / 3] * 3)


def test_without_training_running_statistics_leave_the_gaussians():
    federation = Federation(fda(epochs=0))
    before = federation.state.shared
    (result,) = federation.round(0)
    assert equal(result.upload.shared, before)
