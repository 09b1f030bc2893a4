"""Files of checkpoints hold tensors and plain values of any shape."""

from __future__ import annotations

import math
from collections import OrderedDict

import pytest
import torch

from pfl.disk import container
from pfl.federation import checkpoint, schema
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.run import Callback
from tests.helpers.messages import parts

SHARED = torch.arange(6.0).view(2, 3)
CONTENT = {
    "round": 3,
    "kept": {4: {"weight": torch.arange(7)}, 9: {"weight": SHARED.T}},
    "a": {"/b": SHARED, "": {"b": SHARED + 1}},
    "history": [{"loss": 0.1, "none": None, "on": True, "far": math.inf}, {"dict": -0.0}],
    "pair": (1, [torch.tensor(2.0), ()], "ä"),
    "tensor": "a text",
    "empty": {},
    "ordered": OrderedDict(b=1, a=2),
    "large": 2**70,
}


def test_whatever_is_saved_comes_back_with_its_types(tmp_path):
    checkpoint.save(tmp_path / "file", CONTENT)
    found = checkpoint.load(tmp_path / "file")
    assert found.pop("format") == checkpoint.FORMAT
    assert repr(found) == repr({**CONTENT, "ordered": {"b": 1, "a": 2}})


def test_what_has_no_form_is_told_with_its_place(tmp_path):
    with pytest.raises(TypeError, match=parts("callbacks/Mine/0 ~ cannot store a set")):
        checkpoint.save(tmp_path / "file", {"callbacks": {"Mine": [{1}]}})
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "value", [{"tensor": "w"}, {"float": "far"}, {"dict": [1]}, {"dict": [[[], 1]]}, {}, {"w": 1}]
)
def test_marks_that_say_nothing_are_refused(value, tmp_path):
    container.write(tmp_path / "file", {"dict": [["made", value]]}, {})
    with pytest.raises(CheckpointError, match=parts("file ~ another program")):
        checkpoint.load(tmp_path / "file")


def test_values_are_compared_where_both_sides_have_them():
    """A server's dictionary may grow, and a callback may not know a value yet."""
    one = torch.zeros(2)
    schema._check_alike("server.w", {"a": one, "new": one}, {"a": one, "old": one})
    with pytest.raises(CheckpointError, match=parts("server.w.a must be float32[2]")):
        schema._check_alike("server.w", {"a": one[:1]}, {"a": one})

    class Keeps(Callback):
        def state_dict(self):
            return {"best": 1.0, "none": None}

    for stored in ({}, {"best": None}, {"none": 3.0}, {"best": 2.0, "other": "x"}):
        schema._check_callback("Keeps", Keeps(), stored)
    with pytest.raises(CheckpointError, match=parts("callbacks.Keeps.best must be float")):
        schema._check_callback("Keeps", Keeps(), {"best": "x"})
