"""Parts of a round that several methods share: phases and passes, their statistics, and servers.

What serves one method alone (Fisher traces, Gaussians, halves of a cluster, neighbours, ...) is
imported from its module.
"""

from typing import TYPE_CHECKING

from pfl.imports.lazy import lazy

if TYPE_CHECKING:
    from lightning_modules.steps.adapters import ADAPTERS as ADAPTERS
    from lightning_modules.steps.adapters import Factors as Factors
    from lightning_modules.steps.adapters import adapted_layers as adapted_layers
    from lightning_modules.steps.adapters import factors_of as factors_of
    from lightning_modules.steps.adapters import is_down as is_down
    from lightning_modules.steps.adapters import uniform_rows as uniform_rows
    from lightning_modules.steps.alignment import Alignment as Alignment
    from lightning_modules.steps.alignment import AlignTarget as AlignTarget
    from lightning_modules.steps.alignment import alignment_parts as alignment_parts
    from lightning_modules.steps.alignment import misalignment as misalignment
    from lightning_modules.steps.gradients import adam_step as adam_step
    from lightning_modules.steps.gradients import slopes_at as slopes_at
    from lightning_modules.steps.gradients import with_gradient as with_gradient
    from lightning_modules.steps.optimizers import beyond_plain_sgd as beyond_plain_sgd
    from lightning_modules.steps.optimizers import learning_rate as learning_rate
    from lightning_modules.steps.optimizers import warn_of_overshoot as warn_of_overshoot
    from lightning_modules.steps.optimizers import with_lr as with_lr
    from lightning_modules.steps.phases import Part as Part
    from lightning_modules.steps.phases import halves_of as halves_of
    from lightning_modules.steps.phases import part_phase as part_phase
    from lightning_modules.steps.phases import remember as remember
    from lightning_modules.steps.prototypes import ClassMeans as ClassMeans
    from lightning_modules.steps.prototypes import class_gaps as class_gaps
    from lightning_modules.steps.prototypes import class_means as class_means
    from lightning_modules.steps.prototypes import class_sums as class_sums
    from lightning_modules.steps.prototypes import mask_unknown as mask_unknown
    from lightning_modules.steps.prototypes import means_pass as means_pass
    from lightning_modules.steps.prototypes import means_upload as means_upload
    from lightning_modules.steps.prototypes import sums_by_class as sums_by_class
    from lightning_modules.steps.prototypes import unknown_prototypes as unknown_prototypes
    from lightning_modules.steps.rows import ModelsServer as ModelsServer
    from lightning_modules.steps.rows import Rows as Rows
    from lightning_modules.steps.rows import as_others as as_others
    from lightning_modules.steps.rows import mixtures as mixtures
    from lightning_modules.steps.rows import products as products
    from lightning_modules.steps.rows import repeated as repeated
    from lightning_modules.steps.rows import row as row
    from lightning_modules.steps.rows import square_distances as square_distances
    from lightning_modules.steps.rows import with_rows as with_rows
    from lightning_modules.steps.servers import DampedServer as DampedServer
    from lightning_modules.steps.servers import MeansServer as MeansServer
    from lightning_modules.steps.servers import MovingServer as MovingServer
    from lightning_modules.steps.servers import descent as descent
    from lightning_modules.steps.servers import linear_descent as linear_descent
    from lightning_modules.steps.servers import stepped as stepped
    from lightning_modules.steps.servers import uploaded_means as uploaded_means
else:
    __all__, __getattr__, __dir__ = lazy(__name__, __file__)
