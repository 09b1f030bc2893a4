"""The client: an ordinary LightningModule that also declares what travels and what stays."""

from __future__ import annotations

import inspect
import math
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pfl.core.batch_norms import norm_statistics, read_counters
from pfl.core.checks import check_arguments, check_overrides, tuples
from pfl.core.constants import detach_computed, hold_frozen
from pfl.core.entries import Declared, Divided, divide
from pfl.core.foreign import (
    Need,
    NeedError,
    OwnSteps,
    check_needs,
    package_of,
    trains_itself,
    warn_of_loaders,
)
from pfl.core.learner import Learner
from pfl.core.per_client import variants
from pfl.core.ranges import EpochCount, Range
from pfl.core.record import MethodRecord
from pfl.core.seeds import GENERATOR
from pfl.core.server import Server
from pfl.core.space import Dimension
from pfl.core.state import assign, clone, entry, form_of
from pfl.core.task import Classification, Task
from pfl.core.types import (
    Broadcast,
    ClientInfo,
    EvaluationPoint,
    OptimizerFactory,
    Patterns,
    Phase,
    Plan,
    State,
    Upload,
)

LRSchedule: TypeAlias = Literal["constant", "cosine"]

# Methods on which the tested model depends.
_TESTED = {"receive", "personalise", "load_global", "forward", "server"}


def _plain_sgd(parameters: Iterable[Tensor]) -> Optimizer:
    """Return SGD with a learning rate of 0.01, the optimiser if none is given."""
    return torch.optim.SGD(parameters, lr=0.01)


def _own_optimizers(net: nn.Module) -> OptimizerFactory:
    """Return a factory in place of the optimisers that a network configures itself."""

    def refuse(parameters: Iterable[Tensor]) -> Optimizer:
        raise NeedError(
            f"{type(net).__name__} configures its own optimisers, but the method needs one that it "
            "can build anew, or whose learning rate it knows: give the method optimizer, such as "
            "partial(torch.optim.SGD, lr=0.1), or choose another method"
        )

    return refuse


class ClientOptions(TypedDict, total=False):
    """The options of :class:`ClientModule`, for constructors that pass them on.

    ``**options: Unpack[ClientOptions]`` lets a type checker find a misspelt option. A constructor
    that changes a default or passes on further options takes ``Any``, as type checkers reject a
    name that is declared twice.
    """

    optimizer: OptimizerFactory
    epochs: int | float
    buffers: Literal["average", "local"]
    weighting: Literal["samples", "uniform"]
    lr_decay: float
    lr_schedule: LRSchedule
    persist_optimizer: bool
    stays: Sequence[str] | None
    travel_frozen: bool | None
    task: Task | None


