"""The client's half of the passage: what it does to its upload before it sends it."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from pfl.core.types import Broadcast, Job, Result
from pfl.passage.coding import encoded
from pfl.passage.difference import bounded, difference, norm

WHOLE = "passage/whole"
"""Name in ``extra`` under which a client tells if its difference was no longer than the clip."""


def send(job: Job, result: Result) -> Result:
    """Return a result whose upload is as the client sends it.

    Every engine calls this where the client is, right after its round. Without
    :attr:`pfl.core.types.Job.sending` nothing changes.

    A private client whose numbers are not finite sends zero, keeps what it had, and does not tell.
    """
    sending, upload = job.sending, result.upload
    if sending is None or upload is None or not (result.finite or sending.clip is not None):
        return result
    if sending.differs:
        upload = difference(upload, job.broadcast or Broadcast({}), sending.extra)
    if sending.clip is not None:
        length = norm(upload) if result.finite else math.inf
        if not math.isfinite(length):
            nothing = {name: torch.full_like(v, torch.nan) for name, v in upload.shared.items()}
            upload = replace(upload, shared=nothing)
            result = replace(result, kept=job.kept, finite=True)
        upload = bounded(upload, sending.clip)
        if sending.tells_whole:
            # Plus or minus one half: by that much a client can change the count.
            vote = torch.tensor(0.5 if length <= sending.clip else -0.5)
            upload = replace(upload, extra={**upload.extra, WHOLE: vote})
    if sending.codec is None:
        return replace(result, upload=upload)
    payload, residuals = encoded(job, upload.shared, sending)
    return replace(
        result, upload=replace(upload, shared=payload), kept={**result.kept, **residuals}
    )
