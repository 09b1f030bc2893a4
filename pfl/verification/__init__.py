"""Checks that a run repeats: its bits and its scores."""
