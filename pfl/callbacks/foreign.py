"""Callbacks of Lightning: why a federation refuses them, and what does the same here."""

from __future__ import annotations

# By the name of Lightning's.
REPLACEMENTS = {
    "ModelCheckpoint": "checkpoint_every of the loop",
    "EarlyStopping": "pfl.EarlyStopping",
    "TQDMProgressBar": "progress of the loop",
    "RichProgressBar": "progress of the loop",
    "LearningRateMonitor": "lr_decay or lr_schedule of the method, which say the rate of a round",
    "ModelSummary": "the header of the run, which names the network and its size",
}


def refusal(name: str) -> str:
    """Return the message about a callback of that name."""
    ours = REPLACEMENTS.get(name, "a subclass of pfl.federation.run.Callback")
    return (
        f"{name} is not a callback of a federation, which has rounds and clients and no single "
        f"training loop; use {ours}"
    )
