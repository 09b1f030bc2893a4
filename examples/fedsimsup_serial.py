"""FedSimSup without a supervisor: one network whose head and backbone are trained in turn.

"Personalized Federated Learning under Local Supervision", ICCV 2025, Fig. 4.
"""

from __future__ import annotations

from typing_extensions import Unpack

from lightning_modules import base as fl
from lightning_modules.fedsimsup import AbsentRule, SimSupServer, SimSupState


class FedSimSupSerial(fl.ClientModule):
    """FedSimSup with one network, whose head and backbone are trained in turn, the head first.

    Fig. 4 of the paper compares FedSimSup's two networks with training one network in turn "like
    FedRep". The backbone travels both ways; the server stores one backbone for each client and
    mixes them by Eqs. 6-10. The head stays. The paper does not say how its variant was built; this
    one is our reading.

    Args:
        net: A ``SplitNet``.
        head_epochs: Epochs of the head; ``epochs`` are those of the backbone.
        mix_C: See :class:`~lightning_modules.fedsimsup.FedSimSup`.
        mix_gamma: See :class:`~lightning_modules.fedsimsup.FedSimSup`.
        absent_rule: See :class:`~lightning_modules.fedsimsup.FedSimSup`.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range.
    """

    shared = ("net.backbone.*",)
    kept = ("net.head.*",)
    global_model = False
    vectorizable = True
    needs = ("classes", "outputs")
    # Mixing fades out after a fraction of the rounds.
    uses_rounds = True

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        head_epochs: fl.NotNegative[int] = 5,
        mix_C: fl.NotNegative[float] = 40.0,  # noqa: N803 (the paper's letter)
        mix_gamma: fl.NotNegative[float] = 3 / 7,
        absent_rule: AbsentRule = "similarity",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.head_epochs = head_epochs
        self.mixing: tuple[float, float, AbsentRule] = mix_C, mix_gamma, absent_rule

    def plan(self) -> fl.Plan:
        """Declare training of the head, then of the backbone."""
        return [
            fl.part_phase(self, "head", self.head_epochs),
            fl.part_phase(self, "body", self.epochs),
        ]

    def server(self) -> fl.Server[SimSupState]:
        """Return a server that stores one backbone for each client."""
        return SimSupServer(self.weighting, *self.mixing)
