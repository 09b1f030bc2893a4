"""Stacked clients: their states share a leading axis, and one module plays all of them at once."""
