"""The header of a run: the decisions made for it, one line for each topic."""

from __future__ import annotations

from lightning.fabric import Fabric
from torch import nn

from pfl.core.client import ClientModule
from pfl.core.constants import frozen_size
from pfl.core.data import FederatedData, ReportsReading, members
from pfl.core.data_view import name_of
from pfl.core.devices import on_host
from pfl.core.per_client import networks
from pfl.core.plain import spelled
from pfl.engines.op_threads import OpThreads
from pfl.federation.rounds import Federation
from pfl.federation.run import Run

# What a repetition gives; see docs/ideas.md.
SAME_BITS = "with the same versions, kind of processor and op threads; elsewhere equal to rounding"


def describe(federation: Federation, engine: str, threads: OpThreads) -> dict[str, str]:
    """Return the header's lines by topic, before the first round; ``engine`` is the engine's."""
    run, evaluator, fabric = federation.run, federation.evaluator, federation.settings.fabric
    module, data, planned = run.module, run.data, federation.settings.rounds
    training = sum(info.samples > 0 for info in evaluator.clients)
    local = module.buffer_policy == "local" and not evaluator.has_global_model
    host = on_host(fabric.device)
    uplink = federation.coordinator.chain.described(run.history, planned, run.rounds)
    measured: dict[str, str] = {}
    for evaluation in federation.evaluations:
        measured |= evaluation.described()
    lines = {
        "method": type(module).__name__,
        "network": "; ".join(map(_network, networks(module.net))),
        "travels": _travels(module),
        "data": _data(data),
        "read": data.reading.line() if isinstance(data, ReportsReading) else "",
        "clients": f"{data.num_clients}, of which {training} hold training data",
        **measured,
        "device": _device(fabric),
        "buffers": "local, so no global model is tested" if local else module.buffer_policy,
        "evaluated": ", ".join(evaluator.points),
        "tested": _tested(run),
        "engine": engine,
        "groups": evaluator.group_sizes(),
        "uploads": _held(federation),
        **uplink,
        "op threads": str(threads) if host else "",
        "same bits": SAME_BITS if host else "",
    }
    return {topic: line for topic, line in lines.items() if line}


def _network(net: nn.Module) -> str:
    """Describe a network by its class and size."""
    return f"{type(net).__name__}, {_size(net):,} parameters"


def _size(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters()) + frozen_size(net)


def _travels(module: ClientModule) -> str:
    """Count the parameters that travel; an empty text if the network has no constant ones."""
    if not frozen_size(module.net):
        return ""
    sent = {*module.shared_names(), *module.extra}
    moved = {name: value.numel() for name, value in module.named_parameters() if name in sent}
    # What a method adds to the network, such as a prompt, is beside it.
    beside = sum(count for name, count in moved.items() if not name.startswith("net."))
    whole = _size(module.net) + beside
    return f"{sum(moved.values()):,} of {whole:,} parameters; the others are constant or stay"


def _held(federation: Federation) -> str:
    """Say which uploads wait in memory for the end of a round, if they take a megabyte or more."""
    run = federation.run
    each, whose = federation.coordinator.held(run.server)
    if not each:
        return ""
    count = len(federation.cohort(run.round + 1).uploads)
    if (size := count * each / 1e6) < 1:
        return ""
    return (
        f"{whose} needs all at once: {count:,} of {each / 1e6:,.3g} MB, {size:,.0f} MB a round in "
        "memory"
    )


def _device(fabric: Fabric) -> str:
    """Describe device and precision."""
    return f"{fabric.device}, {fabric.strategy.precision.precision}"


def _tested(run: Run) -> str:
    """Describe the clients that are tested; an empty text if all of them always are."""
    if run.tested is None:
        return ""
    count, every = len(run.tested), len(members(run.data))
    return (
        f"the same {count} of {every:,} clients (loop.evaluate_clients), all after the last round"
    )


def _data(data: FederatedData) -> str:
    """Describe data: their class and their partition."""
    name, recipe = name_of(data), data.description().get("partition")
    return name if recipe is None else f"{name}, {spelled(recipe)}"
