"""A worker, which is a process of this program that runs clients, and the recipe to build it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.fabric import Fabric

from pfl.core.data import FederatedData
from pfl.core.devices import repeatable
from pfl.core.state import to
from pfl.core.types import State
from pfl.engines.transport import wire
from pfl.engines.transport.clients import Clients, plain, report_of
from pfl.training import client_round
from pfl.training.contexts import Contexts
from pfl.training.reach import Hooks, duplicate, give_hooks, hooks_of

if TYPE_CHECKING:
    from pfl.core.client import ClientModule


@dataclass(frozen=True)
class Recipe:
    """Everything a worker needs to build its context, and its numerical settings.

    Attributes that are not listed have the names of a context, Lightning or torch.

    Attributes:
        module: The method, on the CPU.
        hooks: The hooks of its parameters, which a pickled module lacks.
        data: The data module; those of ``datamodules`` are sent without their samples, which each
            worker reads itself.
        template: Initial values, on the CPU; after a resume they differ from the module's.
    """

    module: ClientModule
    hooks: Hooks
    data: FederatedData
    template: State
    trainable: list[set[str]]
    gradient_clip_val: float | None
    accelerator: Literal["cpu", "cuda"]
    precision: Any
    matmul_precision: str
    deterministic: bool

    @classmethod
    def of(cls, contexts: Contexts, gpu: bool = False) -> Recipe:
        """Return the recipe of contexts, with the numerical settings of this process."""
        fabric, module = contexts.module.fabric, contexts.module
        # A module's Fabric belongs to its process.
        module.fabric = None
        try:
            replica = duplicate(module).cpu()
        finally:
            module.fabric = fabric
        return cls(
            module=replica,
            hooks=hooks_of(replica),
            data=contexts.data,
            template=to(contexts.initial_values, "cpu"),
            trainable=contexts.trainable,
            gradient_clip_val=contexts.gradient_clip_val,
            accelerator="cuda" if gpu else "cpu",
            precision=contexts.fabric.strategy.precision.precision,
            matmul_precision=torch.get_float32_matmul_precision(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )


class Worker(Clients):
    """Clients in a dedicated process."""

    def __init__(self, recipe: Recipe) -> None:
        torch.set_float32_matmul_precision(recipe.matmul_precision)
        torch.use_deterministic_algorithms(recipe.deterministic)
        # Entered for the lifetime of the worker.
        self._kernels = repeatable()
        self._kernels.__enter__()
        fabric = Fabric(accelerator=recipe.accelerator, devices=1, precision=recipe.precision)
        recipe.data.to(fabric.device)
        give_hooks(recipe.module, recipe.hooks)
        super().__init__(
            Contexts(
                recipe.module,
                recipe.data,
                fabric,
                recipe.gradient_clip_val,
                template=to(recipe.template, fabric.device),
                trainable=recipe.trainable,
            )
        )

    @property
    def verbs(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """The verbs of messages; a worker also does other work than rounds and tests."""
        return {**super().verbs, "work": self._work}

    def _work(self, content: bytes) -> bytes:
        order, tensors = wire.asked("work", wire.WorkOrder, content)
        job = replace(self._job(order, tensors), work=order.work.work())
        result = client_round.train(self._contexts.of(job.info.client), job)
        report = report_of(result, wire.identity(order, content, self._packed))
        told = wire.WorkReport(**vars(report), course=[*map(plain, result.course)])
        return wire.written("work", told, result.upload, result.kept)

    def ready(self) -> str:
        """Return the file that holds the worker's error output, once the worker is built."""
        return os.path.realpath("/proc/self/fd/2")
