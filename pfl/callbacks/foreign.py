"""Lightning's callbacks: why a federation refuses them, and what to use instead."""

from __future__ import annotations

# By name of Lightning's callback.
REPLACEMENTS = {
    "ModelCheckpoint": "checkpoint_every of the loop",
    "EarlyStopping": "pfl.EarlyStopping",
    "TQDMProgressBar": "progress of the loop",
    "RichProgressBar": "progress of the loop",
    "LearningRateMonitor": "lr_decay or lr_schedule of the method, which set the rate of a round",
    "ModelSummary": "the header of the run, which shows the network and its size",
}


def refusal(name: str) -> str:
    """Return the error message for a callback of Lightning."""
    ours = REPLACEMENTS.get(name, "a subclass of pfl.federation.run.Callback")
    return (
        f"{name} is not a callback of a federation, which has rounds and clients, not a "
        f"single training loop; use {ours}"
    )
