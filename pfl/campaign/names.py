"""Names of stored runs."""

from __future__ import annotations

from pfl.federation import identity
from pfl.federation.identity import Identity


def name_of(content: Identity, scale: float = 1) -> str:
    """Return the name of a run: its method, its data, and the digest of its identity.

    ``scale`` is the share of the data, if the configuration does not yet limit the samples.
    """
    model, data = (content[part].rpartition(".")[2] for part in ("model", "data"))
    scaled = {} if scale == 1 else {"scale": scale}
    return f"{model}_{data}_{identity.digest(content | scaled)}".lower()
