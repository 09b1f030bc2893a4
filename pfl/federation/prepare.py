"""How a federation is made, of settings, a method, data and perhaps a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pfl.core.data import FederatedData
from pfl.core.held_out import holders, members
from pfl.core.seeds import generator
from pfl.core.server import ServerState
from pfl.core.state import constants, fingerprint, nbytes
from pfl.core.types import Job, State
from pfl.disk.mapped import in_file
from pfl.engines import op_threads
from pfl.federation import header, private, private_samples, restore, resume, sampling
from pfl.federation.evaluation import Evaluator
from pfl.federation.resume import Wanted
from pfl.federation.rounds import Federation
from pfl.federation.run import Run
from pfl.federation.settings import Settings
from pfl.federation.store import KeptStates
from pfl.federation.unseen import Newcomers
from pfl.passage.coding import Coding
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
    scope.callback(settings.engine.close)
    data = context.data = settings.engine.meet(context, wanted.config)
    coordinator = Coordinator(context, settings.rounds, settings.seed)
    clients = coordinator.clients
    if not coordinator.eligible:
        raise ValueError("no client has training data")
    account = None
    if (privacy := settings.privacy) is not None:
        private.check_loss(wanted.data)
        of = {"user": private.account_of, "sample": private_samples.account_of}[privacy.level]
        account = of(privacy, settings, context, coordinator)
    rounds = settings.rounds if account is None else account.affordable(settings.rounds)

    start = coordinator.start()
    if settings.codec is not None:
        sent = coordinator.server.broadcast(start, coordinator.eligible[0], 1)
        coordinator.coding = Coding(settings.codec, module, sent, settings.seed)

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
        callbacks=settings.callbacks,
    )
    # What a client keeps, and its group, may depend on the initial values.
    context.load({})
    if content is not None:
        restore.restore(content, run, clients, settings.fabric.device)
    if coordinator.server.per_client:
        run.server = _bounded(run.server, settings.kept_memory, root)
    points = settings.evaluate_at or [module.evaluate_at]
    evaluator = Evaluator(settings.engine, context, clients, points, job)
    origin = None if file is None else resume.folder_of(file)
    newcomers = Newcomers(settings, context, coordinator, evaluator)
    federation = Federation(settings, context, coordinator, evaluator, newcomers, run, root, origin)
    federation.account = account
    _start(federation, content)
    return federation


def _context(wanted: Wanted, content: Mapping[str, Any] | None) -> Context:
    """Return the context of a run, with the initial values of its checkpoint if it has one."""
    settings, module, data = wanted.settings, wanted.module, wanted.data
    device = settings.fabric.device
    data.to(device)
    # A checkpoint has the types of the run's precision, and is compared with the module.
    settings.fabric.strategy.precision.convert_module(module)
    template = None if content is None else restore.template(content, module, data, device)
    return Context(module, data, settings.fabric, settings.gradient_clip_val, template=template)


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
    engine = settings.engine
    began = {} if content is None else content
    engine.stacks = began.get("stacked")
    threads = op_threads.choose(context, began.get("op_threads"))
    federation.op_threads = threads.count
    with federation.computing():
        line = engine.setup(context)
        run.header = header.describe(federation, line, threads)
    run.stacked = engine.stacks
