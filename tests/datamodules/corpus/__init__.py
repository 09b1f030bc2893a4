"""Damaged and sound inputs of every reader, made from a seed: see ``python -m`` of this package."""
