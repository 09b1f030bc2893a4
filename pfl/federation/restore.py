"""Restoring the state of a run from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pfl.core.client import ClientModule
from pfl.core.state import clone, to
from pfl.core.types import ClientInfo, FederatedData, State
from pfl.federation import checkpoint, schema
from pfl.federation.run import Run
from pfl.federation.store import KeptStates


def template(
    content: Mapping[str, Any], module: ClientModule, data: FederatedData, device: torch.device
) -> State:
    """Return the initial state in a checkpoint.

    Raises:
        CheckpointError: The checkpoint belongs to another method, network or partition.
    """
    for what, found, wanted in (
        ("method", content.get("method"), type(module).__name__),
        ("partition", content.get("partition"), data.description().get("hash")),
    ):
        if found != wanted:
            raise checkpoint.CheckpointError(
                f"the checkpoint was written with the {what} {found}, but this run has {wanted}"
            )
    initial = schema.template(content, module)
    return to(initial, device)


def stacked(content: Mapping[str, Any], device: torch.device) -> bool | None:
    """Return the engine's choice when the run began; older runs on a CPU never stacked clients."""
    formerly = None if device.type == "cuda" else False
    chosen: bool | None = content.get("stacked", formerly)
    return chosen


def op_threads(content: Mapping[str, Any]) -> int | None:
    """Return the number of op threads when the run began; older runs did not record it."""
    count: int | None = content.get("op_threads")
    return count


def restore(
    content: Mapping[str, Any], run: Run, clients: Sequence[ClientInfo], device: torch.device
) -> None:
    """Restore a new run to the state in a checkpoint.

    Raises:
        CheckpointError: The checkpoint does not fit the run; the run is unchanged.
    """
    schema.check(content, run, clients)
    run.round = content["round"]
    run.server = checkpoint.unpack(run.server, content["server"], device)
    for client, kept in content["kept"].items():
        # A bounded store gets copies, one at a time, of what is mapped from the file.
        run.kept[int(client)] = clone(kept) if isinstance(run.kept, KeptStates) else kept
    run.history = content["history"]
    # Earlier versions did not count them.
    run.failures = content.get("failures", {})
    for callback in run.callbacks:
        callback.load_state_dict(content["callbacks"].get(callback.name, {}))
