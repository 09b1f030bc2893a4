"""The words of tables, pictures and reports, from ``words.yaml`` beside this file."""

from __future__ import annotations

from collections.abc import Mapping

from pfl.disk.yaml_text import shipped

WORDS: Mapping[str, Mapping[str, str]] = shipped("pfl.results", "words.yaml")
