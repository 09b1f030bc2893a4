"""Engines, which run the jobs of a round; every one gives the same numbers."""
