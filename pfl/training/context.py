"""The context of clients: the module with their network, its data, device and plans."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property, partial
from typing import Any, Literal, cast

import torch
from lightning.fabric import Fabric
from torch import nn

from pfl.core import devices
from pfl.core.batch_norms import batch_norms
from pfl.core.checks import needs_public
from pfl.core.client import ClientModule
from pfl.core.data import ClientSplit, FederatedData
from pfl.core.data_view import Subset, an_input
from pfl.core.failure import ExplainedError
from pfl.core.foreign import trains_itself
from pfl.core.layer_draws import LayerDraws, watched
from pfl.core.seeds import everything_scoped, scoped
from pfl.core.state import clone, copy_all, each, form_of, matches
from pfl.core.types import NO_CLIENT, ClientInfo, Job, Pass, Patterns, Phase, Plan, State
from pfl.training.declaration import MethodError, check_fits, check_lasts, check_trains, declared
from pfl.training.metrics import Scorer
from pfl.training.own_scores import OwnScorer
from pfl.training.reach import duplicate
from pfl.training.structure import Attributes, Mark, Structure


class StoppedError(ExplainedError):
    """A job was stopped in the middle because the run is ending."""


class Context:
    """The module with one network, which plays the clients that use it, one after another.

    Attributes:
        module: The module on its device; its state belongs to the current job.
        data: The federation's data, on the same device.
        scorer: Scores a model by its outputs.
        fabric: Device and precision.
        gradient_clip_val: Largest norm of a step's gradient; ``None`` disables clipping.
        stop: An event; once set, training ends before its next step with :class:`StoppedError`.
        template: The state that every job starts from, before kept values and broadcast.
        trainable: Names of the parameters that are not frozen by the user.
        own_nets: Networks of the module that train themselves, by name.
        remembered: What these networks have beside their state dict and must not get back with a
            job, to try whether they would read it: modules and names of attributes.
        beside_others: Whether other threads train clients at the same time.
        batch_norms: Names of the batch norms that use statistics of the batch in train mode;
            ``True`` if they have no running statistics, and so use the batch in eval mode too.
        plan: The module's plan for training.
        adapt: The module's plan before a test.

    Args:
        module: The module; it is moved to the device and converted to the precision.
        data: The federation's data, already on the device.
        stop: An event shared by several contexts; ``None`` creates one.
        template: Template of another context; ``None`` uses the module's current values.
        trainable: Names from another context; ``None`` uses the module's ``requires_grad``.
        beside_others: Whether other threads train clients at the same time, so that layers must not
            draw from torch's default stream.

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
    ) -> None:
        module.declare_anew()
        check_fits(module, data)
        check_types(module, fabric)
        # Moves the module and converts it to the precision. The wrapper that it returns is not
        # needed, because the training loop enters the precision's context itself.
        fabric.setup_module(module)
        # Lightning takes a LightningModule for a callback, so that a Fabric would hold all copies
        # that were set up with it.
        fabric._callbacks.remove(cast(Any, module))
        if fabric.strategy.precision.precision == "64-true":
            # Lightning leaves complex numbers as they are.
            for value in (*module.parameters(), *module.buffers()):
                if value.is_complex():
                    value.data = doubled(value.data)
        module.fabric = fabric
        module.train()
        self.module = module
        self.data = data
        self.fabric = fabric
        self.gradient_clip_val = gradient_clip_val
        self.own_nets = {n: net for n, net in module.named_children() if trains_itself(net)}
        for net in self.own_nets.values():
            # Their Trainer answers in place of the federation's Fabric.
            cast(Any, net).fabric = None
        self._attributes = Attributes(self.own_nets.values())
        self.remembered: Collection[tuple[nn.Module, str]] = ()
        self.scorer = (
            OwnScorer(module, data, fabric)
            if self.own_nets
            else Scorer(data.task, data.outputs, data.metrics)
        )
        self.stop = stop or threading.Event()
        self._structure = Structure(module)
        self.template = template or clone(self.entries)
        self.trainable = trainable or trained_by_user(module)
        self.beside_others = beside_others
        self.batch_norms = of_batches(module)
        self.plan, self.adapt = self.declared("plan"), self.declared("adapt")
        if self.own_nets:
            check_lasts(module, self.plan, self.trainable)
        self._modules = dict(module.named_modules())
        self._trained: dict[Patterns, frozenset[str]] = {}
        self._modes: dict[Patterns | None, list[bool]] = {}
        self.scaler = getattr(fabric.strategy.precision, "scaler", None)
        self._scaler_start = self.scaler.state_dict() if self.scaler is not None else {}

    def declared(self, verb: Literal["plan", "adapt", "introduce"]) -> Plan:
        """Return what a verb of the module declares, for this network and data.

        Raises:
            MethodError: It is not a declaration, a phase has nothing to train, or public data that
                it needs are missing.
        """
        plan = declared(self.module, verb)
        for part in plan:
            check_trains(self.module, part, self.trainable)
            if part.split == "public":
                self.public(type(self.module).__name__)
        return plan

    def public(self, who: str) -> ClientSplit:
        """Return the data that belong to no client; ``who`` needs them.

        Raises:
            MethodError: There are none.
        """
        public = self.data.split(NO_CLIENT, "public")
        if not len(public):
            raise MethodError(needs_public(who))
        return public

    @property
    def entries(self) -> State:
        """The module's own tensors at present, by their names in its state dict."""
        return self._structure.entries

    def replica(
        self,
        fabric: Fabric | None = None,
        data: FederatedData | None = None,
        template: State | None = None,
    ) -> Context:
        """Return a context with a copy of the module on another Fabric; the rest is shared.

        By default, the Fabric has the same device and precision.
        """
        fabric = fabric or fabric_like(self.fabric)
        made = Context(
            copied(self.module, self.fabric, fabric),
            data or self.data,
            fabric,
            self.gradient_clip_val,
            template=template or self.template,
            trainable=self.trainable,
        )
        made._drawing_kinds = self._drawing_kinds
        return made

    def in_double(self, data: FederatedData | None = None) -> Context:
        """Return a copy in float64, to compare two ways."""
        template = {name: doubled(value) for name, value in self.template.items()}
        return self.replica(fabric_like(self.fabric, "64-true"), data, template)

    def samples_of(self, part: Phase | Pass, info: ClientInfo, entries: State) -> ClientSplit:
        """Return the samples of a client, or the public ones, for a part of a plan.

        Args:
            part: The part.
            info: The client.
            entries: Its entries right before the part; not read without a subset.
        """
        split = self.data.split(info.client, part.split)
        if part.subset is None:
            return split
        with torch.no_grad():
            return Subset(split, part.subset(entries, info))

    def load(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Reset the module to the template, with the kept values in place."""
        entries = self._structure.restore()
        if self.own_nets:
            self._attributes.restore(self.remembered)
        values = {name: kept.get(name, value) for name, value in self.template.items()}
        for name, value in values.items():
            entry = entries[name]
            if entry.shape != value.shape or entry.dtype != value.dtype:
                # The last client gave it another form.
                entry.data = value.clone()
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

    def check_forms(self, info: ClientInfo) -> None:
        """Refuse entries that travel or stay, and changed their type or shape in a job.

        Raises:
            MethodError: There is one; the message names it.
        """
        entries = self.entries
        for name in (*self.module.shared_names(), *self.module.kept_names(info)):
            value, right = entries.get(name), self.template[name]
            if value is None or value.shape != right.shape or value.dtype != right.dtype:
                form = "nothing" if value is None else form_of(value)
                raise MethodError(
                    f"{type(self.module).__name__} or its network makes the entry {name!r} "
                    f"{form} instead of {form_of(right)}: what travels or stays keeps its form"
                )

    def mark(self) -> Mark:
        """Return a mark of the module's entries, to see later whether one of them has changed."""
        return Mark(self._structure)

    def couples_samples(self, evals: Patterns | None) -> bool:
        """Return ``True`` if the samples of a batch interact through a batch norm in this mode."""
        # A submodule is in eval mode if one that contains it is.
        held = None if evals is None else (*evals, *(f"{pattern}.*" for pattern in evals))
        return any(
            always or (held is not None and not matches(name, held))
            for name, always in self.batch_norms.items()
        )

    @cached_property
    def drawing(self) -> list[nn.Module]:
        """Layers that draw: those of torch, and others that were seen to draw in a forward pass."""
        kinds = self._drawing_kinds
        return [part for part in self.module.modules() if drops_out(part) or type(part) in kinds]

    @cached_property
    def draws(self) -> LayerDraws:
        """What these layers draw."""
        return LayerDraws(self.drawing)

    @cached_property
    def _drawing_kinds(self) -> frozenset[type[nn.Module]]:
        """Classes of modules that draw in a forward of their own, as by ``F.dropout``."""
        if self.own_nets:
            return frozenset()
        found: list[nn.Module] = []
        seeded = scoped(0, self.module.device)
        # A network that fails here fails in its first round, with a message of its own.
        with suppress(Exception), torch.no_grad(), seeded, self.fabric.autocast():
            # On a copy, as a forward pass may change more of the module than its entries.
            module = copied(self.module, self.fabric, self.fabric).train()
            inputs = each(lambda value: torch.cat([value, value]), an_input(self.data))
            found = [
                part for part in watched(module, partial(module, inputs)) if part is not module
            ]
        return frozenset(map(type, found))

    def isolated(self, job: Job) -> AbstractContextManager[None]:
        """Seed what layers draw for the client inside this scope, such as dropout."""
        if self.own_nets:
            return everything_scoped(job.seed_of("own steps"), self.module.device)
        if not self.drawing:
            return nullcontext()
        return self.draws.of(job.seed_of("dropout"), self.module.device, self.beside_others)


def check_types(module: nn.Module, fabric: Fabric) -> None:
    """Refuse entries that have no values yet, or that a precision has no type for.

    Raises:
        MethodError: There is such an entry; the message names it.
    """
    method, precision = type(module).__name__, str(fabric.strategy.precision.precision)
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if nn.parameter.is_lazy(value):
            raise MethodError(
                f"the entry {name!r} of {method} has no shape yet, as a lazy layer gets one from "
                "its first batch: pass a batch through the network before the run (net(x)), or "
                "take the layer that is not lazy"
            )
        if value.is_complex() and precision in ("16-true", "bf16-true"):
            raise MethodError(
                f"the entry {name!r} of {method} has complex numbers, which {precision} would "
                "turn into real ones: take 32-true, or a mixed precision"
            )


def doubled(value: torch.Tensor) -> torch.Tensor:
    """Convert real numbers to float64 and complex ones to complex128; return others unchanged."""
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value


def fabric_like(fabric: Fabric, precision: Any = None) -> Fabric:  # noqa: ANN401
    """Return a Fabric on the same device, with the same precision or another."""
    device = fabric.device
    index: int | list[int] = 1 if device.index is None else [device.index]
    precision = precision or fabric.strategy.precision.precision
    return devices.fabric(device.type, index, precision)


def copied(module: ClientModule, fabric: Fabric, other: Fabric) -> ClientModule:
    """Return a copy of a module that refers to another Fabric in place of its own."""
    # Lightning may hold a proxy of it, through which the copy would reach all callbacks.
    held = [fabric] if module._fabric is None else [fabric, module._fabric]
    return duplicate(module, {id(one): other for one in held})


def trained_by_user(module: nn.Module) -> set[str]:
    """Return the names of the parameters that the user has not frozen."""
    return {name for name, p in module.named_parameters() if p.requires_grad}


def of_batches(module: nn.Module) -> dict[str, bool]:
    """Return the batch norms that use statistics of a batch; see :attr:`Context.batch_norms`."""
    norms = {name: module.get_submodule(name) for name in batch_norms(module)}
    return {
        name: norm.running_mean is None
        for name, norm in norms.items()
        # A frozen copy stays in eval mode.
        if norm.training or norm.running_mean is None
    }


def drops_out(layer: nn.Module) -> bool:
    """Return ``True`` for a dropout layer, and for a layer that contains dropout."""
    within = isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)) and layer.dropout > 0
    return within or isinstance(layer, (nn.modules.dropout._DropoutNd, nn.RReLU))
