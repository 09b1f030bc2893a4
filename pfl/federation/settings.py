"""The loop's options, each declared here and only here, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException

from pfl.core import devices as core_devices
from pfl.core.checks import check_arguments, finite, one_of
from pfl.core.execution import Execution
from pfl.core.ranges import AtLeastOne, NotNegative, Positive
from pfl.core.types import EvaluationPoint
from pfl.core.words import Device, Folder, OneDevice
from pfl.engines.base import Engine
from pfl.engines.keeper import Keeper
from pfl.engines.memory import total
from pfl.engines.named import EngineName, make_engine
from pfl.federation.cost import Cost
from pfl.federation.evaluation import Evaluation
from pfl.federation.run import Callback
from pfl.federation.sampling import Sampler, UniformSampler
from pfl.training.uplink import UplinkStep

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

KEPT_SHARE = 100
"""Share of a machine's memory that holds what clients keep, by default."""

Precision: TypeAlias = Literal["32-true", "64-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True, eq=False)
class Settings:
    """The settings of a run.

    Args:
        rounds: Communication rounds, T.
        sampler: Draws the clients that train, and those that upload, in each round.
        engine: Runs the clients of a round; an object or a name. ``auto`` chooses by device,
            method, network and client sizes, and the run's header shows the choice.
        workers: For an engine given by name: the number of cores for ``auto``, of threads for
            ``threads``, of processes for ``processes``, of actors for ``ray``, of sites asked at a
            time for engines of sites; ``None`` takes what is free, shared with other runs.
        evaluate_every: Rounds from one test of the models to the next; the last round is always
            tested.
        evaluate_from: Round of the first test; ``None`` is ``evaluate_every``.
        evaluate_clients: Number of clients to test, drawn once for the whole run from those with
            test data (``evaluated_clients`` in the records). The planned last round tests all
            clients in any case; ``None`` always does, ``auto`` if there are at most 1,000, and
            takes 100 otherwise.
        evaluate_at: Points at which personalised models are tested; ``None`` takes the method's
            own. The first gives ``test/personal/...``, further ones ``test/personal_<point>/...``.
        evaluations: What else is measured after a round, such as ``Fairness``; ``None`` has what
            the data ask for.
        accelerator: As in Lightning.
        devices: One device, as in Lightning; how a run is spread over workers is the engine's task.
        precision: As in Lightning: ``32-true``, ``64-true``, ``bf16-mixed``, ``16-mixed``.
        gradient_clip_val: Largest gradient norm of a client's step; ``None`` does not clip.
        features: What a frozen part gives with which the network begins: ``cached`` computes it
            once for each sample, where that changes nothing but last bits, as the batches are
            others, and the header says so, or why not; ``computed`` computes it in each step.
            Beyond 1 GB, features lie in files, as what clients keep does.
        cost: The clients' bandwidths and speeds, from which each round's simulated seconds follow.
        uplink: Steps between clients and server, in the order in which clients take them, such as
            ``Privacy`` and ``Codecs``; ``None`` sends tensors as they are, and counts their bytes.
        on_nonfinite: ``stop`` ends the run when a client's loss or weights are not finite; ``skip``
            discards what that client did in the round (its kept state stays, it uploads nothing)
            and continues.
        callbacks: Called with the result of each round.
        loggers: Lightning loggers; each is called once a round.
        default_root_dir: Folder in which each run gets its own, ``<name>/<time>``; ``None`` writes
            nothing.
        name: Name of the experiment, a path below ``default_root_dir``; ``None`` derives it from
            the method and the data.
        checkpoint_every: Rounds from one checkpoint to the next; the last round is always saved.
        kept_memory: Gigabytes of CPU memory for what clients keep from round to round, and the
            same again for models that a server holds for each client. The rest lies in files
            beside the runs, or in the system's temporary folder. ``None`` is a hundredth of the
            machine's memory for a run on the CPU, and has no bound on other devices.
        progress: Show a progress bar and the closing table.
        seed: Seed of every random choice; of the network's initial weights, where ``fit`` is given
            a function that makes the method.

    Raises:
        ValueError: A number is out of its range, a word is not known, or ``name`` leads out of
            ``default_root_dir``.
        TypeError: A callback is not a :class:`pfl.federation.run.Callback`.
    """

    rounds: AtLeastOne = 10
    sampler: Sampler = UniformSampler()  # noqa: RUF009 (frozen)
    engine: Engine | EngineName = "auto"
    workers: Annotated[AtLeastOne | None, Execution(of_machine=True)] = None
    evaluate_every: AtLeastOne = 1
    evaluate_from: AtLeastOne | None = None
    evaluate_clients: AtLeastOne | Literal["auto"] | None = "auto"
    evaluate_at: list[EvaluationPoint] | None = None
    evaluations: list[Evaluation] | None = None
    accelerator: Annotated[str, Device(), Execution()] = "auto"
    devices: Annotated[int | str, OneDevice(), Execution()] = 1
    precision: Precision = "32-true"
    gradient_clip_val: Positive[float] | None = None
    features: Annotated[Literal["cached", "computed"], Execution()] = "cached"
    cost: Cost | None = None
    uplink: list[UplinkStep] | None = None
    on_nonfinite: Literal["stop", "skip"] = "stop"
    callbacks: list[Callback] | None = None
    loggers: list[Logger] | None = None
    default_root_dir: Annotated[str | None, Folder(), Execution(of_machine=True)] = None
    name: Annotated[str | None, Execution()] = None
    checkpoint_every: Annotated[AtLeastOne, Execution()] = 10
    kept_memory: Annotated[NotNegative[float] | None, Execution(of_machine=True)] = None
    progress: Annotated[bool, Execution()] = True
    seed: int = 42

    def __post_init__(self) -> None:
        check_arguments(self)
        finite(kept_memory=self.kept_memory)
        one_of("on_nonfinite", self.on_nonfinite, ("stop", "skip"))
        one_of("features", self.features, ("cached", "computed"))
        for point in self.evaluate_at or ():
            one_of("each of evaluate_at", point, get_args(EvaluationPoint))
        if self.name is not None and (
            Path(self.name).is_absolute() or ".." in Path(self.name).parts or "\0" in self.name
        ):
            raise ValueError(f"name must be a path below default_root_dir, got {self.name!r}")
        if self.workers is not None and not isinstance(self.engine, str):
            raise ValueError(
                f"workers={self.workers} needs an engine given by name; pass it to the engine "
                "itself"
            )
        # Both raise errors for values that they do not accept.
        _ = self.runner, self.fabric

    @property
    def options(self) -> dict[str, Any]:
        """All options by name."""
        return {field.name: getattr(self, field.name) for field in fields(Settings)}

    @cached_property
    def runner(self) -> Engine:
        """The engine, built if it was given by name."""
        if isinstance(self.engine, str):
            return make_engine(self.engine, self.workers)
        return self.engine

    def keeper(self, folder: Path | None) -> Keeper:
        """Return the keeper of what the clients of a new run keep.

        Args:
            folder: Folder of all runs of its name.
        """
        memory = None if self.kept_memory is None else int(self.kept_memory * 1e9)
        if memory is None and core_devices.on_host(self.fabric.device):
            memory = total() // KEPT_SHARE
        return self.runner.keeper(memory, folder, self.fabric.device)

    @cached_property
    def fabric(self) -> Fabric:
        """Device and precision.

        Raises:
            ValueError: There is no such device, or more than one is asked for.
        """
        wanted = f"accelerator {self.accelerator}, devices {self.devices}"
        try:
            fabric = core_devices.fabric(self.accelerator, self.devices, self.precision)
        except (RuntimeError, MisconfigurationException) as error:
            raise ValueError(f"{wanted}: {error} (accelerator auto takes what there is)") from error
        if fabric.world_size > 1:
            raise ValueError(
                f"devices must name one device, got {self.devices}; an engine spreads a run over "
                "workers"
            )
        return fabric

    def is_tested(self, number: int, last: int) -> bool:
        """Return ``True`` if models are tested after a round, of a run that ends with the last."""
        every = self.evaluate_every
        first = every if self.evaluate_from is None else self.evaluate_from
        regular = number >= first and (number - first) % every == 0
        return regular or number == last
