"""All promises, ordered so that a broken promise explains later failures."""

from __future__ import annotations

from collections.abc import Callable

from pfl.core.client import ClientModule
from pfl.core.task import Task
from pfl.imports import plugins
from pfl.testing import building, engines, jobs, losses, purity, runs, uploads
from pfl.testing.promise import Formula, Promise, Subject

# In the order of their definition; those of rooms that enter by ``pfl.promises`` come last.
PROMISES: tuple[Promise, ...] = tuple(
    promise
    for module in (
        *(building, uploads, purity, losses, jobs, runs, engines),
        *(module for _, module in plugins.loaded("pfl.promises")),
    )
    for promise in getattr(module, "__dict__", {}).values()
    if isinstance(promise, Promise)
)


def check_method(
    method: type[ClientModule],
    build: Callable[..., ClientModule] | None = None,
    floats: Formula | None = None,
    task: Task | None = None,
) -> None:
    """Check that a method keeps every promise.

    Args:
        method: The class of the method.
        build: Builds the method from a network and options, which it passes on to the constructor;
            needed for a method with other required arguments. The network is plain:
            :func:`pfl.testing.suited` adds what the method needs.
        floats: The method's formula for the numbers of floats that a participant receives and sends
            in a round, as a function of the module and the client's :class:`ClientInfo`.
        task: The task; classification by default.

    Raises:
        BrokenPromiseError: The method breaks a promise; the message names it and the place.

    Example::

        check_method(MyMethod, lambda net, **options: MyMethod(net, teacher=mlp(), **options))
    """
    for promise in PROMISES:
        promise.hold(Subject(method, build, floats, task))
