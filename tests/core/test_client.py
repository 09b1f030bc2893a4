"""The client's options, as type checkers and parsers see them."""

from inspect import signature
from typing import get_type_hints

import pytest
import torch

from lightning_modules import FedAvg
from pfl.core.client import ClientModule, ClientOptions
from pfl.core.types import Broadcast, ClientInfo
from tests.helpers.messages import parts
from tests.helpers.toy import mlp


def test_the_options_are_those_of_the_constructor():
    hints = get_type_hints(ClientModule.__init__)
    assert get_type_hints(ClientOptions) == {
        name: hints[name] for name in signature(ClientModule).parameters if name != "net"
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"optimizer": torch.optim.SGD(mlp().parameters())}, "optimizer ~ partial( ~ got SGD"),
        ({"optimizer": "SGD"}, "optimizer ~ partial( ~ got str"),
        ({"net": torch.nn.Linear}, "net must be a network ~ class 'torch.nn"),
    ],
)
def test_a_ready_optimiser_and_a_network_that_is_not_built_are_refused(given, told):
    with pytest.raises(TypeError, match=parts(told)):
        ClientModule(**{"net": mlp(), **given})


class Sends(ClientModule):
    extra = ("trace",)

    def __init__(self, net, names=("trace",)):
        super().__init__(net)
        for name in names:
            self.register_buffer(name, torch.tensor(3.0))


def test_a_buffer_in_extra_is_sent_as_a_copy():
    module = Sends(mlp())
    sent = module.upload(ClientInfo(1, 2, None))
    module.trace.zero_()
    assert sent.extra["trace"] == 3.0
    assert "trace" not in sent.shared


def test_a_name_in_extra_that_is_no_buffer_is_refused():
    with pytest.raises(KeyError, match=parts("Sends ~ 'trace'")):
        Sends(mlp(), ()).upload(ClientInfo(1, 2, None))


class One(ClientModule):
    one_model = True


class OneStill(One):
    one_model = True

    def receive(self, broadcast, info):
        super().receive(broadcast, info)


class OneLonger(OneStill):
    def plan(self):
        return [*super().plan(), *super().plan()]


class Personal(One):
    def personalise(self, broadcast, info):
        super().personalise(broadcast, info)


@pytest.mark.parametrize(
    ("method", "said"), [(One, True), (OneStill, True), (OneLonger, True), (Personal, False)]
)
def test_one_model_is_not_inherited_by_a_class_that_may_test_another(method, said):
    assert method(mlp()).personal_is_global() is said


# What the server sends beside the entries that travel.


class Bank(ClientModule):
    """A client with a buffer for what the server knows, and one of its own."""

    kept = ("own",)

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.bank = torch.nn.Buffer(torch.zeros(2))
        self.own = torch.nn.Buffer(torch.zeros(2))


def received(extra):
    module = Bank(mlp())
    module.receive(Broadcast({}, extra), ClientInfo(0, 4, None))
    return module


def test_a_buffer_gets_what_is_sent_under_its_name_and_the_rest_is_for_the_method():
    sent = torch.tensor([1.0, 2.0])
    module = received({"bank": sent, "banks": torch.ones(3)})
    assert module.bank.tolist() == [1, 2]
    assert module.own.tolist() == [0, 0]
    sent.zero_()
    assert module.bank.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"own": torch.ones(2)}, "'own' ~ the client keeps ~ rename one"),
        ({"bank": torch.ones(3)}, "'bank' ~ a float32[3], for a buffer that is float32[2]"),
        ({"bank": torch.ones(())}, "'bank' ~ a float32[], for a buffer"),
    ],
)
def test_what_would_overwrite_or_stretch_a_buffer_is_refused(extra, said):
    with pytest.raises(ValueError, match=parts(said)):
        received(extra)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "objective",
            lambda self, batch: {},
            r"objective\(self, net: .* \(self, batch\): give",
        ),
        ("objective", lambda self, batch, net=None: {}, "give it another name"),
        ("receive", lambda self, broadcast: None, r"receive\(self, broadcast: "),
        ("groups", lambda self, count: count, "a value and no method"),
        ("needs", lambda self: (), "a value and no method"),
        ("_division", lambda self, whole: None, "_division"),
    ],
)
def test_a_method_takes_no_name_of_the_framework_for_something_else(name, value, told):
    with pytest.raises(TypeError, match=rf"Own\.{name} takes the place of ClientModule.*{told}"):
        type("Own", (FedAvg,), {name: value})


def test_a_method_overrides_with_the_same_arguments_and_more():
    def objective(self, net, batch, scale=2.0):
        return {"own": scale * net(batch.x).sum()}

    own = {"objective": objective, "receive": lambda self, *given: None, "groups": ("a",)}
    assert type("Own", (FedAvg,), own).objective is objective
