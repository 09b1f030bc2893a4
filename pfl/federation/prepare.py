"""Building a federation from settings, a method, data and, on a resume, a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from pfl.core.constants import frozen_size
from pfl.engines import memory, op_threads
from pfl.federation import header, resume
from pfl.federation.evaluator import chosen
from pfl.federation.resume import Wanted
from pfl.federation.rounds import Federation
from pfl.federation.run import Run
from pfl.federation.schema import Content
from pfl.training.contexts import Contexts
from pfl.training.features import hold_features
from pfl.training.inventory import check_states
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
    """Return a federation before its first round, or as stored in a checkpoint.

    Args:
        wanted: The run; its method has the network's initial weights.
        file: The checkpoint to resume from.
        scope: Releases the engine.
    """
    settings = wanted.settings
    wanted.data.to(settings.fabric.device)
    contexts = Contexts(wanted.module, wanted.data, settings.fabric, settings.gradient_clip_val)
    contexts.check_task()
    content = None if file is None else resume.read(file, wanted, contexts)
    if content is not None:
        contexts.start_from(content.template)
    scope.callback(settings.runner.close)
    held = _held(wanted, contexts, scope)
    # From here on, the data are as the engine's clients describe them.
    connected = settings.runner.connect(contexts, wanted.config)
    # Whoever asks the run for its data is given inputs, and not features.
    data = wanted.data if connected is contexts.data else connected
    contexts.data = connected
    check_states(contexts)
    coordinator = _coordinator(wanted, contexts)
    run = _run(wanted, coordinator, contexts, content)
    run.data = data
    coordinator.check_chain(run.server)
    if content is not None:
        resume.restore(content, run, coordinator.clients, contexts)
    if coordinator.server.per_client:
        run.server = replace(run.server, shared=run.keeper.rows(run.server.shared))
    origin = None if file is None else resume.folder_of(file)
    federation = Federation(settings, contexts, coordinator, run, wanted.root, origin)
    _start(federation, content)
    if held:
        run.header["features"] = held
    return federation


def _held(wanted: Wanted, contexts: Contexts, scope: ExitStack) -> str:
    """Compute features of a frozen part once, if told to; return what the header says of it."""
    settings = wanted.settings
    if settings.features == "computed":
        return ""
    if settings.runner.real:
        at = "at each site, where a frozen part begins the network, computed once for each sample"
        return at if frozen_size(contexts.module.net) else ""
    return hold_features(contexts, scope, wanted.root)


def _coordinator(wanted: Wanted, contexts: Contexts) -> Coordinator:
    """Return the server's side of the rounds, with the steps of the uplink."""
    settings = wanted.settings
    coordinator = Coordinator(contexts.first, settings.rounds, settings.seed)
    if not coordinator.eligible:
        raise ValueError("no client has training data")
    coordinator.bind(settings.uplink or [], data=wanted.data, sampler=settings.sampler)
    return coordinator


def _run(
    wanted: Wanted, coordinator: Coordinator, contexts: Contexts, content: Content | None
) -> Run:
    """Return the run before its first round."""
    settings = wanted.settings
    if content is not None and settings.evaluate_clients == "auto":
        # Under the default, a resumed run keeps the tested clients it started with.
        tested = content.tested
    else:
        tested = chosen(settings.evaluate_clients, settings.seed, contexts.data)
    return Run(
        module=wanted.module,
        data=contexts.data,
        seed=settings.seed,
        rounds=coordinator.chain.max_rounds(settings.rounds),
        name=wanted.name,
        server=coordinator.start(),
        keeper=settings.keeper(wanted.root),
        template=contexts.initial_values,
        constants=contexts.constants,
        reports=coordinator.server.reports,
        scores=contexts.scorer.better,
        tested=tested,
        callbacks=[*wanted.callbacks],
        waits=wanted.waits,
    )


def _start(federation: Federation, content: Content | None) -> None:
    """Set up the engine, and describe the decisions in the run's header."""
    engine, contexts, run = federation.settings.runner, federation.contexts, federation.run
    engine.decided = None if content is None else content.decided
    threads = op_threads.choose(contexts.first, None if content is None else content.op_threads)
    federation.op_threads = threads.count
    with federation.computing():
        line = engine.setup(contexts)
        run.header = header.describe(federation, line, threads)
    # What the copies took on which the method was tried.
    memory.give_back()
    run.decided = engine.decided
