"""No option comes, goes or changes its default unsaid."""

from __future__ import annotations

import re

import pytest

from pfl.federation import identity
from tests import options


def test_every_change_of_an_option_was_said():
    assert options.unsaid() == []


def test_names_of_classes_are_unique():
    names = [kind.__name__ for kind in options.classes()]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({}, "the class IID is new: record it with python -m tests.options"),
        (
            {"IID": {"n": 1}},
            "the option IID.n is gone: say in _CAME_OR_WENT of pfl/federation/identity.py",
        ),
    ],
)
def test_what_was_not_said_is_told_in_a_sentence(record, sentence, monkeypatch):
    recorded = {**options.recorded(), **record}
    if not record:
        del recorded["IID"]
    monkeypatch.setattr(options, "recorded", lambda: recorded)
    (told,) = options.unsaid()
    assert told.startswith(sentence)


def test_an_option_without_a_word_and_a_changed_default(monkeypatch):
    recorded = options.recorded()
    del recorded["Dirichlet"]["cap"]
    recorded["MLP"]["hidden"] = 17
    monkeypatch.setattr(options, "recorded", lambda: recorded)
    default, option = sorted(options.unsaid())
    assert re.match(r"the default of MLP.hidden was 17 and is \d+: ", default)
    assert option.startswith("the option Dirichlet.cap is new: say in _CAME_OR_WENT")
    # No record swallows it; an entry does.
    assert "cap" not in options.renewed()["Dirichlet"]
    assert options.renewed()["MLP"]["hidden"] != 17
    entries = {**identity._CAME_OR_WENT, "Dirichlet.cap": True}
    monkeypatch.setattr(identity, "_CAME_OR_WENT", entries)
    assert len(options.unsaid()) == 1


def test_an_option_of_a_base_is_told_of_once(monkeypatch):
    recorded = options.recorded()
    for known in recorded.values():
        known.pop("test_protocol", None)
    monkeypatch.setattr(options, "recorded", lambda: recorded)
    (told,) = options.unsaid()
    assert "under 'data.test_protocol' or 'CIFAR10.test_protocol', which value" in told
