"""Local: every client trains its own network on its own data, without communication."""

from __future__ import annotations

from lightning_modules import base as fl


class Local(fl.ClientModule):
    """A network for each client, trained on its own data only: the baseline without collaboration.

    Nothing travels, and the whole network stays. There is no paper. With a sampler of participation
    below one, a client trains only when it is sampled; ``train_all: true`` of the sampler gives the
    schedule "every round" of the pFedVEM paper. :class:`ClientModule` lists the arguments.
    """

    record = fl.MethodRecord(
        name="Local",
        family="One model for all, and where to tune it",
        travels="-",
        stays="network",
        apart="each client trains alone",
    )

    shared = ()
    kept = ("net.*",)
    vectorizable = True
