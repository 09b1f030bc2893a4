"""A worker of the Ray engine: what it is built from, and the jobs it runs."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.fabric import Fabric

from pfl.core.data import FederatedData
from pfl.core.failure import ExplainedError, JobError, error_line, failure_line
from pfl.core.kernels import repeatable
from pfl.core.state import to
from pfl.core.types import Scores, State
from pfl.engines.messages import Message, decode_job, encode_result
from pfl.training import client_round
from pfl.training.context import Context

if TYPE_CHECKING:
    from pfl.core.client import ClientModule


@dataclass(frozen=True)
class Recipe:
    """Everything a worker needs to build its context, and its numerical settings.

    Those that are not listed are named as a context, Lightning and torch name them.

    Attributes:
        module: The method, on the CPU.
        data: The data module; those of ``datamodules`` are sent without their samples, which each
            worker reads itself.
        template: Initial values, on the CPU; after a resume they differ from the module's.
        threads: Op threads of a worker.
    """

    module: ClientModule
    data: FederatedData
    template: State
    trainable: set[str]
    gradient_clip_val: float | None
    accelerator: Literal["cpu", "cuda"]
    precision: Any
    threads: int
    matmul_precision: str
    deterministic: bool

    @classmethod
    def of(cls, context: Context, threads: int, gpu: bool) -> Recipe:
        """Return the recipe of a context, with the numerical settings of this process."""
        fabric, module = context.module.fabric, context.module
        # A module's Fabric belongs to its process.
        module.fabric = None
        try:
            replica = copy.deepcopy(module).cpu()
        finally:
            module.fabric = fabric
        return cls(
            module=replica,
            data=context.data,
            template=to(context.template, "cpu"),
            trainable=context.trainable,
            gradient_clip_val=context.gradient_clip_val,
            accelerator="cuda" if gpu else "cpu",
            precision=context.fabric.strategy.precision.precision,
            threads=threads,
            matmul_precision=torch.get_float32_matmul_precision(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )


class Worker:
    """A Ray actor that runs the jobs it receives."""

    def __init__(self, recipe: Recipe) -> None:
        torch.set_num_threads(recipe.threads)
        torch.set_float32_matmul_precision(recipe.matmul_precision)
        torch.use_deterministic_algorithms(recipe.deterministic)
        # Entered for the lifetime of the worker.
        self._kernels = repeatable()
        self._kernels.__enter__()
        fabric = Fabric(accelerator=recipe.accelerator, devices=1, precision=recipe.precision)
        recipe.data.to(fabric.device)
        self._context = Context(
            recipe.module,
            recipe.data,
            fabric,
            recipe.gradient_clip_val,
            template=to(recipe.template, fabric.device),
            trainable=recipe.trainable,
        )

    def ready(self) -> str:
        """Return the file that holds the worker's error output, once the worker is built."""
        return os.path.realpath("/proc/self/fd/2")

    def train(self, message: Message, shared_payload: bytes) -> Message:
        """Run a client's round and return its encoded result."""
        job = decode_job(message, shared_payload, self._context.fabric.device)
        with _in_words():
            return encode_result(client_round.train(self._context, job))

    def test(self, message: Message, shared_payload: bytes) -> Scores:
        """Test a job's model and return its scores."""
        job = decode_job(message, shared_payload, self._context.fabric.device)
        with _in_words():
            return client_round.test(self._context, job)


@contextmanager
def _in_words() -> Iterator[None]:
    """Turn an error into its words: the original may not survive the way to the run's process."""
    try:
        yield
    except ExplainedError:
        raise
    except Exception as error:
        raise JobError(failure_line(error) or error_line(error)) from error
