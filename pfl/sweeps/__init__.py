"""W&B's sweep files, run here on Optuna."""
