"""Running W&B sweep files on this machine, with Optuna."""
