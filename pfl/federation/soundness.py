"""Errors and warnings about numbers that are not finite or not repeatable."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.failure import JobError, NonFiniteError, clients_text, during, error_line
from pfl.core.seeds import default_streams
from pfl.core.server import Round, Server, ServerState
from pfl.core.state import finite, named
from pfl.core.types import Result
from pfl.federation.run import Failures, Row, Run
from pfl.training.server_round import aggregating

# Why a client's result does not count.
NOT_FINITE = "the loss or the weights are not finite (loop.on_nonfinite: skip)"
# The advice for a client whose upload the server cannot use.
_LEAVE_OUT = "continue without such clients (loop.on_nonfinite: skip, or on_error: absent)"


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


def aggregated(
    gathering: Round[Any], server: Server[Any], before: ServerState, goes_on: bool
) -> tuple[ServerState, dict[int, str]]:
    """Return the server's state after a round, and the clients without whose uploads it is.

    If the aggregation fails, or its result is not finite, whoever is to blame is looked for. They
    are named, as are clients whose upload was refused on arrival.

    Args:
        gathering: The uploads; those of clients to blame are taken out.
        server: The method's server.
        before: Its state before the round.
        goes_on: Whether the round goes on without clients to blame.

    Returns:
        The state, and the reason for each client that is left out.

    Raises:
        NonFiniteError: The state is not finite.
        Exception: The aggregation fails, whoever is left out.
    """
    refused = gathering.refused
    if refused:
        _check_refused(gathering, before.round + 1, goes_on)
    try:
        after = _aggregate(gathering, server, before)
    except Exception as caught:
        error = caught
    else:
        return after, _without(gathering, refused, before.round + 1) if refused else {}
    return _without_blamed(gathering, server, before, goes_on, error)


def _aggregate(
    gathering: Round[Any],
    server: Server[Any],
    before: ServerState,
    without: Collection[int] = (),
) -> ServerState:
    with aggregating(before):
        after: ServerState = gathering.finish(without)
    check_aggregate(server, before, after)
    return after


def _check_refused(gathering: Round[Any], number: int, goes_on: bool) -> None:
    """Raise the error of the first refused upload, if the round does not go on without it."""
    refused = gathering.refused
    if not goes_on or refused.keys() >= {upload.client for upload in gathering.arrived}:
        client, error = next(iter(refused.items()))
        sent = f"what client {client} sent: look there, or {_LEAVE_OUT}"
        with during(f"round {number}, the server's aggregation"), during(sent):
            raise error


def _without_blamed(
    gathering: Round[Any],
    server: Server[Any],
    before: ServerState,
    goes_on: bool,
    error: Exception,
) -> tuple[ServerState, dict[int, str]]:
    """Aggregate without one client at a time, and then without all whose upload fails alone.

    That is possible where single uploads are still there; see :func:`aggregated`.

    Args:
        gathering: The uploads.
        server: The method's server.
        before: Its state before the round.
        goes_on: Whether the round goes on without clients to blame.
        error: Why the aggregation of all failed.
    """

    def tried(without: Collection[int]) -> ServerState | Exception:
        try:
            return _aggregate(gathering, server, before, without)
        except Exception as error:
            return error

    number, refused = before.round + 1, gathering.refused
    senders = {upload.client for upload in gathering.arrived} - refused.keys()
    if not gathering.holds:
        raise error
    for client in sorted(senders):
        if not isinstance(after := tried({client}), Exception):
            blamed = [client]
            break
    else:
        blamed = [c for c in sorted(senders) if isinstance(tried(senders - {c}), Exception)]
        after = tried(blamed)
        if isinstance(after, Exception) or len(blamed) == len(senders):
            raise error
    whose = clients_text(blamed)
    if goes_on:
        return after, _without(gathering, {**refused, **dict.fromkeys(blamed, error)}, number)
    why = f"without what {whose} sent it succeeds: look there, or {_LEAVE_OUT}"
    if isinstance(error, NonFiniteError):
        raise NonFiniteError(f"round {number}, the server's aggregation: {_cause(error)}; {why}")
    with during(why):
        raise error


def _without(gathering: Round[Any], blamed: Mapping[int, Exception], number: int) -> dict[int, str]:
    """Go on without clients, with a warning; return the reasons."""
    causes = {c: _cause(error) for c, error in blamed.items()}
    reasons = {c: f"the server cannot aggregate what it sent ({why})" for c, why in causes.items()}
    for reason in dict.fromkeys(reasons.values()):
        whose = clients_text(sorted(c for c, told in reasons.items() if told == reason))
        warnings.warn(f"round {number} continues without {whose}: {reason}", stacklevel=3)
    gathering.leave_out(blamed.keys())
    return reasons


def _cause(error: Exception) -> str:
    """Return what is wrong, without round and advice."""
    if isinstance(error, NonFiniteError):
        return str(error).partition("aggregation: ")[2].partition(",")[0]
    return error_line(error)


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
