"""The client's half of the passage: what it does to its upload before it sends it."""

from __future__ import annotations

import math
from dataclasses import replace

from pfl.core.types import Broadcast, Job, Result
from pfl.passage.coding import encoded
from pfl.passage.difference import bounded, difference, norm


def send(job: Job, result: Result) -> Result:
    """Return a result whose upload is as the client sends it.

    Every engine calls this where the client is, right after its round. Without
    :attr:`pfl.core.types.Job.sending` nothing changes.
    """
    sending, upload = job.sending, result.upload
    if sending is None or upload is None or not result.finite:
        return result
    if sending.differs:
        upload = difference(upload, job.broadcast or Broadcast({}), sending.extra)
    if sending.clip is not None:
        if not math.isfinite(norm(upload)):
            return replace(result, finite=False)
        upload = bounded(upload, sending.clip)
    if sending.codec is None:
        return replace(result, upload=upload)
    payload, residuals = encoded(job, upload.shared, sending)
    return replace(
        result, upload=replace(upload, shared=payload), kept={**result.kept, **residuals}
    )
