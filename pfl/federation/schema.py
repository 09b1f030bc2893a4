"""Checks of a checkpoint's keys, types, shapes and ranges, before any of it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from pfl.core.elsewhere import reference_of
from pfl.core.held_out import members
from pfl.core.server import ServerState
from pfl.core.state import form_of, residuals_of
from pfl.core.types import ClientInfo, State
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.run import Callback, Run, by_name
from pfl.training.optimizer_state import of_all_phases

# The keys of a checkpoint, by the types of their values.
_KEYS: dict[tuple[type, ...], tuple[str, ...]] = {
    (int,): ("round", "seed", "op_threads"),
    (str,): ("method", "constants"),
    (dict,): ("server", "kept", "template", "failures", "callbacks"),
    (list,): ("history",),
    (bool, NoneType): ("stacked",),
    (str, NoneType): ("noise", "partition", "config"),
}


def check_types(content: Mapping[str, Any]) -> None:
    """Check the keys of a checkpoint, and the types of their values.

    Raises:
        CheckpointError: A key is missing, or its value has another type.
    """
    for types, keys in _KEYS.items():
        names = " or ".join("null" if one is NoneType else one.__name__ for one in types)
        for key in keys:
            if key not in content:
                raise _wrong(f"{key} is missing")
            if type(content[key]) not in types:
                raise _wrong(f"{key} must be {names}, got {_shown(content[key])}")


def check(content: Mapping[str, Any], run: Run, clients: Sequence[ClientInfo]) -> None:
    """Refuse a checkpoint from which a run cannot be resumed.

    The run is before its first round, with the module at its initial values.

    Raises:
        CheckpointError: The checkpoint does not fit the run; the message says what would be right.
    """
    if content["constants"] != run.constants:
        raise CheckpointError(
            "the checkpoint belongs to a network with other frozen weights, which a checkpoint "
            "does not contain: build the network with the same frozen weights as then"
        )
    if not 1 <= content["op_threads"] <= 4096:
        raise _wrong(f"op_threads must be a whole number from 1, got {content['op_threads']}")
    _check_history(content)
    _check_failures(content["failures"], content.get("reasons", {}), len(clients) - 1)
    _check_server(content["server"], run.server, content["round"])
    # Earlier versions let a server count clients that are held out among its members.
    numbered = [*members(run.data)] == [*range(len(members(run.data)))]
    if not numbered and "members" not in content and type(run.server) is not ServerState:
        raise _wrong("server counts clients that are held out as members: train the run anew")
    _check_kept(content["kept"], run, clients)
    for name, callback in by_name(run.callbacks).items():
        _check_callback(name, callback, content["callbacks"].get(name, {}))


def _check_kept(kept: Mapping[Any, Any], run: Run, clients: Sequence[ClientInfo]) -> None:
    last, steps = len(clients) - 1, dict[str, tuple[int, str]]()
    for client, state in kept.items():
        where = f"kept of client {client}"
        if type(client) is not int or not 0 <= client <= last:
            raise _wrong(f"{where}: the clients are 0 to {last}")
        if _lies_elsewhere(where, _state(where, state)):
            continue
        optimizer = of_all_phases(state)
        unsent = residuals_of(state)
        apart = optimizer.keys() | unsent.keys()
        held = {name: value for name, value in state.items() if name not in apart}
        names = run.module.kept_names(clients[client])
        check_tensors(where, held, {name: run.template[name] for name in names})
        residuals = {name.partition(":")[2]: value for name, value in unsent.items()}
        entries = {
            name: _leading(run.template[name], value)
            for name, value in residuals.items()
            if name in run.template
        }
        check_tensors(f"{where}, residual", residuals, entries)
        # Optimisers differ in what they keep of a parameter, but it is alike for all clients.
        for name, value in optimizer.items():
            other, right = steps.setdefault(name, (client, form_of(value)))
            if (form := form_of(value)) != right:
                raise _wrong(
                    f"{where}.{name} must be {right}, as that of client {other}, got {form}"
                )


def _leading(whole: Tensor, part: Tensor) -> Tensor:
    """Return the entries that a part of some channels can have; all of them if it is no part."""
    return whole[tuple(slice(size) for size in part.shape[: whole.dim()])]


def _lies_elsewhere(where: str, state: State) -> bool:
    try:
        return reference_of(state) is not None
    except ValueError as error:
        raise _wrong(f"{where}: {error}") from error


def _check_history(content: Mapping[str, Any]) -> None:
    number, rows = content["round"], content["history"]
    if number < 0 or len(rows) != number:
        raise _wrong(f"round is {number}, but its history has {len(rows)} rows")
    for count, row in enumerate(rows, 1):
        sound = isinstance(row, dict) and row.get("round") == count
        if not sound or not all(map(_is_number, row.values())):
            raise _wrong(f"history: row {count} is not of round {count}: {_shown(row)}")
        if "comm/bytes_total" not in row:
            raise _wrong(f"history: row {count} lacks comm/bytes_total")


def _check_failures(failures: Mapping[Any, Any], reasons: Any, last: int) -> None:  # noqa: ANN401
    if not isinstance(reasons, dict) or not all(
        type(client) is int and 0 <= client <= last and isinstance(reason, str)
        for client, reason in reasons.items()
    ):
        raise _wrong(f"reasons must be texts by client, got {_shown(reasons)}")
    for rounds in failures.values():
        if not isinstance(rounds, dict) or not all(
            type(client) is int and 0 <= client <= last and type(count) is int
            for client, count in rounds.items()
        ):
            raise _wrong(f"failures must be numbers of rounds by client, got {_shown(failures)}")


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _check_server(server: Mapping[str, Any], initial: ServerState, number: int) -> None:
    names = {item.name for item in fields(initial)}
    if names != server.keys():
        raise _wrong(
            f"server has the entries {sorted(server)}, but this method needs {sorted(names)}: it "
            "was written by another method"
        )
    check_tensors("server.shared", server["shared"], initial.shared)
    if type(server["round"]) is not int or not 0 <= server["round"] <= number:
        raise _wrong(f"server.round must lie in [0, {number}], got {server['round']!r}")
    for name in names - {"shared", "round", "report", "client_report"}:
        _check_alike(f"server.{name}", server[name], getattr(initial, name))


def _check_alike(where: str, stored: Any, wanted: Any) -> None:  # noqa: ANN401
    """Check types and shapes against the value before the first round, where that has any."""
    if isinstance(wanted, Tensor):
        check_tensors(where, {"": stored}, {"": wanted})
    elif isinstance(wanted, Mapping):
        if not isinstance(stored, Mapping):
            raise _wrong(f"{where} must be a dictionary, got {_shown(stored)}")
        for name in wanted.keys() & stored.keys():
            _check_alike(f"{where}.{name}", stored[name], wanted[name])
    elif wanted is not None and type(stored) is not type(wanted):
        name = type(wanted).__name__
        raise _wrong(f"{where} must be {name}, got {_shown(stored)}")


def check_tensors(where: str, stored: Any, wanted: State) -> None:  # noqa: ANN401
    """Check that a state has the entries of another, in their types and shapes.

    Raises:
        CheckpointError: It has not; the message names ``where`` and the entry.
    """
    for name in sorted(_state(where, stored).keys() ^ wanted.keys()):
        here, there = ("has an", "none") if name in stored else ("lacks the", "one")
        raise _wrong(f"{where} {here} entry {name}; this network has {there}")
    for name, value in stored.items():
        form, right = form_of(value), form_of(wanted[name])
        if form != right:
            key = f"{where}.{name}" if name else where
            raise _wrong(f"{key} must be {right}, as in this run, got {form}")


def _state(where: str, stored: Any) -> State:  # noqa: ANN401
    if not isinstance(stored, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in stored.items()
    ):
        raise _wrong(f"{where} must hold tensors by name, got {_shown(stored)}")
    return stored


def _check_callback(name: str, callback: Callback, stored: Any) -> None:  # noqa: ANN401
    if not isinstance(stored, dict):
        raise _wrong(f"callbacks.{name} must be dict, got {_shown(stored)}")
    for key, value in callback.state_dict().items():
        if key in stored and None not in (value, stored[key]):
            _check_alike(f"callbacks.{name}.{key}", stored[key], value)


def _wrong(what: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint's {what}")


def _shown(value: object) -> str:
    text = form_of(value) if isinstance(value, torch.Tensor) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
