"""Every promise that a method makes, in the order in which one that is broken explains others."""

from __future__ import annotations

from collections.abc import Callable

from pfl.core.client import Client
from pfl.core.task import Task
from pfl.testing import building, engines, jobs, purity, runs
from pfl.testing.promise import Formula, Promise, Subject

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
    engines.threads_agree,
    engines.stacked_agrees,
)


def check_method(
    method: type[Client],
    build: Callable[..., Client] | None = None,
    floats: Formula | None = None,
    task: Task | None = None,
) -> None:
    """Hold a method to every promise.

    Args:
        method: Its class.
        build: Makes the method from a network and options of the constructor, which it hands on;
            for a method with required arguments of its own.
        floats: How many floats a participant receives and sends in a round, by the method's
            formula; given the module and what the client knows of itself.
        task: What is predicted; classification if not given.

    Raises:
        BrokenPromiseError: It breaks one; the message says which, and where.

    Example::

        check_method(MyMethod, lambda net, **options: MyMethod(net, teacher=mlp(), **options))
    """
    for promise in PROMISES:
        promise.hold(Subject(method, build, floats, task))
