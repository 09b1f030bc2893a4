"""How the jobs of a round are run: the same numbers from each engine."""
