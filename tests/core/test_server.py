from typing import ClassVar

import torch

from pfl.core.server import Server, ServerState, received
from pfl.core.types import Upload
from tests.helpers.draws import upload


def test_weights_by_samples_and_uniform():
    """30 and 10 samples: 3/4 and 1/4, so 0.75 * 2 + 0.25 * 6 = 3; uniform: (2 + 6) / 2 = 4."""
    uploads = [upload(0, 30, 2.0), upload(3, 10, 6.0)]
    state = ServerState({"w": torch.zeros(1)})
    after = Server().aggregate(state, uploads)
    assert after.shared["w"].item() == 3.0
    assert after.client_report == {"weight": {0: 0.75, 3: 0.25}}
    assert after.round == 1
    assert Server("uniform").aggregate(state, uploads).shared["w"].item() == 4.0
    assert state.shared["w"].item() == 0.0
    assert state.round == 0


def test_nobody_uploads():
    state = ServerState({"w": torch.ones(1)})
    after = Server().aggregate(state, [])
    assert after.shared is state.shared
    assert after.round == 1


def test_a_number_that_clients_send_is_reported_if_the_server_names_it():
    class Own(Server):
        reports: ClassVar = {**Server.reports, "trace": "trace"}

    extra = [{"trace": torch.tensor(t), "other": torch.tensor(0.0)} for t in (1.5, 0.5)]
    uploads = [Upload(c, 1, {"w": torch.zeros(1)}, extra[i]) for i, c in enumerate((2, 5))]
    assert received(uploads, "trace").tolist() == [1.5, 0.5]
    after = Own().aggregate(ServerState({"w": torch.zeros(1)}), uploads)
    assert after.client_report == {"weight": {2: 0.5, 5: 0.5}, "trace": {2: 1.5, 5: 0.5}}
