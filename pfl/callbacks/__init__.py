"""What a run reports, and where to; what every run reports to is loaded when one begins."""

from typing import TYPE_CHECKING

from pfl.imports.lazy import lazy

if TYPE_CHECKING:
    from pfl.callbacks.checkpoint import Checkpoint as Checkpoint
    from pfl.callbacks.interruption import interrupt as interrupt
    from pfl.callbacks.lightning_logger import LightningLogger as LightningLogger
    from pfl.callbacks.progress import ProgressBar as ProgressBar
    from pfl.callbacks.records import Records as Records
else:
    __all__, __getattr__, __dir__ = lazy(__name__, __file__)
