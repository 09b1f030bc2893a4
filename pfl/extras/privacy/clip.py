"""The client's side of user-level privacy: the clipped difference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar, TypeAlias

import pydantic.dataclasses
import torch
from pydantic import Field

from pfl.core.state import form_of
from pfl.core.types import Broadcast, ClientStep, Job, Names, Result, State, Upload
from pfl.extras.privacy.difference import bounded, difference, norm

WHOLE = "passage/whole"
"""Name in ``extra`` of a client's report whether its difference was within the clip."""

LEAST_CLIP = 1e-12
"""The smallest clip, far above values whose squares underflow."""
Norm: TypeAlias = Annotated[float, Field(ge=LEAST_CLIP)]


@pydantic.dataclasses.dataclass(frozen=True)
class Clip(ClientStep):
    """Clips a client's difference: its upload minus what it received, in float64.

    A client whose numbers are not finite silently sends zero and keeps its former state.

    Attributes:
        clip: Largest Euclidean norm of the difference, over all entries sent.
        extra: Names in :attr:`Upload.extra` that are sent; others stay with the client.
        tells_whole: Whether the client reports if its difference was within the clip.
    """

    differs: ClassVar[bool] = True
    clip: Norm
    extra: Names = ()
    tells_whole: bool = False

    def sent(self, job: Job, result: Result) -> Result:
        """Replace a result's upload by the clipped difference."""
        if result.upload is None:
            return result
        upload = difference(result.upload, job.broadcast or Broadcast({}), self.extra)
        length = norm(upload) if result.finite else math.inf
        if not math.isfinite(length):
            nothing = {name: torch.full_like(v, torch.nan) for name, v in upload.shared.items()}
            upload = replace(upload, shared=nothing)
            result = replace(result, kept=job.kept, finite=True)
        upload = bounded(upload, self.clip)
        if self.tells_whole:
            # Plus or minus one half bounds a client's effect on the count.
            vote = torch.tensor(0.5 if length <= self.clip else -0.5)
            upload = replace(upload, extra={**upload.extra, WHOLE: vote})
        return replace(result, upload=upload)

    def checked(self, upload: Upload, job: Job, right: State) -> Upload:
        """Restore the types and shapes of an upload.

        Raises:
            ValueError: It reveals the number of samples, or has an entry that is unknown or is not
                a difference.
        """
        if upload.samples != 1:
            raise ValueError(f"reports {upload.samples} samples, but all clients count as one")
        for name in upload.extra:
            if name not in self.extra and not (name == WHOLE and self.tells_whole):
                raise ValueError(f"sends the extra {name[:60]!r}, which stays with the client")

        def before(values: State) -> State:
            found = {}
            for name, value in values.items():
                like = torch.zeros(()) if name == WHOLE else right.get(name, value)
                # Differences have the widest type of the client's device.
                if not value.is_floating_point() or value.shape != like.shape:
                    raise ValueError(
                        f"sends {name!r} as {form_of(value)} instead of {form_of(like)}"
                    )
                if name != WHOLE:
                    found[name] = torch.empty_like(like, device="meta")
            return found

        samples, shared, extra = job.info.samples, before(upload.shared), before(upload.extra)
        return replace(upload, samples=samples, shared=shared, extra=extra)
