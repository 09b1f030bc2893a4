"""Benchmarks: equal budgets, settings chosen on validation data, rows that others can verify."""
