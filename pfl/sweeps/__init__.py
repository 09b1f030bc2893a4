"""Sweeps: a W&B sweep file, run here, on Optuna."""
