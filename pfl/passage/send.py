"""The client's half of the passage: what it does to its upload before it sends it."""

from __future__ import annotations

import math
from dataclasses import replace

from pfl.core.types import Broadcast, Job, Result
from pfl.passage.difference import bounded, difference, norm


def send(job: Job, result: Result) -> Result:
    """Return a result whose upload is as the client sends it.

    Every engine calls this where the client is, right after its round. Without
    :attr:`pfl.core.types.Job.sending` nothing changes.
    """
    sending, upload = job.sending, result.upload
    if sending is None or upload is None or not result.finite:
        return result
    change = difference(upload, job.broadcast or Broadcast({}), sending.extra)
    if sending.clip is not None:
        if not math.isfinite(norm(change)):
            return replace(result, finite=False)
        change = bounded(change, sending.clip)
    return replace(result, upload=change)
