"""The rounds: sampling, kept states, aggregation, evaluation, checkpoints.

A run is described by its settings and its records. What computes its rounds is loaded when one is
prepared: commands that read, list, plot or refuse runs do without.
"""

from typing import TYPE_CHECKING

from pfl.imports.lazy import lazy

if TYPE_CHECKING:
    from pfl.federation.checkpoint import CheckpointError as CheckpointError
    from pfl.federation.prepare import prepared as prepared
    from pfl.federation.resume import Wanted as Wanted
    from pfl.federation.resume import beside as beside
    from pfl.federation.resume import find_checkpoint as find_checkpoint
else:
    __all__, __getattr__, __dir__ = lazy(__name__, __file__)
