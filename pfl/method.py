"""What a method is written with: one import for its author.

``from pfl.method import ClientModule, Phase, Plan`` for a short file, ``from pfl import method as
fl`` for a longer one. A name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from pfl.imports.lazy import lazy

if TYPE_CHECKING:
    from pfl.core.batch_norms import batch_norms as batch_norms
    from pfl.core.checks import at_least_one as at_least_one
    from pfl.core.checks import check_arguments as check_arguments
    from pfl.core.checks import finite as finite
    from pfl.core.checks import not_negative as not_negative
    from pfl.core.checks import one_of as one_of
    from pfl.core.checks import positive as positive
    from pfl.core.checks import within as within
    from pfl.core.client import ClientModule as ClientModule
    from pfl.core.client import ClientOptions as ClientOptions
    from pfl.core.client import LRSchedule as LRSchedule
    from pfl.core.constants import copied as copied
    from pfl.core.constants import hold_constant as hold_constant
    from pfl.core.constants import hold_frozen as hold_frozen
    from pfl.core.criteria import cross_entropies as cross_entropies
    from pfl.core.criteria import mean_cross_entropy as mean_cross_entropy
    from pfl.core.devices import wide as wide
    from pfl.core.devices import widest as widest
    from pfl.core.folds import Fold as Fold
    from pfl.core.folds import Folded as Folded
    from pfl.core.folds import Folds as Folds
    from pfl.core.folds import Mean as Mean
    from pfl.core.folds import Sum as Sum
    from pfl.core.folds import Uploads as Uploads
    from pfl.core.foreign import Need as Need
    from pfl.core.foreign import check_needs as check_needs
    from pfl.core.foreign import trains_itself as trains_itself
    from pfl.core.per_client import Variants as Variants
    from pfl.core.ranges import AtLeastOne as AtLeastOne
    from pfl.core.ranges import EpochCount as EpochCount
    from pfl.core.ranges import Fraction as Fraction
    from pfl.core.ranges import NotNegative as NotNegative
    from pfl.core.ranges import Positive as Positive
    from pfl.core.ranges import Range as Range
    from pfl.core.record import MethodRecord as MethodRecord
    from pfl.core.record import Paper as Paper
    from pfl.core.seeds import GENERATOR as GENERATOR
    from pfl.core.seeds import derive as derive
    from pfl.core.seeds import generator as generator
    from pfl.core.seeds import scoped as scoped
    from pfl.core.server import Server as Server
    from pfl.core.server import ServerState as ServerState
    from pfl.core.server import StateT as StateT
    from pfl.core.server import received as received
    from pfl.core.space import Dimension as Dimension
    from pfl.core.state import add as add
    from pfl.core.state import assign as assign
    from pfl.core.state import call_with as call_with
    from pfl.core.state import clone as clone
    from pfl.core.state import constants as constants
    from pfl.core.state import each as each
    from pfl.core.state import fingerprint as fingerprint
    from pfl.core.state import joined as joined
    from pfl.core.state import matches as matches
    from pfl.core.state import select as select
    from pfl.core.state import subtract as subtract
    from pfl.core.state import weighted_mean as weighted_mean
    from pfl.core.task import Classification as Classification
    from pfl.core.task import Task as Task
    from pfl.core.types import Batch as Batch
    from pfl.core.types import Broadcast as Broadcast
    from pfl.core.types import ClientInfo as ClientInfo
    from pfl.core.types import Count as Count
    from pfl.core.types import EvaluationPoint as EvaluationPoint
    from pfl.core.types import Inputs as Inputs
    from pfl.core.types import OptimizerFactory as OptimizerFactory
    from pfl.core.types import Outcome as Outcome
    from pfl.core.types import Pass as Pass
    from pfl.core.types import Patterns as Patterns
    from pfl.core.types import Phase as Phase
    from pfl.core.types import Plan as Plan
    from pfl.core.types import Positions as Positions
    from pfl.core.types import State as State
    from pfl.core.types import Terms as Terms
    from pfl.core.types import Totals as Totals
    from pfl.core.types import Upload as Upload
    from pfl.disk.room import empty_alike as empty_alike
else:
    __all__, __getattr__, __dir__ = lazy(__name__, __file__)