class ClientModule(Learner, ABC):
    """One client of a federation; on its own, a plain supervised learner.

    A method is a subclass; this class itself, which would do as FedAvg does, is none. It declares
    in ``shared`` what travels and in ``kept`` what stays with the client, and overrides the methods
    in which it differs from FedAvg. An entry that is in neither tuple does not survive the round:
    before each job the module is reset to its initial values and those that the client kept.
    Everything that a client must remember, even within one round, is therefore a parameter or a
    buffer. One module serves all clients in turn.

    Attributes:
        record: What lists and citations say of the method; a class of its own states its own.
        vectorizable: Whether objectives and statistics run under ``torch.func.vmap``. The contract
            test checks the claim.
        global_model: Whether the server has a complete model that can be tested. ``None`` derives
            the answer: it does if every parameter of the network travels.
        one_model: Whether every client is tested with the server's model, which is then tested once
            for all. A class that overrides :meth:`receive`, :meth:`personalise`,
            :meth:`load_global`, ``forward`` or :meth:`server` does not inherit the declaration.
        needs: What the method needs of its network or of the data beyond the loss of a batch, by
            the names in ``pfl.core.foreign.NEEDS`` or as a ``Need`` of its own; what is missing is
            told before a run.
        draws_noise: Whether phases may declare noise. Results then depend on its generator, whose
            name is recorded (:meth:`noise_generator`).
        objects: Names of arguments that are objects; they are not saved as hyperparameters.

    Args:
        net: The network, with outputs of shape (B, D): logits in classification. Methods that split
            the network need a ``SplitNet``. Or a LightningModule with a ``training_step`` of its
            own, which is then the loss; see :doc:`/lightningmodule`.
        optimizer: Builds the optimiser of a round from the parameters to train. A LightningModule
            with its own steps configures its own optimisers, unless one is given.
        epochs: Local epochs per round, E; 0.5 uses half of the batches of an epoch.
        buffers: Whether the batch-norm statistics of the part that travels are averaged with it
            (``average``) or stay with the client (``local``). Counters never travel.
        weighting: Whether the default server weights uploads by their samples or all equally.
        lr_decay: The learning rate of round t is multiplied by ``lr_decay ** (t - 1)``.
        lr_schedule: ``cosine`` also multiplies the learning rate by ``(1 + cos(pi (t - 1) / T)) /
            2``, where T is the planned number of rounds, so that it falls from its full value to
            almost zero.
        persist_optimizer: Keep the optimiser's state, such as momentum, from round to round instead
            of resetting it.
        stays: Patterns of entries of the network that stay with the client although the method
            would send them, such as ``["decoder.*"]``.
        travel_frozen: Whether parameters of ``net`` with ``requires_grad=False`` are entries like
            others, which travel. Otherwise they are constants: in no message and no client's
            state. Their values must be the same wherever the run goes on.
        task: What is predicted; if not given, what the data say, and classification before a run.

    Raises:
        ValueError: A number is out of range, a word is unknown, or a pattern matches nothing in the
            network.
        NeedError: The network lacks what the method needs.
    """

    record: ClassVar[MethodRecord | None] = None
    vectorizable: bool = False
    global_model: bool | None = None
    one_model: bool = False
    needs: tuple[str | Need, ...] = ()
    draws_noise: bool = False
    objects: tuple[str, ...] = ("net", "optimizer", "task")

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerFactory = _plain_sgd,
        epochs: EpochCount = 1,
        buffers: Literal["average", "local"] = "average",
        weighting: Literal["samples", "uniform"] = "samples",
        lr_decay: Annotated[float, Range("(0, 1]")] = 1.0,
        lr_schedule: LRSchedule = "constant",
        persist_optimizer: bool = False,
        stays: Sequence[str] | None = None,
        travel_frozen: bool | None = None,
        task: Task | None = None,
    ) -> None:
        own = trains_itself(net)
        if own:
            package_of(net)  # Refuses what only looks like a LightningModule.
            warn_of_loaders(net)
            cast(Any, net).configure_model()
            task = OwnSteps(type(net).__name__)
        if isinstance(net, nn.Module):  # Before a method makes copies.
            detach_computed(net)
            if not travel_frozen:
                hold_frozen(net, tuple(stays or ()))
        factory = _own_optimizers(net) if own and optimizer is _plain_sgd else optimizer
        super().__init__(net, factory, Classification() if task is None else task)
        self.has_own_task = task is not None
        check_arguments(self)
        check_needs(type(self).__name__, self.needs, net)
        self.net_optimizes = own and optimizer is _plain_sgd
        self.save_hyperparameters(ignore=self.objects)
        if "_instantiator" in self.hparams:
            # LightningCLI gives plain values, even of the network, from which it is built again.
            self.save_hyperparameters()
        self.epochs = epochs
        self.buffer_policy = buffers
        self.weighting = weighting
        self.lr_decay = lr_decay
        self.lr_schedule: LRSchedule = lr_schedule
        self.persist_optimizer = persist_optimizer
        self.stays: Patterns = tuple(f"net.{pattern}" for pattern in stays or ())
        self._known: dict[int, Divided] = {}
        self._variant = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Hide the type of ``**options``, and end a base's ``one_model`` where it may be wrong.

        Raises:
            TypeError: The class takes a name of this one for something else.
        """
        super().__init_subclass__(**kwargs)
        check_overrides(cls, ClientModule, Learner)
        if "one_model" not in vars(cls) and _TESTED & vars(cls).keys():
            cls.one_model = False
        # jsonargparse would read the options from their type, without defaults and descriptions,
        # in place of the constructors that super().__init__ calls.
        start = vars(cls).get("__init__")
        if start is not None and (name := inspect.getfullargspec(start).varkw) is not None:
            start.__annotations__[name] = Any

    # Declarations of a method: class attributes, or properties where they depend on options.

    @property
    def shared(self) -> Patterns:
        """Patterns of the state-dict names that travel."""
        return ("net.*",)

    @property
    def kept(self) -> Patterns:
        """Patterns of the names that stay with the client from round to round."""
        return ()

    @property
    def extra(self) -> tuple[str, ...]:
        """Names of the buffers that :meth:`upload` sends beside the entries in ``shared``.

        The server reads them with :func:`pfl.core.server.received`. A client that sends a number
        there that is not finite does not count, as with the entries in ``shared``.
        """
        return ()

    @property
    def extra_within(self) -> Mapping[str, str]:
        """The interval of the numbers of entries of ``extra``, where the server relies on one.

        As in :class:`~pfl.core.ranges.Range`, such as ``[0, 9]`` for one of ten classes.
        """
        return {}

    @property
    def extra_nonfinite(self) -> tuple[str, ...]:
        """Names in ``extra`` that may be infinite or NaN, as the server knows what to do then."""
        return ()

    @property
    def logs(self) -> Patterns:
        """Patterns of names that steps log under some conditions only (``self.log``).

        What the first step of a phase logs need not be named. A site's report of other names is
        refused.
        """
        return ()

    @property
    def kept_later(self) -> Mapping[str, Sequence[float]]:
        """Values, from a client's second round on, of kept entries on which its plan depends.

        A server sees no kept entry of a site. With these values it knows the numbers of steps and
        samples that the site can report. One of several that give the same lengths is enough.
        Without the declaration such a report of any length is believed.
        """
        return {}

    def take_task(self, task: Task) -> None:
        """Take the task of the data, as none was given; a method may refuse it."""
        self.task = task

    @property
    def evaluate_at(self) -> EvaluationPoint:
        """When the method's personalised models are tested."""
        return "post_broadcast"

    @property
    def uses_rounds(self) -> bool:
        """``True`` if results depend on the planned number of rounds T (``ClientInfo.rounds``).

        ``lr_schedule: cosine`` is such a case. The run cannot be resumed with more rounds than
        planned.
        """
        return self.lr_schedule == "cosine"

    @property
    def groups(self) -> tuple[str, ...]:
        """Labels of groups of clients, for instance of clients with the same network.

        Scores are also averaged over each group (``test/personal/acc@<label>``).
        """
        return ()

    def group(self, info: ClientInfo) -> int:
        """Return the index in ``groups`` of a client's group, which is constant during a run."""
        return 0

    @classmethod
    def space(cls) -> Sequence[Dimension]:
        """Return the method's options that ``pfl bench`` searches, from its paper; by default none.

        Learning rate and epochs are not listed: a benchmark searches them for all methods.
        """
        return ()

    @classmethod
    def noise_generator(cls, options: Mapping[str, Any]) -> str | None:
        """Return the name of the noise generator; ``None`` if no phase draws noise.

        A class whose phases draw noise under some options overrides this.

        Args:
            options: Arguments of the method by name, at least those without their default.
        """
        return GENERATOR if cls.draws_noise else None

    # The client's round, in the order in which the engine calls these methods.

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load what the server sent: the entries that travel, and buffers named in ``extra``.

        Raises:
            ValueError: ``extra`` names a buffer that the client keeps, or one of another shape.
        """
        assign(self, {**broadcast.shared, **self._buffers_in(broadcast.extra, info)})

    def plan(self) -> Plan:
        """Declare the client's round after :meth:`receive`: by default one phase of :meth:`losses`.

        Called once, when entries have no values yet. Anything that differs between clients is a
        function in the plan (:attr:`pfl.core.types.Phase.epochs`,
        :attr:`pfl.core.types.Pass.when`).
        """
        return [Phase(name="local", objective=self.losses, epochs=self.epochs)]

    def lr_factor(self, info: ClientInfo) -> float:
        """Return the factor that multiplies every learning rate in this round."""
        done = max(0, info.round - 1)
        factor = self.lr_decay**done
        if self.lr_schedule == "cosine" and info.rounds > 0:
            factor *= (1 + math.cos(math.pi * done / info.rounds)) / 2
        return factor

    def upload(self, info: ClientInfo) -> Upload:
        """Return the message to the server, made of copies; change nothing."""
        shared = clone({name: entry(self, name) for name in self.shared_names()})
        extra = clone({name: entry(self, name) for name in self.extra})
        return Upload(client=info.client, samples=info.samples, shared=shared, extra=extra)

    def loss_warning(self, losses: Mapping[str, float]) -> str | None:
        """Return a warning about a round's mean losses, if they show that a term has failed.

        Args:
            losses: Means over clients, named by phase and term (``local/ce``).
        """
        return None

    # The model that is tested.

    def personalise(self, broadcast: Broadcast | None, info: ClientInfo) -> None:
        """Turn into the client's personalised model, given its kept state and a broadcast.

        Without a broadcast, as right after training, the trained model stays as it is.
        """
        if broadcast is not None:
            self.receive(broadcast, info)

    def adapt(self) -> Plan:
        """Declare what to run on the client's training data before the test.

        It runs after :meth:`personalise`, on a copy that is discarded after the test.
        """
        return ()

    def introduce(self) -> Plan:
        """Declare what a client that joins later runs as its introduction; by default nothing.

        It runs after :meth:`receive` of the server's first message to it; the server answers the
        :meth:`upload` after it with a second message, and the rest is discarded. A run with steps
        of the uplink, such as privacy, skips introductions, which would bypass them.
        """
        return ()

    def load_global(self, broadcast: Broadcast) -> None:
        """Turn into the server's global model."""
        assign(self, broadcast.shared)

    def server(self) -> Server[Any]:
        """Return the server's part of the method."""
        return Server(weighting=self.weighting)

    def take_variant(self, number: int) -> None:
        """Switch to one of several networks (:class:`pfl.core.per_client.Variants`)."""
        for one in variants(self):
            one.take(number)
        self._variant = number

    def declare_anew(self) -> None:
        """Forget what travels and what stays, as a run begins; options may have been changed."""
        self._known.clear()

    def describe(self) -> State:
        """Return named scalars that describe the current model, for analyses; by default none."""
        return {}

    # Names of what travels and what stays.

    def shared_names(self) -> tuple[str, ...]:
        """Return the names of the entries that travel, with the buffer policy applied."""
        return self._division().travel

    def kept_names(self, info: ClientInfo | None = None) -> tuple[str, ...]:
        """Return the names of the entries that stay with a client, with the buffer policy applied.

        Args:
            info: The client; ``None`` asks for all entries that any client keeps.
        """
        return self._division().stay

    def has_global_model(self) -> bool:
        """Return ``True`` if :meth:`load_global` gives a complete model."""
        if self.buffer_policy == "local" and norm_statistics(self):
            # The server has no batch-norm statistics that fit its weights.
            return False
        if self.global_model is not None:
            return self.global_model
        shared = set(self.shared_names())
        return all(f"net.{name}" in shared for name, _ in self.net.named_parameters())

    def _buffers_in(self, extra: State, info: ClientInfo) -> State:
        """Return the values of a message's ``extra`` that belong to buffers of the same names."""
        if not extra:
            return {}
        buffers = dict(self.named_buffers())
        found = {name: value for name, value in extra.items() if name in buffers}
        for name, value in found.items():
            what = f"the server sends {name!r} in extra, "
            if name in self.kept_names(info):
                raise ValueError(f"{what}but the client keeps a buffer of this name: rename one")
            if value.shape != buffers[name].shape:
                form = form_of(buffers[name])
                raise ValueError(f"{what}a {form_of(value)}, for a buffer that is {form}")
        return found

    def personal_is_global(self) -> bool:
        """Return ``True`` if all clients are tested with the server's model alone.

        That is the case if the class declares ``one_model``, no client keeps a part of the
        network, and nothing is fitted before the test.
        """
        # A model in eval mode does not read the counters of batch norms.
        keeps = any(n.startswith("net.") for n in {*self.kept_names()} - read_counters(self))
        return self.one_model and not keeps and not self.adapt() and self.has_global_model()

    def _division(self) -> Divided:
        """Return what travels and what stays, asked once for each network, as plans are."""
        if self._variant not in self._known:
            tuples(shared=self.shared, kept=self.kept, extra=self.extra)
            declared = Declared(self.shared, self.kept, self.stays, self.buffer_policy)
            self._known[self._variant] = divide(self, declared)
        return self._known[self._variant]
