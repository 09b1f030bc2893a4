"""Stacked clients: their states share a leading axis, and one module runs all of them at once."""
