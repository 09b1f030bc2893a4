"""The declarations of a method: shared, kept and extra entries, and when it is tested."""

from __future__ import annotations

import pytest

from lightning_modules.fedavg import FedAvg
from lightning_modules.finetune import FineTuned
from tests.helpers.discovery import build, methods
from tests.helpers.toy import mlp

DECLARED = {"shared", "kept", "extra", "evaluate_at", "vectorizable"}


def test_no_constructor_assigns_a_declaration():
    """It stands in the class, as an attribute or as a property of the options."""
    modules = [build(method, mlp()) for method in methods()]
    assert not [type(module) for module in modules if DECLARED & vars(module).keys()]


def test_a_declaration_is_the_same_for_good():
    with pytest.raises(AttributeError, match="kept"):
        FedAvg(mlp()).kept = ("net.*",)


@pytest.mark.parametrize("point", ["post_broadcast", "post_local"])
def test_a_fine_tuned_method_is_tested_when_the_method_says(point):
    class Own(FedAvg):
        evaluate_at = point

    class OwnP(FineTuned, Own):
        def ft_objective(self):
            return None

    assert OwnP(mlp()).evaluate_at == point
    assert OwnP(mlp(), p_mode="participants_only").evaluate_at == "post_local"
