"""How a federation is made, of settings, a method, data and perhaps a checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.held_out import holders, members
from pfl.core.seeds import generator
from pfl.core.server import ServerState
from pfl.core.state import clone, constants, fingerprint, nbytes, to
from pfl.core.types import ClientInfo, Job, State
from pfl.disk.mapped import in_file
from pfl.engines import op_threads
from pfl.federation import checkpoint, header, resume, sampling, schema
from pfl.federation.evaluation import Evaluator
from pfl.federation.later import ADVICE
from pfl.federation.resume import Wanted
from pfl.federation.rounds import Federation
from pfl.federation.run import Run, load_states
from pfl.federation.settings import Settings
from pfl.federation.store import KeptStates
from pfl.federation.unseen import Newcomers
from pfl.training import client_round
from pfl.training.context import Context
from pfl.training.server_round import Coordinator


@contextmanager
def prepared(wanted: Wanted) -> Iterator[Federation]:
    """Prepare a federation; afterwards, release its engine.

    Raises:
        ValueError: No client has training data.
        CheckpointError: The checkpoint cannot be used.
        BusyError: Another process is working on its run.
    """
    with resume.opened(wanted) as file, ExitStack() as scope:
        yield prepare(wanted, file, scope)


def prepare(wanted: Wanted, file: Path | None, scope: ExitStack) -> Federation:
    """Return a federation before its first round, or as a checkpoint has it.

    Args:
        wanted: The run; its method has the network's initial weights.
        file: The checkpoint to resume from.
        scope: Releases the engine.
    """
    settings, module, root = wanted.settings, wanted.module, wanted.root
    content = None if file is None else resume.read(file, wanted)
    context = _context(wanted, content)
    scope.callback(settings.runner.close)
    data = context.data = settings.runner.meet(context, wanted.config)
    coordinator = Coordinator(context, settings.rounds, settings.seed)
    clients = coordinator.clients
    if not coordinator.eligible:
        raise ValueError("no client has training data")
    coordinator.bind(
        settings.uplink or [],
        data=wanted.data,
        sampler=settings.sampler,
        simulates=settings.runner.simulates,
    )
    rounds = min([settings.rounds, *(s.affordable(settings.rounds) for s in coordinator.uplink)])
    start = coordinator.start()

    def job(state: ServerState, client: int) -> Job:
        return coordinator.job(state, run.kept, client, run.round)

    def personal(client: int) -> Context:
        joins = client not in members(data)
        tested = newcomers.joined(run.server, client) if joins else job(run.server, client)
        client_round.become_tested(context, tested)
        return context

    kept: MutableMapping[int, State] = {}
    if settings.kept_memory is not None:
        kept = KeptStates(int(settings.kept_memory * 1e9), root)
    run = Run(
        module=module,
        data=data,
        seed=settings.seed,
        rounds=rounds,
        name=wanted.name,
        personal=personal,
        server=start,
        kept=kept,
        template=context.template,
        constants=fingerprint([constants(module)]),
        reports=coordinator.server.reports,
        scores=context.scorer.better,
        tested=_tested(settings, data),
        callbacks=[*wanted.callbacks],
    )
    # What a client keeps, and its group, may depend on the initial values.
    context.load({})
    if content is not None:
        _restore(content, run, clients, settings.fabric.device)
    if coordinator.server.per_client:
        run.server = _bounded(run.server, settings.kept_memory, root)
    points = settings.evaluate_at or [module.evaluate_at]
    evaluator = Evaluator(settings.runner, context, coordinator, points, job)
    origin = None if file is None else resume.folder_of(file)
    newcomers = Newcomers(settings, context, coordinator, evaluator)
    federation = Federation(settings, context, coordinator, evaluator, newcomers, run, root, origin)
    _start(federation, content)
    if (
        wanted.trains
        and root is not None
        and settings.runner.forgets
        and _keeps(module, coordinator)
    ):
        warnings.warn(
            "no checkpoint of this run can be resumed, as what clients keep lies in a temporary "
            "folder that ends with it: set loop.engine.folder",
            stacklevel=2,
        )
    return federation


def _context(wanted: Wanted, content: Mapping[str, Any] | None) -> Context:
    """Return the context of a run, with the initial values of its checkpoint if it has one.

    Raises:
        CheckpointError: The checkpoint belongs to another method, network or partition.
    """
    settings, module, data = wanted.settings, wanted.module, wanted.data
    device = settings.fabric.device
    data.to(device)
    # A checkpoint has the types of the run's precision, and is compared with the module.
    settings.fabric.strategy.precision.convert_module(module)
    template = None
    if content is not None:
        _check_same("method", content["method"], type(module).__name__)
        # The hash of data at sites is known once the sites have reported it.
        if (partition := data.description().get("hash")) is not None:
            _check_same("partition", content["partition"], partition, f"; {ADVICE}")
        schema.check_tensors("template", content["template"], module.state_dict())
        template = to(content["template"], device)
    return Context(module, data, settings.fabric, settings.gradient_clip_val, template=template)


def _restore(
    content: Mapping[str, Any], run: Run, clients: Sequence[ClientInfo], device: torch.device
) -> None:
    """Restore a new run to the state in a checkpoint.

    Raises:
        CheckpointError: The checkpoint does not fit the run; the run is unchanged.
    """
    partition = run.data.description().get("hash")
    _check_same("partition", content["partition"], partition, f"; {ADVICE}")
    schema.check(content, run, clients)
    run.round = content["round"]
    run.server = checkpoint.unpack(run.server, content["server"], device)
    bounded = isinstance(run.kept, KeptStates)
    for client, kept in content["kept"].items():
        # A bounded store gets copies, one at a time, of what is mapped from the file.
        run.kept[int(client)] = clone(kept) if bounded else to(kept, device)
    run.history = content["history"]
    run.failures, run.reasons = content["failures"], content.get("reasons", {})
    load_states(run.callbacks, content["callbacks"])


def _check_same(what: str, old: Any, wanted: Any, advice: str = "") -> None:  # noqa: ANN401
    if old != wanted:
        raise checkpoint.CheckpointError(
            f"the checkpoint was written with the {what} {old}, but this run has {wanted}{advice}"
        )


def _tested(settings: Settings, data: FederatedData) -> list[int] | None:
    """Draw the clients that are tested before the last round; ``None`` for all."""
    if settings.evaluate_clients is None:
        return None
    rng = generator(settings.seed, "evaluate")
    return sampling.subset(holders(data, "test"), settings.evaluate_clients, rng)


def _bounded(state: ServerState, memory: float | None, root: Path | None) -> ServerState:
    """Move the models that a server holds for each client into files, beyond the bound."""
    if memory is None or nbytes(state.shared) <= memory * 1e9:
        return state
    return replace(state, shared={n: in_file(value, root) for n, value in state.shared.items()})


def _start(federation: Federation, content: Mapping[str, Any] | None) -> None:
    """Set up the engine, and describe the decisions in the run's header."""
    settings, context, run = federation.settings, federation.context, federation.run
    engine = settings.runner
    began = {} if content is None else content
    engine.stacks = began.get("stacked")
    threads = op_threads.choose(context, began.get("op_threads"))
    federation.op_threads = threads.count
    with federation.computing():
        line = engine.setup(context)
        run.header = header.describe(federation, line, threads)
    run.stacked = engine.stacks


def _keeps(module: ClientModule, coordinator: Coordinator) -> bool:
    """Return ``True`` if clients keep anything from round to round."""
    remembers = any(step.remembers for step in coordinator.uplink)
    return bool(module.kept_names()) or module.persist_optimizer or remembers
