"""Whether an upload is what its method declares, encoded as its client was asked to."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl.core.client import ClientModule
from pfl.core.state import form_of
from pfl.core.types import Job, Sending, State, Upload
from pfl.passage.codecs import codec_of
from pfl.passage.coding import taken
from pfl.passage.send import WHOLE


class UploadError(ValueError):
    """An upload is not what its method declares."""


def check(upload: Upload, job: Job, module: ClientModule, entries: State) -> None:
    """Refuse an upload with something else than its method declares.

    What a method sends in addition (:attr:`Upload.extra`) has the shape of the module's entry of
    that name, or any if there is none. A method that puts its upload together itself may leave
    something out, and may send some rows of such an entry. The module's entries tell types and
    shapes.

    Raises:
        UploadError: It is of another client or size, lacks an entry, has one that is not declared,
            or one of another type or shape.
    """
    sending, info = job.sending or Sending(), job.info
    samples = 1 if sending.differs else info.samples
    if (upload.client, upload.samples) != (info.client, samples):
        raise UploadError(
            f"the upload of client {info.client} with {samples} samples says client "
            f"{upload.client} with {upload.samples} samples"
        )
    # A method may send a part of an entry; then the server sends such a part as well.
    right = {**entries, **(job.broadcast.shared if job.broadcast else {})}
    whole, names = dict(upload.shared), module.shared_names()
    added = [name for name in module.extra if sending.extra is None or name in sending.extra]
    partial = type(module).upload is not ClientModule.upload
    coded = () if sending.codec is None else sending.coded
    sent = {*whole, *upload.extra}
    for name in coded:
        if sending.codec is not None and (parts := taken(whole, name)):
            sent.add(name)
            try:
                codec_of(sending.codec).check(parts, right[name])
            except ValueError as error:
                raise UploadError(f"upload encodes {name!r} otherwise: {error}") from error
    if not partial and (absent := [name for name in (*names, *added) if name not in sent]):
        raise UploadError(f"upload lacks {absent[0]!r}")
    for name, value in whole.items():
        if name not in names or name in coded:
            raise UploadError(f"upload sends {name[:60]!r}, which 'shared' does not match")
        _check_alike(name, value, right[name], sending)
    for name, value in upload.extra.items():
        if name == WHOLE and sending.tells_whole:
            _check_alike(name, value, torch.zeros(()), sending)
        elif name not in added:
            raise UploadError(f"upload sends the extra {name[:60]!r}, missing in 'extra'")
        elif name in entries:
            entry = entries[name]
            if partial and value.dim() and entry.dim() and not sending.differs:
                # Some rows, such as the prototypes of the classes that the client has.
                entry = entry[: len(value)]
            _check_alike(name, value, entry, sending)


def _check_alike(name: str, value: Tensor, right: Tensor, sending: Sending) -> None:
    """Refuse another type or shape; a difference has the widest type of the client's device."""
    same = value.is_floating_point() if sending.differs else value.dtype == right.dtype
    if not same or value.shape != right.shape:
        raise UploadError(f"upload sends {name!r} as {form_of(value)} instead of {form_of(right)}")
