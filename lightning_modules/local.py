"""Local: every client trains its own network on its own data and never talks to anyone.

The reference point without collaboration; no paper of its own. With a sampler of participation
below one a client trains only when sampled; ``train_all: true`` on the sampler gives the schedule
"every round" of the pFedVEM paper.
"""

from __future__ import annotations

from lightning_modules.base import ClientModule


class Local(ClientModule):
    """A client that trains alone; see :class:`ClientModule` for the arguments."""

    shared = ()
    kept = ("net.*",)
    vectorizable = True
