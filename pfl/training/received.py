"""Checks of messages: uploads that a client sends, and entries that a server sends."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pfl.core.client import ClientModule
from pfl.core.ranges import Range
from pfl.core.state import form_of, moderate
from pfl.core.types import ClientInfo, Job, State, Upload


class UploadError(ValueError):
    """An upload differs from its method's declaration."""


def must_be_moderate(upload: Upload, module: ClientModule) -> State:
    """Return the entries of an upload that :func:`pfl.core.state.moderate` must hold for."""
    free = module.extra_nonfinite
    return upload.shared | {n: value for n, value in upload.extra.items() if n not in free}


def sendable(upload: Upload, module: ClientModule) -> bool:
    """Return ``True`` if the numbers of an upload may reach the server."""
    return moderate(must_be_moderate(upload, module))


def check_upload(upload: Upload, job: Job, module: ClientModule, entries: State) -> None:
    """Refuse an upload that differs from its method's declaration.

    What a method sends in addition (:attr:`Upload.extra`) has the shape of the module's entry of
    that name, or any if there is none. A method that builds its upload itself may omit entries, and
    may send some rows of such an entry. The module's entries have the right types and shapes.

    Raises:
        UploadError: It is of another client or size, lacks an entry, has one that is not declared,
            or one of another type or shape, or a number outside its declared interval.
    """
    # A method may send a part of an entry; then the server sends such a part as well.
    right = {**entries, **(job.broadcast.shared if job.broadcast else {})}
    for step in reversed(job.steps):
        try:
            upload = step.checked(upload, job, right)
        except ValueError as error:
            raise UploadError(f"upload {error}") from error
    _check_sender(upload, job.info)
    names, whole = module.shared_names(), type(module).upload is ClientModule.upload
    if whole:
        _check_complete(upload, job, module)
    for name, value in upload.shared.items():
        if name not in names:
            raise UploadError(f"upload sends {name[:60]!r}, which 'shared' does not match")
        _check_alike(name, value, right[name])
    for name, value in upload.extra.items():
        if name not in module.extra:
            raise UploadError(f"upload sends the extra {name[:60]!r}, missing in 'extra'")
        if name in entries:
            # Some rows, such as the prototypes of the classes that the client has.
            rows = not whole and value.dim() and entries[name].dim()
            _check_alike(name, value, entries[name][: len(value)] if rows else entries[name])
        if (interval := module.extra_within.get(name)) is not None and value.numel():
            _check_within(name, value, Range(interval))


def _check_sender(upload: Upload, info: ClientInfo) -> None:
    if (upload.client, upload.samples) != (info.client, info.samples):
        raise UploadError(
            f"the upload of client {info.client} with {info.samples} samples says client "
            f"{upload.client} with {upload.samples} samples"
        )


def _check_complete(upload: Upload, job: Job, module: ClientModule) -> None:
    # In a difference, missing entries are zero.
    added = () if any(step.differs for step in job.steps) else module.extra
    sent = {*upload.shared, *upload.extra}
    if absent := [name for name in (*module.shared_names(), *added) if name not in sent]:
        raise UploadError(f"upload lacks {absent[0]!r}")


def _check_within(name: str, value: Tensor, interval: Range) -> None:
    if value.is_complex():
        raise UploadError(f"upload sends complex numbers as {name!r}, which lie in {interval}")
    low, high = map(float, value.aminmax())
    if not (interval.holds(low) and interval.holds(high)):
        raise UploadError(
            f"upload sends numbers from {low:g} to {high:g} as {name!r}, which lie in {interval}"
        )


def check_entries(shared: State, entries: State) -> None:
    """Refuse entries from a server that the method does not have, or of another shape.

    A server may send a part of an entry, such as some channels.

    Raises:
        ValueError: There is such an entry.
    """
    for name, value in shared.items():
        if name not in entries:
            raise ValueError(f"the method has no entry {name[:60]!r}")
        check_part(value.shape, entries[name])


def check_part(shape: Sequence[int], whole: Tensor) -> None:
    """Refuse a shape that is not a part of an entry's.

    Raises:
        ValueError: It has other dimensions than the entry, or more in one of them.
    """
    if len(shape) != whole.dim() or any(
        n < 0 or n > most for n, most in zip(shape, whole.shape, strict=True)
    ):
        raise ValueError(f"a part of shape {[*shape]} of an entry of shape {[*whole.shape]}")


def _check_alike(name: str, value: Tensor, right: Tensor) -> None:
    if value.dtype != right.dtype or value.shape != right.shape:
        raise UploadError(f"upload sends {name!r} as {form_of(value)} instead of {form_of(right)}")
