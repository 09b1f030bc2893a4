"""Engines, which run the jobs of a round; all give the same numbers."""
