"""Restoring the state of a run from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.state import clone, to
from pfl.core.types import ClientInfo, State
from pfl.federation import checkpoint, schema
from pfl.federation.later import ADVICE
from pfl.federation.run import Run, load_states
from pfl.federation.store import KeptStates


def template(
    content: Mapping[str, Any], module: ClientModule, data: FederatedData, device: torch.device
) -> State:
    """Return the initial state in a checkpoint.

    Raises:
        CheckpointError: The checkpoint belongs to another method, network or partition.
    """
    _check("method", content["method"], type(module).__name__)
    # The hash of data at sites is known once the sites have reported it.
    if (partition := data.description().get("hash")) is not None:
        _check("partition", content["partition"], partition, f"; {ADVICE}")
    schema.check_tensors("template", content["template"], module.state_dict())
    return to(content["template"], device)


def restore(
    content: Mapping[str, Any], run: Run, clients: Sequence[ClientInfo], device: torch.device
) -> None:
    """Restore a new run to the state in a checkpoint.

    Raises:
        CheckpointError: The checkpoint does not fit the run; the run is unchanged.
    """
    partition = run.data.description().get("hash")
    _check("partition", content["partition"], partition, f"; {ADVICE}")
    schema.check(content, run, clients)
    run.round = content["round"]
    run.server = checkpoint.unpack(run.server, content["server"], device)
    bounded = isinstance(run.kept, KeptStates)
    for client, kept in content["kept"].items():
        # A bounded store gets copies, one at a time, of what is mapped from the file.
        run.kept[int(client)] = clone(kept) if bounded else to(kept, device)
    run.history = content["history"]
    run.failures = content["failures"]
    load_states(run.callbacks, content["callbacks"])


def _check(what: str, old: Any, wanted: Any, advice: str = "") -> None:  # noqa: ANN401
    if old != wanted:
        raise checkpoint.CheckpointError(
            f"the checkpoint was written with the {what} {old}, but this run has {wanted}{advice}"
        )
