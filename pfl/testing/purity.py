"""Promises about plans, objectives and statistics, which let engines run them in any way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pfl.core.batch_norms import norm_statistics
from pfl.core.client import ClientModule
from pfl.core.folds import Fold, Folds
from pfl.core.server import Server, ServerState
from pfl.core.state import clone, copy_all, each, named
from pfl.core.types import Batch, ClientInfo
from pfl.testing.compare import distance
from pfl.testing.federation import ToyFederation
from pfl.testing.observe import leaves_alone, streams
from pfl.testing.promise import (
    BOTH,
    BrokenPromiseError,
    Subject,
    check_same,
    has_dropout,
    promise,
    vectorizable,
)
from pfl.training.declaration import Wrap, wrapped

PADDING = 3
CLOSE = 1e-9


def _watch(federation: ToyFederation, wrap: Wrap) -> ToyFederation:
    """Wrap all functions of a federation's plans."""
    context = federation.context
    context.plan, context.adapt = wrapped(context.plan, wrap), wrapped(context.adapt, wrap)
    return federation


@promise("nothing is drawn from a global random stream")
def streams_are_left_alone(subject: Subject) -> None:
    """Watch the streams during every method and every function of a plan."""
    module = subject.module()
    lent = {"torch's"} if has_dropout(module) else set()

    def watch(function: Callable[..., Any], name: str, who: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:  # noqa: ANN401
            before = streams()
            result = function(*arguments)
            for whose, state in streams().items():
                if state != before[whose] and whose not in lent:
                    raise BrokenPromiseError(f"{who} draws from {whose} global random stream")
            return result

        return call

    def watch_all(owner: ClientModule | Server[Any] | Fold[Any], *verbs: str) -> None:
        for verb in verbs:
            setattr(owner, verb, watch(getattr(owner, verb), verb, verb))

    server = module.server()
    watch_all(server, "init", "broadcast", "begin", "finish")
    begin = server.begin

    def began(state: ServerState, senders: Sequence[ClientInfo]) -> Folds:
        folds = begin(state, senders)
        for fold in folds.values():
            watch_all(fold, "add", "value")
        return folds

    server.begin = began  # type: ignore[method-assign]
    watch_all(module, "plan", "adapt", "receive", "upload", "personalise", "load_global")
    module.server = lambda: server  # type: ignore[method-assign]
    _watch(ToyFederation(module), watch).play()


@promise("objectives, statistics and the other functions of a plan are pure", nets=BOTH)
def functions_are_pure(subject: Subject) -> None:
    """Call each function twice: the results must be equal, and nothing else may change."""
    module = subject.module()

    def twice(function: Callable[..., Any], name: str, who: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:  # noqa: ANN401
            values, moving = named(arguments), norm_statistics(module)
            stream = torch.get_rng_state()
            before, start = clone(values), clone(moving)
            with leaves_alone(who, module, function, norms=True):
                once = named(function(*arguments))
            check_same(before, arguments, f"{who} changes its argument {{name!r}}")
            copy_all([*moving.values()], [*start.values()])
            torch.set_rng_state(stream)
            result = function(*arguments)
            check_same(once, result, f"{who} gives a different {{name!r}} when called again")
            return result

        return call

    _watch(ToyFederation(module), twice).play()


@promise("padding does not count in objectives and statistics", applies=vectorizable)
def padding_does_not_count(subject: Subject) -> None:
    """Add samples of weight zero to every batch."""

    def beside(function: Callable[..., Any], name: str, who: str) -> Callable[..., Any]:
        def call(batch: Batch) -> Any:  # noqa: ANN401
            result, count = function(batch), len(batch.y)
            padded = named(function(_padded(batch)))
            for key, value in padded.items():
                if name == "collect" or key.startswith("rows."):
                    padded[key] = value[:count]
            apart, key = distance(named(result), padded)
            if apart > CLOSE:
                raise BrokenPromiseError(
                    f"{who} gives a different {key!r} on a padded batch: it does not reduce with "
                    "batch.weight"
                )
            return result

        return call if name in ("objective", "statistic", "collect") else function

    _watch(ToyFederation(subject.module(), precision="64-true"), beside).play()


def _padded(batch: Batch) -> Batch:
    """Append copies of the first sample to a batch, with weight zero."""
    again = torch.cat([torch.arange(len(batch.y)), torch.zeros(PADDING, dtype=torch.int64)])
    weight = torch.ones(len(again))
    weight[-PADDING:] = 0
    x = each(lambda value: value[again], batch.x)
    index = None if batch.index is None else batch.index[again]
    return batch._replace(x=x, y=batch.y[again], weight=weight, index=index)


@promise("upload changes nothing")
def upload_changes_nothing(subject: Subject) -> None:
    """Compare the module before and after each upload."""
    module = subject.module()
    upload = module.upload

    def call(info: Any) -> Any:  # noqa: ANN401
        with leaves_alone("upload", module, upload):
            return upload(info)

    module.upload = call  # type: ignore[method-assign]
    ToyFederation(module).play()


@promise("the server's verbs are pure")
def servers_are_pure(subject: Subject) -> None:
    """Call each verb twice: the results must be equal, and the arguments may not change."""
    federation = ToyFederation(subject.module())
    server = federation.server
    for _ in range(2):
        uploads = [result.upload for result in map(federation.train, range(3)) if result.upload]
        state = federation.state
        before = clone(named([state, uploads]))
        for verb, call in (
            ("aggregate", lambda state=state, uploads=uploads: server.aggregate(state, uploads)),
            ("broadcast", lambda state=state: server.broadcast(state, 1, state.round + 1)),
        ):
            check_same(call(), call(), f"{verb} gives a different {{name!r}} when called again")
            check_same(before, [state, uploads], f"{verb} changes {{name!r}} of its arguments")
        federation.round()
