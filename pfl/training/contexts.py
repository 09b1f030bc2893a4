"""The contexts of all clients: of one network, or of several, of which each client uses one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from lightning.fabric import Fabric
from torch import Tensor

from pfl.core import per_client
from pfl.core.client import ClientModule
from pfl.core.criteria import wide
from pfl.core.data import CountedSplit, FederatedData, members
from pfl.core.judging import TaskError, check_task
from pfl.core.state import constants, fingerprint, to
from pfl.core.types import NO_CLIENT, State
from pfl.training.context import Context, copied, fabric_like
from pfl.training.declaration import MethodError

# Samples on which a task is tried.
_TRIED = 16


class Contexts:
    """The contexts of all clients, which share a module that acts as one network at a time.

    Attributes:
        module: The module.
        fabric: Device and precision.
        gradient_clip_val: As in :class:`Context`.
        labels: The name of each network; empty if all clients use the same.

    Args:
        module: The module; it is moved to the device and converted to the precision.
        data: The federation's data, already on the device.
        fabric: Device and precision.
        gradient_clip_val: As in :class:`Context`.
        stop: As in :class:`Context`.
        template: Values from :attr:`initial_values`; ``None`` uses the module's current values.
        trainable: From :attr:`trainable`; ``None`` uses the module's ``requires_grad``.
        beside_others: As in :class:`Context`.

    Raises:
        MethodError: See :class:`Context`; or networks differ in entries that travel.
        ValueError: A client cannot be assigned a network.
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
        trainable: Sequence[set[str]] | None = None,
        beside_others: bool = False,
    ) -> None:
        self.module, self.fabric, self.gradient_clip_val = module, fabric, gradient_clip_val
        self._networks = next(iter(per_client.variants(module)), None)
        self._all, travels = list[Context](), list[State]()
        stop = stop or threading.Event()
        for number in range(per_client.count(module)):
            module.take_variant(number)
            one = Context(
                module,
                data,
                fabric,
                gradient_clip_val,
                stop=stop,
                template=per_client.of_variant(template or {}, number),
                trainable=None if trainable is None else trainable[number],
                beside_others=beside_others,
            )
            self._all.append(one)
            travels.append({name: one.template[name] for name in module.shared_names()})
            if (apart := per_client.disagreement(travels[0], travels[-1])) is not None:
                raise MethodError(
                    f"{type(module).__name__} sends entries that differ between networks: {apart}; "
                    "the networks of clients may differ only in entries that they keep"
                )
        if self._networks is not None:
            self._networks.check(data)
        self.scorer = self.first.scorer

    @property
    def first(self) -> Context:
        """The context of the first network; the module is switched to it."""
        return self.of(NO_CLIENT)

    @property
    def data(self) -> FederatedData:
        """The federation's data, on the device."""
        return self._all[0].data

    @data.setter
    def data(self, data: FederatedData) -> None:
        for one in self._all:
            one.data = data

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each network; empty if all clients use the same."""
        return () if self._networks is None else self._networks.labels

    def number_of(self, client: int) -> int:
        """Return the number of a client's network."""
        if self._networks is None or client == NO_CLIENT:
            return 0
        return self._networks.of_client(client, self.data)

    @cached_property
    def architectures(self) -> list[int]:
        """For each network, the number of the first one that differs only in initial values."""
        for one in self.each():
            # Modes may differ by what was computed before.
            one.module.train()
        first = per_client.architectures(self.module)
        pairs = [*zip(first, self.trainable, strict=True)]
        return [pairs.index(pair) for pair in pairs]

    def of(self, client: int) -> Context:
        """Return the context of a client's network, and switch the module to it.

        Jobs of no client use the first network.
        """
        if self._networks is None:
            return self._all[0]
        number = self.number_of(client)
        self.module.take_variant(number)
        return self._all[number]

    def declared(self, client: int) -> Context:
        """Return the context of a client's network, for its declarations alone.

        The module stays as it is, so that several threads may ask.
        """
        return self._all[self.number_of(client)]

    def each(self) -> Iterator[Context]:
        """Yield the context of each network, with the module switched to it; then to the first."""
        for number, one in enumerate(self._all):
            self.module.take_variant(number)
            yield one
        self.module.take_variant(0)

    @property
    def initial_values(self) -> State:
        """The templates of all networks, under names from :func:`pfl.core.per_client.named`."""
        return {
            per_client.named(number, name): value
            for number, one in enumerate(self._all)
            for name, value in one.template.items()
        }

    def start_from(self, values: State) -> None:
        """Use the initial values of a checkpoint as the templates, and load them."""
        for number, one in enumerate(self.each()):
            one.template = to(per_client.of_variant(values, number), self.fabric.device)
            one.load({})

    @property
    def trainable(self) -> list[set[str]]:
        """For each network, the names of the parameters that are not frozen by the user."""
        return [one.trainable for one in self._all]

    @property
    def constants(self) -> str:
        """Hash of values outside the state, such as the frozen parts of a network."""
        return fingerprint([constants(one.module) for one in self.each()])

    def check_task(self) -> None:
        """Refuse a task that breaks its promises on samples of a client, as the network sees them.

        Those of the kernel are not tried again.

        Raises:
            TaskError: It does.
        """
        task, data = self.data.task, self.data
        if type(task).__module__.startswith("pfl.core."):
            return
        splits = {client: data.split(client, "train") for client in members(data)}
        # Of clients at sites only counts are here.
        sizes = {c: 0 if isinstance(s, CountedSplit) else len(s) for c, s in splits.items()}
        client = max(sizes, key=lambda one: sizes[one])
        context = self.of(client)
        if context.own_nets or sizes[client] < 2:
            return
        context.load({})
        context.set_mode(None)
        with torch.inference_mode(), context.fabric.autocast():
            batch = data.split(client, "train").batch(torch.arange(min(_TRIED, sizes[client])))
            outputs = context.module(batch.x)
        if not isinstance(outputs, Tensor) or len(outputs) != len(batch.y):
            form = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise TaskError(
                f"the task {task} needs a tensor with a row for each of {len(batch.y)} samples, "
                f"and the network gives {form}"
            )
        if outputs.isfinite().all():
            check_task(task, wide(outputs), batch.y)

    def replica(
        self,
        data: FederatedData | None = None,
        stop: threading.Event | None = None,
        beside_others: bool = False,
    ) -> Contexts:
        """Return contexts with a copy of the module; the rest is shared."""
        fabric = fabric_like(self.fabric)
        return Contexts(
            copied(self.module, self.fabric, fabric),
            data or self.data,
            fabric,
            self.gradient_clip_val,
            stop=stop,
            template=self.initial_values,
            trainable=self.trainable,
            beside_others=beside_others,
        )
