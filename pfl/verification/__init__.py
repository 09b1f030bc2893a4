"""Checks that a run repeats: its bits, its scores, and how far rounding carries it."""
