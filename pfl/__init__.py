"""The ground floor: the loop, the engines and the data that moves between them."""

from typing import TYPE_CHECKING

from pfl.lazy import lazy

if TYPE_CHECKING:
    from pfl.callbacks import Callback as Callback
    from pfl.callbacks import EarlyStopping as EarlyStopping
    from pfl.loop import FederatedLoop as FederatedLoop
    from pfl.sampling import BernoulliSampler as BernoulliSampler
    from pfl.sampling import UniformSampler as UniformSampler
else:
    # Nothing inside the project imports from here.
    __all__, __getattr__, __dir__ = lazy(
        __name__,
        {
            "callbacks": ("Callback", "EarlyStopping"),
            "loop": ("FederatedLoop",),
            "sampling": ("BernoulliSampler", "UniformSampler"),
        },
    )
