"""Measurements, each as a ratio within one run: ``python -m benchmarks.round``."""
