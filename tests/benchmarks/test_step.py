"""What a stacked step calls and takes, beside one by hand."""

from __future__ import annotations

import re

import pytest
import torch

from benchmarks import step


@pytest.mark.long
def test_a_step_is_measured_with_and_without_dropout(capsys):
    step.main(["--net", "mlp16", "--clients", "2", "--rows", "1"])
    told = capsys.readouterr().out
    assert re.findall(r"dropout (\S+): a round of 20 steps", told) == ["0.0", "0.5"]
    assert (
        len(re.findall(r"a step of a round: \d+\.\d+ ms\na step by hand: \d+\.\d+ ms", told)) == 2
    )


def test_a_step_by_hand_is_one_of_each_client_alone():
    """Its clients begin alike and have batches of their own."""
    torch.manual_seed(0)
    take = step.by_hand("mlp16", 0.0, 3, "cpu")
    held = dict(zip(take.__code__.co_freevars, take.__closure__, strict=True))
    values, x, y = (held[name].cell_contents for name in ("values", "x", "y"))
    net = step.network("mlp16", 0.0)
    take()
    for client in range(3):
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x[client]), y[client]).backward()
        for name, parameter in net.named_parameters():
            wanted = parameter.detach() - 0.01 * parameter.grad
            torch.testing.assert_close(values[name][client], wanted)
