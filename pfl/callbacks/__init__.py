"""Callbacks that read a round: records, progress, checkpoints, early stopping, loggers."""
