"""Promises about messages: their content, its use, their size, and their storage."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from torch import Tensor

from pfl.core.client import ClientModule
from pfl.core.state import named, nbytes
from pfl.core.types import Job, State, Upload
from pfl.testing.compare import difference
from pfl.testing.federation import ToyFederation, second_round
from pfl.testing.promise import BrokenPromiseError, Formula, Subject, promise
from pfl.training import client_round
from pfl.training.received import UploadError, check_upload


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
    try:
        check_upload(upload, job, module, module.state_dict())
    except UploadError as error:
        raise BrokenPromiseError(str(error)) from error


@promise(
    "messages have as many bytes as the formula says",
    applies=lambda subject: subject.floats is not None,
)
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
            size = 0 if sent is None else nbytes(sent.shared) + nbytes(sent.extra)
            if size != 4 * count:
                raise BrokenPromiseError(f"the {verb} has {size} bytes, the formula {4 * count}")


@promise("receive and upload copy tensors: no storage is shared")
def copies(subject: Subject) -> None:
    """Look for storage that module, broadcast and upload share."""
    federation, jobs = second_round(subject.module())
    module = federation.module
    for job in jobs:
        sent = named(job.broadcast)
        result = client_round.train(federation.context, job)
        entries = dict(module.named_parameters()) | dict(module.named_buffers())
        _apart(entries, sent, "receive leaves the entry", "the broadcast")
        _apart(named(result.upload), entries, "upload leaves", "the module")
        _apart(named(result.upload), sent, "upload leaves", "the broadcast")


def _apart(a: State, b: State, who: str, where: str) -> None:
    places = {value.untyped_storage().data_ptr(): name for name, value in b.items() if _full(value)}
    for name, value in a.items():
        if _full(value) and value.untyped_storage().data_ptr() in places:
            other = places[value.untyped_storage().data_ptr()]
            raise BrokenPromiseError(f"{who} {name!r} in the storage of {where}'s {other!r}")


def _full(value: Tensor) -> bool:
    return value.untyped_storage().nbytes() > 0


@promise("what a broadcast carries changes what clients compute")
def broadcasts_are_read(subject: Subject) -> None:
    """Change each entry of the second round's messages, and look for a client that depends on it.

    It does if its logits, or anything that it uploads except the entry itself, differ in that round
    or, through its kept state, in the next.
    """
    federation, jobs = second_round(subject.module())
    sent = {entry for job in jobs for entry in _carried(job)}
    # A client that chooses one of several models ignores the others. It may choose differently if
    # all are near zero.
    for scale in (1, 0.01):
        for job in jobs if sent else ():
            before = _computed(federation, _sending(job, scale))
            for entry in sorted(sent & _carried(job)):
                after = _computed(federation, _sending(job, scale, entry))
                if difference(_but(before, entry), _but(after, entry)):
                    sent.remove(entry)
    for field, name in sorted(sent):
        raise BrokenPromiseError(
            f"no client computes anything else if {name!r}, which the server sends in {field!r}, "
            "has other values: nobody reads it"
        )


def _carried(job: Job) -> set[tuple[str, str]]:
    """Return the entries of floating point in a message, each with its field."""
    return {
        (field, name)
        for field in ("shared", "extra")
        for name, value in getattr(job.broadcast, field, {}).items()
        if value.is_floating_point()
    }


def _sending(job: Job, scale: float, moved: tuple[str, str] | None = None) -> Job:
    """Return a job whose message is scaled, with one entry changed.

    Positive numbers stay positive, and definite matrices definite.
    """
    if job.broadcast is None:
        return job
    fields = {"shared": dict(job.broadcast.shared), "extra": dict(job.broadcast.extra)}
    for field, name in _carried(job):
        value = fields[field][name] * scale
        fields[field][name] = value.nan_to_num() * 1.01 + 0.01 if (field, name) == moved else value
    broadcast = replace(job.broadcast, shared=fields["shared"], extra=fields["extra"])
    return replace(job, broadcast=broadcast)


def _computed(federation: ToyFederation, job: Job) -> State:
    """Return what a client computes, in this round and in the next with the same message."""
    found: list[object] = []
    for _ in range(2):
        found.append(client_round.answers(federation.context, job))
        result = client_round.train(federation.context, job)
        found.append(result.upload)
        job = replace(job, kept=result.kept)
    return named(found)


def _but(computed: State, entry: tuple[str, str]) -> State:
    return {key: value for key, value in computed.items() if not key.endswith(".".join(entry))}
