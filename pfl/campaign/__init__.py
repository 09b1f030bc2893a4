"""A set of runs: claimed by locks, resumed, and made by one or several processes."""
