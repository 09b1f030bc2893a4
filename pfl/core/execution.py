"""Settings of where and how a run is executed, which say so beside their annotation.

A setting that is declared as ``workers: Annotated[AtLeastOne | None, Execution()]`` is no part of a
run's identity. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Execution:
    """The numbers of a run do not depend on this setting.

    Attributes:
        of_machine: Whether it suits one machine, and is therefore not taken from the file of
            someone who has another.
    """

    of_machine: bool = False
