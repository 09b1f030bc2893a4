"""A set of runs: its progress, for whatever makes several runs."""
