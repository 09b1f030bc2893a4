"""The content of a checkpoint, whose types, shapes and ranges are checked before it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from pfl.core.server import ServerState
from pfl.core.state import form_of, residuals_of
from pfl.core.types import ClientInfo, Digest, Round, State
from pfl.federation import checkpoint
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.run import Callback, Run, by_name
from pfl.training.optimizer_state import of_all_phases

if TYPE_CHECKING:
    from pfl.training.contexts import Contexts


class Content(BaseModel):
    """All state of a run that later rounds depend on, with the types and ranges of its values."""

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)

    round: Annotated[int, Field(ge=0)]
    seed: int
    op_threads: Annotated[int, Field(ge=1, le=4096)]
    method: str
    constants: str
    server: dict[str, Any]
    kept: dict[int, dict[str, Tensor]]
    tickets: dict[int, tuple[Digest, Round]]
    template: dict[str, Tensor]
    failures: dict[str, dict[int, int]]
    reasons: dict[int, str]
    callbacks: dict[str, dict[str, Any]]
    history: list[dict[str, bool | int | float]]
    decided: str | None
    tested: list[int] | None
    partition: str | None
    config: str | None

    @classmethod
    def of(cls, run: Run) -> Content:
        """Return the content of a run's checkpoint."""
        return cls.model_construct(
            round=run.round,
            seed=run.seed,
            method=type(run.module).__name__,
            server={item.name: getattr(run.server, item.name) for item in fields(run.server)},
            **run.keeper.packed(),
            template=run.template,
            constants=run.constants,
            decided=run.decided,
            tested=None if run.tested is None else [*run.tested],
            op_threads=torch.get_num_threads(),
            history=run.history,
            failures=run.failures,
            reasons=run.reasons,
            partition=run.data.description().get("hash"),
            config=run.config,
            callbacks={name: one.state_dict() for name, one in by_name(run.callbacks).items()},
        )


def read(file: Path) -> Content:
    """Return the content of a checkpoint.

    Raises:
        CheckpointError: It cannot be read, a key is missing, or its value has another type.
    """
    try:
        return Content.model_validate(checkpoint.load(file))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _wrong(f"{place}: {first['msg']}, got {_shown(first['input'])}") from error


def check(content: Content, run: Run, clients: Sequence[ClientInfo], contexts: Contexts) -> None:
    """Refuse a checkpoint from which a run cannot be resumed.

    The run is before its first round, with the module at its initial values.

    Raises:
        CheckpointError: The checkpoint does not fit the run; the message says what would be right.
    """
    if content.constants != run.constants:
        raise CheckpointError(
            "the checkpoint belongs to a network with other frozen weights, which a checkpoint "
            "does not contain: build the network with the same frozen weights as then"
        )
    _check_history(content)
    named: dict[str, Iterable[int]] = {
        **{"kept": content.kept, "tickets": content.tickets, "reasons": content.reasons},
        **{"tested": content.tested or ()},
        **{f"failures.{what}": rounds for what, rounds in content.failures.items()},
    }
    for where, known in named.items():
        for client in known:
            if not 0 <= client < len(clients):
                raise _wrong(f"{where}: there is no client {client}, only 0 to {len(clients) - 1}")
    _check_server(content.server, run.server, content.round)
    _check_kept(content.kept, clients, contexts)
    for name, callback in by_name(run.callbacks).items():
        _check_callback(name, callback, content.callbacks.get(name, {}))


def _check_kept(
    kept: Mapping[int, State], clients: Sequence[ClientInfo], contexts: Contexts
) -> None:
    steps = dict[tuple[str, int], tuple[int, str]]()
    for client, state in kept.items():
        where = f"kept of client {client}"
        optimizer = of_all_phases(state)
        unsent = residuals_of(state)
        apart = optimizer.keys() | unsent.keys()
        held = {name: value for name, value in state.items() if name not in apart}
        own = contexts.of(client)
        names = own.module.kept_names(clients[client])
        check_tensors(where, held, {name: own.template[name] for name in names})
        residuals = {name.partition(":")[2]: value for name, value in unsent.items()}
        entries = {
            name: _leading(own.template[name], value)
            for name, value in residuals.items()
            if name in own.template
        }
        check_tensors(f"{where}, residual", residuals, entries)
        # Optimisers differ in their state of a parameter, but all clients have the same form.
        for name, value in optimizer.items():
            key = name, contexts.number_of(client)
            other, right = steps.setdefault(key, (client, form_of(value)))
            if (form := form_of(value)) != right:
                raise _wrong(
                    f"{where}.{name} must be {right}, as that of client {other}, got {form}"
                )


def _leading(whole: Tensor, part: Tensor) -> Tensor:
    """Return the leading entries of ``whole``, as many as ``part`` has along each axis."""
    return whole[tuple(slice(size) for size in part.shape[: whole.dim()])]


def _check_history(content: Content) -> None:
    number, rows = content.round, content.history
    if len(rows) != number:
        raise _wrong(f"round is {number}, but its history has {len(rows)} rows")
    for count, row in enumerate(rows, 1):
        if row.get("round") != count:
            raise _wrong(f"history: row {count} is not of round {count}: {_shown(row)}")
        if "comm/bytes_total" not in row:
            raise _wrong(f"history: row {count} lacks comm/bytes_total")


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
    """Check types and shapes against the value before the first round, as far as it has any."""
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
        CheckpointError: It does not; the message names ``where`` and the entry.
    """
    if not isinstance(stored, dict) or not all(isinstance(v, Tensor) for v in stored.values()):
        raise _wrong(f"{where} must hold tensors by name, got {_shown(stored)}")
    for name in sorted(stored.keys() ^ wanted.keys()):
        here, there = ("has an", "none") if name in stored else ("lacks the", "one")
        raise _wrong(f"{where} {here} entry {name}; this network has {there}")
    for name, value in stored.items():
        form, right = form_of(value), form_of(wanted[name])
        if form != right:
            key = f"{where}.{name}" if name else where
            raise _wrong(f"{key} must be {right}, as in this run, got {form}")


def _check_callback(name: str, callback: Callback, stored: Mapping[str, Any]) -> None:
    for key, value in callback.state_dict().items():
        if key in stored and None not in (value, stored[key]):
            _check_alike(f"callbacks.{name}.{key}", stored[key], value)


def _wrong(what: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint's {what}")


def _shown(value: object) -> str:
    text = form_of(value) if isinstance(value, torch.Tensor) else " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}..."
