"""Differential privacy of a run: of whole clients, or of their single samples."""
