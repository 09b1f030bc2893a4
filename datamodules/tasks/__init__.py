"""Tasks beside those of :mod:`pfl.core.task`, and tasks by their names."""
