"""How the jobs of a round are run; every engine gives the same numbers."""
