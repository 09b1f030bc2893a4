"""The client's half: the difference and its one clip."""

import math

import pytest
import torch

from pfl.core.types import Broadcast, ClientInfo, Job, Result, Upload
from pfl.extras.privacy.clip import WHOLE, Clip

RECEIVED = Broadcast({"a": torch.tensor([1.0, 1.0])}, {"c": torch.tensor(9.0)})


KEPT = torch.tensor(3.0)


def sent(step, extra=None, finite=True):
    upload = Upload(0, 7, {"a": torch.tensor([4.0, 1.0])}, extra or {"change": torch.tensor(4.0)})
    job = Job(ClientInfo(0, 7, None), {"had": KEPT}, RECEIVED, 0)
    return upload, step.sent(job, Result(0, upload, {"has": KEPT}, {}, 1, 7, finite=finite))


def test_extra_is_sent_by_name_alone_and_from_what_was_received():
    extra = {"c": torch.tensor(10.0), "secret": torch.tensor(1.0)}
    _, result = sent(Clip(math.inf, ("c",)), extra)
    assert result.upload.extra == {"c": torch.tensor(1.0, dtype=torch.float64)}


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_difference_that_is_not_finite_is_zero_and_not_told(wrong):
    """It counts as longer than the clip, and the client keeps what it had."""
    sending = Clip(1.0, ("change",), tells_whole=True)
    _, result = sent(sending, {"change": torch.tensor(wrong)})
    assert result.finite
    assert result.upload.shared["a"].tolist() == [0, 0]
    assert result.upload.extra["change"].item() == 0
    assert result.upload.extra[WHOLE].item() == -0.5
    _, result = sent(sending, finite=False)
    assert (result.finite, result.kept) == (True, {"had": KEPT})
    assert result.upload.shared["a"].tolist() == [0, 0]
