"""No option comes, goes or changes its default unsaid."""

from __future__ import annotations

import re

from pfl.federation import identity
from tests import options


def test_every_change_of_an_option_was_said():
    assert options.unsaid() == []


def test_names_of_classes_are_unique():
    names = [kind.__name__ for kind in options.classes()]
    assert sorted(names) == sorted(set(names))


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
