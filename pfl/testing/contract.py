"""All promises, in an order in which a broken promise explains later ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from pfl.core.client import ClientModule
from pfl.core.task import Task
from pfl.testing import building, engines, jobs, losses, newcomers, purity, runs
from pfl.testing.promise import Formula, Promise, Subject, UnexaminedError

PROMISES: tuple[Promise, ...] = (
    building.builds,
    building.refuses_unknown_arguments,
    building.refuses_unknown_words,
    building.patterns_match,
    building.fits_without_federation,
    purity.plans_are_declarations,
    jobs.uploads_are_declared,
    purity.streams_are_left_alone,
    purity.functions_are_pure,
    purity.padding_does_not_count,
    purity.upload_changes_nothing,
    jobs.bytes_follow_the_formula,
    jobs.copies,
    purity.servers_are_pure,
    losses.losses_count,
    losses.targets_count_in_the_loss_alone,
    jobs.clients_change_nothing_but_themselves,
    jobs.clients_are_independent,
    jobs.tests_repeat,
    jobs.personal_is_global_where_said,
    jobs.who_sits_out_keeps_its_state,
    runs.resumes,
    runs.evaluation_changes_nothing,
    runs.small_clients_run,
    runs.empty_clients_are_left_out,
    runs.empty_rounds_change_nothing,
    runs.nan_ends_the_run,
    runs.nan_reaches_nobody,
    newcomers.newcomers_change_nothing,
    engines.threads_agree,
    engines.stacked_agrees,
    engines.works_on_any_device,
)


def check_method(
    method: type[ClientModule],
    build: Callable[..., ClientModule] | None = None,
    floats: Formula | None = None,
    task: Task | None = None,
) -> None:
    """Check that a method keeps every promise; warn of those that cannot be examined.

    Args:
        method: The class of the method.
        build: Builds the method from a network and options, which it passes on to the constructor;
            needed for a method with other required arguments.
        floats: The method's formula for the numbers of floats that a participant receives and sends
            in a round, as a function of the module and the client's :class:`ClientInfo`.
        task: The task; classification by default.

    Raises:
        BrokenPromiseError: The method breaks a promise; the message says which, and where.

    Example::

        check_method(MyMethod, lambda net, **options: MyMethod(net, teacher=mlp(), **options))
    """
    for promise in PROMISES:
        try:
            promise.hold(Subject(method, build, floats, task))
        except UnexaminedError as error:
            unknown = f"it could not be examined whether {promise.sentence}: {error}"
            warnings.warn(f"{method.__name__}: {unknown}", stacklevel=2)
