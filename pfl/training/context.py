"""The context of an engine: the module that plays the clients, with data, device and plans."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import nn

from pfl.core import devices, per_client
from pfl.core.batch_norms import batch_norms
from pfl.core.client import ClientModule
from pfl.core.data import ClientSplit, FederatedData
from pfl.core.data_view import Subset
from pfl.core.failure import ExplainedError
from pfl.core.layer_draws import layer_draws
from pfl.core.state import clone, constants, copy_all, fingerprint, form_of, matches, to
from pfl.core.types import NO_CLIENT, ClientInfo, Job, Pass, Patterns, Phase, Plan, State
from pfl.training.declaration import MethodError, check_fits, check_trains, declared, public_of
from pfl.training.metrics import Scorer
from pfl.training.structure import Mark, Structure


class StoppedError(ExplainedError):
    """A job was stopped in the middle because the run is ending."""


class Context:
    """The module that plays every client in turn, with its data, device and plans.

    Attributes:
        module: The module on its device; its state belongs to the current job.
        data: The federation's data, on the same device.
        scorer: Scores a model by its outputs.
        fabric: Device and precision.
        gradient_clip_val: Largest norm of a step's gradient; ``None`` disables clipping.
        stop: An event; once set, training ends before its next step with :class:`StoppedError`.
        template: The state that every job starts from, before kept values and broadcast.
        trainable: Names of the parameters that are not frozen by the user.
        drawing: Layers that draw, such as dropout.
        beside_others: Whether other threads train clients at the same time.
        batch_norms: Names of the batch norms that use statistics of the batch in train mode;
            ``True`` if they have no running statistics, and so use the batch in eval mode too.
        plan: The module's plan for training.
        adapt: The module's plan before a test.
        variants: One context for each network that clients use, this one first; they share the
            module, which acts as one of them at a time.

    Args:
        module: The module; it is moved to the device and converted to the precision.
        data: The federation's data, already on the device.
        stop: An event shared by several contexts; ``None`` creates one.
        template: Template of another context, for all variants; ``None`` uses the module's current
            values.
        trainable: Names from another context; ``None`` uses the module's ``requires_grad``.
        beside_others: Whether other threads train clients at the same time, so that layers must not
            draw from torch's default stream.
        variant: Number of the variant; ``None`` creates the contexts of all variants.

    Raises:
        MethodError: A plan is not a declaration, the module overrides ``training_step``, the method
            does not suit the data's task, a phase has nothing to train in this network, or public
            data that it needs are missing.
    """

    def __init__(
        self,
        module: ClientModule,
        data: FederatedData,
        fabric: Fabric,
        gradient_clip_val: float | None = None,
        *,
        stop: threading.Event | None = None,
        template: State | None = None,
        trainable: set[str] | None = None,
        beside_others: bool = False,
        variant: int | None = None,
    ) -> None:
        number = variant or 0
        module.take_variant(number)
        check_fits(module, data)
        # Moves the module and converts it to the precision. The wrapper that it returns is not
        # needed, because the training loop enters the precision's context itself.
        fabric.setup_module(module)
        module.fabric = fabric
        module.train()
        self.module = module
        self.data = data
        self.scorer = Scorer(data.task, data.outputs, data.metrics)
        self.fabric = fabric
        self.gradient_clip_val = gradient_clip_val
        self.stop = threading.Event() if stop is None else stop
        self._structure = Structure(module)
        own = None if template is None else per_client.of_variant(template, number)
        self.template = clone(self.entries) if own is None else own
        wanted = {name for name, p in module.named_parameters() if p.requires_grad}
        self.trainable = wanted if trainable is None else trainable
        self.beside_others = beside_others
        self.drawing = [layer for layer in module.modules() if drops_out(layer)]
        norms = {name: module.get_submodule(name) for name in batch_norms(module)}
        self.batch_norms = {
            name: norm.running_mean is None
            for name, norm in norms.items()
            # A frozen copy stays in eval mode.
            if norm.training or norm.running_mean is None
        }
        self.plan, self.adapt = self.declared("plan"), self.declared("adapt")
        self._modules = dict(module.named_modules())
        self._trained: dict[Patterns, frozenset[str]] = {}
        self._modes: dict[Patterns | None, list[bool]] = {}
        self.scaler = getattr(fabric.strategy.precision, "scaler", None)
        self._scaler_start = self.scaler.state_dict() if self.scaler is not None else {}
        self.variants = [self]
        self._number, found = number, per_client.variants(module)
        self._networks = found[0] if found and variant is None else None
        if self._networks is not None:
            self._networks.check(data)
            self._add_variants(len(self._networks.nets), template)

    def _add_variants(self, count: int, template: State | None) -> None:
        """Create the contexts of the other networks, and check that shared entries agree."""
        first = {name: self.template[name] for name in self.module.shared_names()}
        for number in range(1, count):
            one = Context(
                self.module,
                self.data,
                self.fabric,
                self.gradient_clip_val,
                stop=self.stop,
                template=template,
                beside_others=self.beside_others,
                variant=number,
            )
            self.variants.append(one)
            other = {name: one.template[name] for name in self.module.shared_names()}
            if (apart := per_client.disagreement(first, other)) is not None:
                raise MethodError(
                    f"{type(self.module).__name__} sends entries that differ between networks: "
                    f"{apart}; the networks of clients may differ only in entries that they keep"
                )
        self.module.take_variant(0)

    def declared(self, verb: str) -> Plan:
        """Return what a verb of the module declares, for this network and data.

        Raises:
            MethodError: It is not a declaration, a phase has nothing to train, or public data that
                it needs are missing.
        """
        plan = declared(self.module, verb)
        for part in plan:
            check_trains(self.module, part, self.trainable)
            if part.split == "public":
                public_of(self.data, type(self.module).__name__)
        return plan

    def of(self, client: int) -> Context:
        """Return the context of a client's network, and switch the module to it.

        Jobs of no client use the first network.
        """
        return self.of_variant(self.variant_of(client))

    def of_variant(self, number: int) -> Context:
        """Return the context of one of the networks, and switch the module to it."""
        if len(self.variants) == 1:
            return self
        one = self.variants[number]
        one.data = self.data
        self.module.take_variant(one._number)
        return one

    def each_variant(self) -> Iterator[Context]:
        """Yield the context of each network, with the module switched to it.

        Afterwards the module is switched back to the first.
        """
        for number in range(len(self.variants)):
            yield self.of_variant(number)
        self.of_variant(0)

    def variant_of(self, client: int) -> int:
        """Return the number of a client's network."""
        if self._networks is None or client == NO_CLIENT:
            return 0
        return self._networks.of_client(client, self.data)

    @property
    def entries(self) -> State:
        """The module's own tensors at present, by their names in its state dict."""
        return self._structure.entries

    @property
    def initial_values(self) -> State:
        """The templates of all variants, under names from :func:`pfl.core.per_client.named`."""
        return {
            per_client.named(one._number, name): value
            for one in self.variants
            for name, value in one.template.items()
        }

    def start_from(self, values: State) -> None:
        """Use the initial values of a checkpoint as the template, and load them into the module."""
        for one in self.each_variant():
            one.template = to(per_client.of_variant(values, one._number), self.fabric.device)
            one.load({})

    @property
    def constants(self) -> str:
        """Hash of values outside the state, such as the frozen parts of a network."""
        return fingerprint([constants(one.module) for one in self.each_variant()])

    def replica(
        self,
        fabric: Fabric | None = None,
        data: FederatedData | None = None,
        template: State | None = None,
        stop: threading.Event | None = None,
        beside_others: bool = False,
        alone: bool = False,
    ) -> Context:
        """Return a context with a copy of the module on another Fabric; the rest is shared.

        By default, the Fabric has the same device and precision. ``alone`` copies this variant
        only, for all clients of the data.
        """
        if fabric is None:
            fabric = self._like(self.fabric.strategy.precision.precision)
        return Context(
            # The module refers to its Fabric, which must not be copied.
            copy.deepcopy(self.module, {id(self.fabric): fabric}),
            data or self.data,
            fabric,
            self.gradient_clip_val,
            stop=stop,
            template=template or self.initial_values,
            trainable=self.trainable,
            beside_others=beside_others,
            variant=self._number if alone else None,
        )

    def in_double(self, data: FederatedData | None = None) -> Context:
        """Return a copy in float64, to compare two ways, with one network for all clients."""
        template = {name: doubled(value) for name, value in self.initial_values.items()}
        return self.replica(self._like("64-true"), data, template, alone=True)

    def _like(self, precision: Any) -> Fabric:  # noqa: ANN401
        """Return a Fabric on the same device with the given precision."""
        device = self.fabric.device
        index: int | list[int] = 1 if device.index is None else [device.index]
        return devices.fabric(device.type, index, precision)

    def samples_of(self, part: Phase | Pass, info: ClientInfo, entries: State) -> ClientSplit:
        """Return a client's samples for a part of a plan.

        Args:
            part: The part.
            info: The client.
            entries: Its entries right before the part; not read without a subset.

        Raises:
            MethodError: The part uses public data, and there are none.
        """
        if part.split == "public":
            split = public_of(self.data, type(self.module).__name__)
        else:
            split = self.data.split(info.client, part.split)
        if part.subset is None:
            return split
        with torch.no_grad():
            return Subset(split, part.subset(entries, info))

    def load(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Reset the module to the template, with the kept values in place."""
        entries = self._structure.restore()
        values = {name: kept.get(name, value) for name, value in self.template.items()}
        for name, value in values.items():
            if not _alike(entries[name], value):
                # The last client gave it another form.
                entries[name].data = value.clone()
        copy_all([entries[name] for name in values], [*values.values()])
        if self._scaler_start:
            # A client's loss scale must not depend on the clients that ran before it.
            self.fabric.strategy.precision.load_state_dict(self._scaler_start)

    def write(self, values: Mapping[str, torch.Tensor]) -> None:
        """Set entries of the module.

        Raises:
            MethodError: The module has no entry of a given name.
        """
        if not values:
            return
        entries = self.entries
        with torch.no_grad():
            for name, value in values.items():
                self.entry(entries, name).copy_(value)

    def entry(self, state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        """Return an entry that a method sets.

        Raises:
            MethodError: There is no entry of this name.
        """
        if name not in state:
            raise MethodError(
                f"{type(self.module).__name__} sets the entry {name!r}, which its state dict does "
                "not have: register a buffer of this name"
            )
        return state[name]

    def set_mode(self, evals: Patterns | None) -> None:
        """Put the module into eval mode (``None``), or into train mode except some submodules.

        Modes that are already right are not set again, because checking is faster than setting.
        """
        if [child.training for child in self._modules.values()] == self._modes.get(evals):
            return
        self.module.train(evals is not None)
        for name, child in self._modules.items():
            if evals and matches(name, evals):
                child.eval()
        self._modes[evals] = [child.training for child in self._modules.values()]

    def train_only(self, patterns: Patterns) -> dict[str, nn.Parameter]:
        """Enable gradients only for the trainable parameters that match; return these."""
        if patterns not in self._trained:
            fitting = (name for name in self.trainable if matches(name, patterns))
            self._trained[patterns] = frozenset(fitting)
        wanted, trained = self._trained[patterns], dict[str, nn.Parameter]()
        for name, parameter in self._structure.parameters.items():
            if parameter.requires_grad != (name in wanted):
                parameter.requires_grad_(name in wanted)
            if name in wanted:
                trained[name] = parameter
        return trained

    def check_trained(self, trained: Mapping[str, nn.Parameter]) -> None:
        """Refuse parameters that were replaced while an optimiser trained them.

        Raises:
            MethodError: There is one; the message names it.
        """
        present = self._structure.parameters
        for name, parameter in trained.items():
            if present.get(name) is not parameter:
                raise MethodError(
                    f"{type(self.module).__name__} or its network replaces the parameter {name!r} "
                    "while it is trained: write into it in place"
                )

    def check_forms(self, info: ClientInfo) -> None:
        """Refuse entries that travel or stay, and changed their type or shape in a job.

        Raises:
            MethodError: There is one; the message names it.
        """
        entries = self.entries
        for name in (*self.module.shared_names(), *self.module.kept_names(info)):
            value, right = entries.get(name), self.template[name]
            if value is None or not _alike(value, right):
                form = "nothing" if value is None else form_of(value)
                raise MethodError(
                    f"{type(self.module).__name__} or its network makes the entry {name!r} "
                    f"{form} instead of {form_of(right)}: what travels or stays keeps its form"
                )

    def mark(self) -> Mark:
        """Return a mark of the module's entries, to see later whether one of them has changed."""
        return self._structure.mark()

    def couples_samples(self, evals: Patterns | None) -> bool:
        """Return ``True`` if the samples of a batch interact through a batch norm in this mode."""
        # A submodule is in eval mode if one that contains it is.
        held = None if evals is None else (*evals, *(f"{pattern}.*" for pattern in evals))
        return any(
            always or (held is not None and not matches(name, held))
            for name, always in self.batch_norms.items()
        )

    def isolated(self, job: Job) -> AbstractContextManager[None]:
        """Seed what layers draw for the client inside this scope, such as dropout."""
        if not self.drawing:
            return nullcontext()
        return layer_draws(
            self.drawing, job.seed_of("dropout"), self.module.device, self.beside_others
        )


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def doubled(value: torch.Tensor) -> torch.Tensor:
    """Convert a floating-point tensor to float64; return others unchanged."""
    return value.double() if value.is_floating_point() else value


def drops_out(layer: nn.Module) -> bool:
    """Return ``True`` for a dropout layer, and for a layer that contains dropout."""
    within = isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)) and layer.dropout > 0
    return within or isinstance(layer, (nn.modules.dropout._DropoutNd, nn.RReLU))
