"""Promises about one client's round and one client's test."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from torch import Tensor

from pfl.core.client import ClientModule
from pfl.core.state import clone, nbytes
from pfl.core.types import Job, State, Upload
from pfl.testing.compare import difference, named
from pfl.testing.federation import ToyFederation, second_round
from pfl.testing.promise import BrokenPromiseError, Formula, Subject, promise
from pfl.testing.toy import mlp, normed
from pfl.training import client_round

NETS = {"": mlp, " with batch norm": normed}


@promise("receive and upload copy tensors: no storage is shared")
def copies(subject: Subject) -> None:
    """Look for storage that module, broadcast and upload share."""
    federation, jobs = second_round(subject.module())
    module = federation.module
    for job in jobs:
        sent = named(job.broadcast)
        result = client_round.train(federation.context, job)
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        _apart(own, sent, "receive leaves the entry", "the broadcast")
        _apart(named(result.upload), own, "upload leaves", "the module")
        _apart(named(result.upload), sent, "upload leaves", "the broadcast")


def _apart(a: State, b: State, who: str, where: str) -> None:
    places = {value.untyped_storage().data_ptr(): name for name, value in b.items() if _full(value)}
    for name, value in a.items():
        if _full(value) and value.untyped_storage().data_ptr() in places:
            other = places[value.untyped_storage().data_ptr()]
            raise BrokenPromiseError(f"{who} {name!r} in the storage of {where}'s {other!r}")


def _full(value: Tensor) -> bool:
    return value.untyped_storage().nbytes() > 0


@promise("an upload has only what is declared, in the shapes that the server sends")
def uploads_are_declared(subject: Subject) -> None:
    """Compare uploads with ``shared`` and ``extra``, and their shapes with what was sent."""
    federation = ToyFederation(subject.module())
    for _ in range(2):
        for job in federation.jobs():
            _check(client_round.train(federation.context, job).upload, job, federation.module)
        federation.round()


def _check(upload: object, job: Job, module: ClientModule) -> None:
    if not isinstance(upload, Upload):
        raise BrokenPromiseError(f"upload returns {type(upload).__name__}, not an Upload")
    if (upload.client, upload.samples) != (job.info.client, job.info.samples):
        raise BrokenPromiseError(
            f"the upload of client {job.info.client} with {job.info.samples} samples says client "
            f"{upload.client} with {upload.samples} samples"
        )
    # A method may send a part of an entry; then the server sends such a part back.
    entries = {**module.state_dict(), **(job.broadcast.shared if job.broadcast else {})}
    for name, value in upload.shared.items():
        if name not in module.shared_names():
            raise BrokenPromiseError(f"upload sends {name!r}, which 'shared' does not match")
        if value.shape != entries[name].shape or value.dtype != entries[name].dtype:
            raise BrokenPromiseError(
                f"upload sends {name!r} as {_form(value)} instead of {_form(entries[name])}"
            )
    for name in upload.extra:
        if name not in module.extra:
            raise BrokenPromiseError(f"upload sends the extra {name!r}, missing in 'extra'")


def _form(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"


def _has_formula(subject: Subject) -> bool:
    return subject.floats is not None


@promise("messages have as many bytes as the formula says", applies=_has_formula)
def bytes_follow_the_formula(subject: Subject) -> None:
    """Compare broadcasts and uploads with the formula."""
    federation, jobs = second_round(subject.module())
    formula = cast(Formula, subject.floats)
    for job in jobs:
        upload = client_round.train(federation.context, job).upload
        counts = formula(federation.module, job.info)
        for verb, sent, count in zip(
            ("broadcast", "upload"), (job.broadcast, upload), counts, strict=True
        ):
            found = 0 if sent is None else nbytes(sent.shared) + nbytes(sent.extra)
            if found != 4 * count:
                raise BrokenPromiseError(f"the {verb} has {found} bytes, the formula {4 * count}")


@promise("a client's result does not depend on which clients ran before it")
def clients_are_independent(subject: Subject) -> None:
    """Run the clients of a round in one order and in the other."""
    for kind, net in NETS.items():
        federation, jobs = second_round(subject.module(net))
        forward = {job.info.client: client_round.train(federation.context, job) for job in jobs}
        other, jobs = second_round(subject.module(net))
        for job in reversed(jobs):
            client = job.info.client
            result = client_round.train(other.context, job)
            if name := difference(named(forward[client]), named(result)):
                raise BrokenPromiseError(
                    f"client {client} gets a different {name!r}{kind} if the clients run in reverse"
                )


@promise("clients do not change the broadcast, the server's state or the initial values")
def clients_change_nothing_but_themselves(subject: Subject) -> None:
    """Compare all of them before and after each client's round and test."""
    for net in NETS.values():
        federation, jobs = second_round(subject.module(net))
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
                if name := difference(before, common):
                    raise BrokenPromiseError(f"{verb} client {job.info.client} changes {name!r}")


@promise("testing a client again gives the same scores")
def tests_repeat(subject: Subject) -> None:
    """Test all clients twice."""
    federation, jobs = second_round(subject.module())
    once, again = ([client_round.test(federation.context, job) for job in jobs] for _ in range(2))
    if name := difference(named(once), named(again)):
        client, _, score = name.partition(".")
        raise BrokenPromiseError(f"{score} of client {client} differs the second time")


@promise("a personal model that is declared to be the global one has the same scores")
def personal_is_global_where_said(subject: Subject) -> None:
    """Test both models of all clients, after a round in which they trained."""
    for net in NETS.values():
        federation, jobs = second_round(subject.module(net))
        if not federation.context.module.personal_is_global():
            continue
        for job in jobs:
            other = replace(job, model="global")
            own, common = (client_round.test(federation.context, one) for one in (job, other))
            if name := difference(named(own), named(common)):
                raise BrokenPromiseError(
                    f"{name} of client {job.info.client} differs from that of the global model: "
                    "it must not declare one_model = True"
                )


@promise("a client that does not take part keeps its state bit for bit")
def who_sits_out_keeps_its_state(subject: Subject) -> None:
    """Run a round without one client; also, the server holds only entries that may travel."""
    federation = ToyFederation(subject.module())
    federation.round()
    kept = federation.kept[1]
    before = clone(kept)
    federation.round(0, 2)
    if name := difference(before, kept):
        raise BrokenPromiseError(f"{name!r} of client 1 changes in a round without it")
    own = set(kept) - set(federation.module.shared_names())
    if both := own & set(federation.state.shared):
        raise BrokenPromiseError(f"the kept entry {min(both)!r} is also shared with the server")
