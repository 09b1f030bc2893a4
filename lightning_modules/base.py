"""What our methods are written with: ``pfl.method``, and what the rooms beside it offer.

``from lightning_modules import base as fl`` is the one import of a method. Each room lists what it
offers in its ``__init__``; a name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from pfl.imports.lazy import lazy

if TYPE_CHECKING:
    from lightning_modules.layers import *
    from lightning_modules.losses import *
    from lightning_modules.nets import *
    from lightning_modules.steps import *
    from pfl.method import *
else:
    __all__, __getattr__, __dir__ = lazy(__name__, __file__)
