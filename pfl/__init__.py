"""The framework: the loop, the engines and the data that moves between them."""

from typing import TYPE_CHECKING

from pfl.imports.lazy import lazy

if TYPE_CHECKING:
    from pfl.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from pfl.federation.run import Callback as Callback
    from pfl.federation.sampling import BernoulliSampler as BernoulliSampler
    from pfl.federation.sampling import UniformSampler as UniformSampler
    from pfl.loop import FederatedLoop as FederatedLoop
else:
    # Nothing inside the project imports from here.
    __all__, __getattr__, __dir__ = lazy(__name__, __file__)
