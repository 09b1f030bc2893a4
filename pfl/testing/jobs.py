"""Promises about one client's round and one client's test."""

from __future__ import annotations

from dataclasses import replace

from pfl.core.state import clone, named
from pfl.testing.compare import difference
from pfl.testing.federation import ToyFederation, second_round
from pfl.testing.promise import BOTH, BrokenPromiseError, Subject, check_same, promise
from pfl.training import client_round
from pfl.training.inventory import check_state


@promise("a client's result does not depend on which clients ran before it", nets=BOTH)
def clients_are_independent(subject: Subject) -> None:
    """Run the clients of a round in one order and in the other."""
    federation, jobs = second_round(subject.module())
    forward = {job.info.client: client_round.train(federation.context, job) for job in jobs}
    other, jobs = second_round(subject.module())
    for job in reversed(jobs):
        client = job.info.client
        result = client_round.train(other.context, job)
        finding = f"client {client} gets a different {{name!r}} if the clients run in reverse"
        check_same(forward[client], result, finding)


@promise("what training changes travels, stays, or is read by nobody", nets=BOTH)
def nothing_is_forgotten(subject: Subject) -> None:
    """Play rounds on copies, and compare everything that can be reached from the module."""
    check_state(ToyFederation(subject.module()).context)


@promise("clients do not change the broadcast, the server's state or the initial values", nets=BOTH)
def clients_change_nothing_but_themselves(subject: Subject) -> None:
    """Compare them before and after each client's round and test."""
    federation, jobs = second_round(subject.module())
    common = named(
        {
            "broadcast": {job.info.client: job.broadcast for job in jobs},
            "kept": federation.kept,
            "server": federation.state,
            "initial": federation.context.template,
        }
    )
    before = clone(common)
    for verb, run in (("training", client_round.train), ("testing", client_round.test)):
        for job in jobs:
            run(federation.context, job)
            check_same(before, common, f"{verb} client {job.info.client} changes {{name!r}}")


@promise("testing a client again gives the same scores")
def tests_repeat(subject: Subject) -> None:
    """Test all clients twice."""
    federation, jobs = second_round(subject.module())
    once, again = ([client_round.test(federation.context, job) for job in jobs] for _ in range(2))
    if name := difference(named(once), named(again)):
        client, _, score = name.partition(".")
        raise BrokenPromiseError(f"{score} of client {client} differs the second time")


@promise("a personal model that is declared to be the global one has the same scores", nets=BOTH)
def personal_is_global_where_said(subject: Subject) -> None:
    """Test both models of all clients, after a round in which they trained."""
    federation, jobs = second_round(subject.module())
    for job in jobs if federation.module.personal_is_global() else ():
        other = replace(job, model="global")
        personal, common = (client_round.test(federation.context, one) for one in (job, other))
        finding = (
            f"{{name}} of client {job.info.client} differs from that of the global model: it "
            "must not declare one_model = True"
        )
        check_same(personal, common, finding)


@promise("the server holds no entry that only clients keep")
def the_server_holds_nothing_kept(subject: Subject) -> None:
    """Compare the server's state after a round with what a client keeps."""
    federation, _ = second_round(subject.module())
    private = set(federation.kept[1]) - set(federation.module.shared_names())
    if both := private & set(federation.state.shared):
        raise BrokenPromiseError(f"the kept entry {min(both)!r} is also shared with the server")
