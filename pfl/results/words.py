"""The words of tables, pictures and reports, from ``words.yaml`` beside this file."""

from __future__ import annotations

from collections.abc import Mapping

from pfl.disk.yaml_text import shipped

WORDS: Mapping[str, Mapping[str, str]] = shipped("pfl.results", "words.yaml")
# Pictures of any run; pictures of values that its server reported stand between the two groups.
FIRST, LAST = WORDS["pictures_first"], WORDS["pictures_last"]
# Drawn only on request, or if a run has what they show; analyses bring further ones.
ASKED = WORDS["pictures_asked"]
