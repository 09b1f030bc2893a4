"""Benchmarks: equal budgets, settings chosen on validation data, verifiable rows."""
