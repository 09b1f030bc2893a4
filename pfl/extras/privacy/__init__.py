"""Differential privacy of a run: for whole clients or single samples."""
