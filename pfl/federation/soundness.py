"""Errors and warnings about numbers that are not finite or not repeatable."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.failure import JobError, NonFiniteError, clients_text
from pfl.core.seeds import default_streams
from pfl.core.server import Server, ServerState
from pfl.core.state import finite, named
from pfl.core.types import Result
from pfl.federation.run import Failures, Row, Run

# Why a client's result does not count.
NOT_FINITE = "the loss or the weights are not finite (loop.on_nonfinite: skip)"


def error_of(result: Result, number: int) -> NonFiniteError:
    """Return the error that ends a run in a round because of a client's numbers."""
    losses = ", ".join(f"{name} {value:g}" for name, value in result.train.items())
    return NonFiniteError(
        f"round {number}, client {result.client}: the loss or the weights are not finite (losses: "
        f"{losses}). Lower the learning rate, clip gradients (loop.gradient_clip_val), or continue "
        "without such clients (loop.on_nonfinite: skip)"
    )


def warn_of_no_upload(
    discarded: Sequence[int], withheld: Mapping[int, str], results: int, number: int
) -> None:
    """Say why no upload of a round arrived: results were discarded, or steps withheld uploads."""
    if discarded and not results:
        warnings.warn(
            f"round {number}: every client was discarded, so nothing was uploaded "
            "(loop.on_nonfinite: skip, or the engine's on_error: absent)",
            stacklevel=2,
        )
    if withheld:
        steps, whose = " and ".join(sorted({*withheld.values()})), clients_text(sorted(withheld))
        warnings.warn(
            f"round {number}: no upload is left, as {steps} of loop.uplink withheld that of "
            f"{whose}; the server's entries stay as they are",
            stacklevel=2,
        )


def warn_of_losses(module: ClientModule, row: Row) -> None:
    """Warn if the method objects to a round's losses; each warning is shown once a run."""
    losses = {
        name.removeprefix("train/"): value for name, value in row.items() if name[:6] == "train/"
    }
    if (text := module.loss_warning(losses)) is not None:
        warnings.warn(f"{type(module).__name__}: {text}", stacklevel=2)


@contextmanager
def watched_stream(device: torch.device) -> Iterator[None]:
    """Warn if code in this scope draws from torch's default stream; shown once a run.

    Engines seed that stream for dropout layers, and restore it.
    """
    before = default_streams(device)
    yield
    if not all(map(torch.equal, before, default_streams(device))):
        warnings.warn(
            "this round drew random numbers from torch's default stream, which no seed of the run "
            "sets: equal runs will differ. The network or the method calls torch.randn, "
            "torch.nn.functional.dropout or the like: take a layer of dropout, Phase.noise, or a "
            "generator of pfl.core.seeds instead",
            stacklevel=4,
        )


def warn_of_undefined(clients: Sequence[int], number: int) -> None:
    """Warn that models of clients, tested after a round, gave outputs that are not numbers."""
    warnings.warn(
        f"tested after round {number}: the outputs of the models of {clients_text(clients)} are "
        "not finite, and so neither are their scores and the means over clients",
        stacklevel=2,
    )


def warn_of_no_score(data: FederatedData, tested: Sequence[int], has_global_model: bool) -> None:
    """Warn if no model is tested for lack of test and validation data; shown once a run."""
    if not any(len(data.split(client, name)) for client in tested for name in ("val", "test")):
        lacking = "common test set" if has_global_model else "global model"
        warnings.warn(
            "no model is tested: no client has test or validation samples, and there is no "
            f"{lacking}. Give the clients test samples (data.test_protocol)",
            stacklevel=2,
        )


def counted(failures: Failures, **clients: Sequence[int]) -> Failures:
    """Return failures with one more round for some clients, by kind of failure."""
    counts = {what: dict(rounds) for what, rounds in failures.items()}
    for what, failed in clients.items():
        for client in failed:
            rounds = counts.setdefault(what, {})
            rounds[client] = rounds.get(client, 0) + 1
    return counts


def check_anything_trained(run: Run) -> None:
    """Refuse a run in which every client's round was discarded.

    Raises:
        NonFiniteError: Every client of every round was discarded.
        JobError: Likewise, because they failed.
    """
    lost = sum(row.get("train/discarded", 0) for row in run.history)
    if lost and not any(row.get("train/steps") for row in run.history):
        for client, reason in run.reasons.items():
            if reason != NOT_FINITE:
                raise JobError(
                    f"no client was left in any round: they failed {lost:g} times, and on_error of "
                    "the engine is absent. The models are the initial ones. The reason of "
                    f"client {client}: {reason}"
                )
        raise NonFiniteError(
            f"no client was left in any round: the loss or the weights were not finite {lost:g} "
            "times, and loop.on_nonfinite is skip. The models are the initial ones. Lower the "
            "learning rate, or clip gradients (loop.gradient_clip_val)"
        )


def check_aggregate(server: Server[Any], before: ServerState, after: ServerState) -> None:
    """Refuse a server's new state that is not finite where the old one was.

    A NaN in both means a value that is not known yet.

    Raises:
        NonFiniteError: The state is not finite; the message names the entry.
    """
    # Entries of ``shared`` go by their own names.
    old, new = (
        {name.removeprefix("shared."): v for name, v in named(state, numbers=False).items()}
        for state in (before, after)
    )
    new = {name: value for name, value in new.items() if value is not old.get(name)}
    # One synchronisation for each device that holds a part of the state.
    for device in dict.fromkeys(value.device for value in new.values()):
        if finite(group := {name: value for name, value in new.items() if value.device == device}):
            continue
        for name, value in group.items():
            wrong = ~value.isfinite()
            if name in old and old[name].shape == value.shape:
                wrong &= old[name].to(device).isfinite()
            if bool(wrong.any()):
                raise NonFiniteError(
                    f"round {before.round + 1}, the server's aggregation: the new entry {name!r} "
                    "is not finite, although the weights of all uploads are. No client is to "
                    f"blame: look at the weights and the step of {type(server).__name__}, or at "
                    "uploads too large to be added. loop.on_nonfinite: skip leaves out clients, "
                    "not an aggregate"
                )
