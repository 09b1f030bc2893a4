"""FedProto: the invariants in docs/methods, with hand-worked numbers."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lightning_modules.fedproto import FedProto, FedProtoServer
from lightning_modules.local import Local
from lightning_modules.nets import SplitNet
from lightning_modules.steps.prototypes import class_means, class_sums, known, merge_prototypes
from pfl.core.server import ServerState
from pfl.core.types import Batch, Upload
from tests.helpers.extras import needs
from tests.helpers.federation import Federation, equal, fit, sgd
from tests.helpers.toy import ToyData, blobs, mlp, normed

NAN = float("nan")


def identity():
    """Build a network whose features are the inputs, D = 2, with a head of zeros."""
    net = SplitNet(nn.Identity(), nn.Linear(2, 3))
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    return net


def points(*clients, num_classes=3):
    """Make data of clients given as lists of ((x1, x2), y)."""
    rows = [
        (torch.tensor([x for x, _ in c]), torch.tensor([y for _, y in c], dtype=torch.long))
        for c in clients
    ]
    return ToyData(rows, outputs=num_classes)


TWO_CLIENTS = points(
    [((1.0, 0.0), 0), ((3.0, 0.0), 0), ((0.0, 2.0), 1)],
    [((0.0, 4.0), 1), ((0.0, 6.0), 1), ((0.0, 8.0), 1)],
)


def test_uploads_are_rows_of_the_own_classes():
    """Invariants 2 and 4: means of the features, no parameter, C_i (D + 1) numbers."""
    first, second = Federation(FedProto(identity()), TWO_CLIENTS).round()
    assert first.upload.shared == {}
    assert first.upload.extra["classes"].tolist() == [0, 1]
    assert first.upload.extra["means"].tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert second.upload.extra["classes"].tolist() == [1]
    assert second.upload.extra["means"].tolist() == [[0.0, 6.0]]
    assert sum(value.numel() for value in first.upload.extra.values()) == 2 * (2 + 1)


@needs("sites")
def test_counts_of_samples_pass_the_check_of_what_sites_send():
    runs = [
        fit(FedProto(mlp(), optimizer=sgd(), weighting="samples"), blobs(), 2, engine=engine)
        for engine in ("sequential", "loopback")
    ]
    assert runs[0].fingerprint == runs[1].fingerprint


@pytest.mark.parametrize(("weighting", "mean"), [("uniform", 4.0), ("samples", 5.0)])
def test_prototypes_are_averaged_class_by_class(weighting, mean):
    """Invariant 3.

    Class 1 has the means 2 (one sample) and 6 (three): (2 + 6) / 2, or (2 + 3 * 6) / 4.

    Class 0 is held by one client, whose mean it is (invariant 3); class 2 by none.
    """
    federation = Federation(FedProto(identity(), weighting=weighting), TWO_CLIENTS)
    federation.round()
    table = federation.state.shared["prototypes"]
    assert table[:2].tolist() == [[2.0, 0.0], [0.0, mean]]
    assert table[2].isnan().all()
    assert federation.state.report == {"known_classes": 2.0}


def test_classes_without_a_participant_keep_their_prototype():
    federation = Federation(FedProto(identity()), TWO_CLIENTS)
    federation.round(0)
    federation.round(1)
    assert federation.state.shared["prototypes"][:2].tolist() == [[2.0, 0.0], [0.0, 6.0]]


def test_there_is_no_pull_before_the_first_prototypes():
    federation = Federation(FedProto(mlp(), prototype_weight=5.0, optimizer=sgd()))
    alone = Federation(Local(mlp(), optimizer=sgd()))
    federation.round()
    alone.round()
    assert all(equal(federation.kept[client], alone.kept[client]) for client in range(3))
    assert all(result.train["local/prototype"] > 0 for result in federation.round())


def test_gradient_of_the_pull():
    """Invariant 5: 2 (f - c) / (b D) for features, zero for the head.

    f = (1, 2), (5, 5) with c_0 = (0, 0) and no c_1: 2 (1, 2) / (2 * 2) times lambda = 3, and 0.
    """
    module = FedProto(identity(), prototype_weight=3.0)
    module.prototypes.copy_(torch.tensor([[0.0, 0.0], [NAN, NAN], [NAN, NAN]]))
    x = torch.tensor([[1.0, 2.0], [5.0, 5.0]], requires_grad=True)
    terms = module.losses(batch_of(x, [0, 1]))
    assert terms["prototype"].item() == pytest.approx(3 * 5 / 4)
    terms["prototype"].backward()
    assert x.grad.tolist() == [[1.5, 3.0], [0.0, 0.0]]
    assert module.net.head.weight.grad is None


def batch_of(x, y):

    return Batch(x, torch.tensor(y))


def test_the_nearest_prototype_is_predicted():
    """Prototypes 0 and 4 on a line: 1.9 is nearer to the first, 2.1 to the second.

    Class 2 has none and is predicted only before there are any, by the head, which is zero but for
    the bias of class 2.
    """
    net = identity()
    with torch.no_grad():
        net.head.bias[2] = 1.0
    x = torch.tensor([[1.9, 0.0], [2.1, 0.0]])
    table = torch.tensor([[0.0, 0.0], [4.0, 0.0], [NAN, NAN]])
    module = FedProto(net)
    assert module(x).argmax(-1).tolist() == [2, 2]
    module.prototypes.copy_(table)
    logits = module(x)
    assert logits.isfinite().all()
    assert logits.argmax(-1).tolist() == [0, 1]


def test_absent_clients_get_new_prototypes_with_their_old_model():
    federation = Federation(FedProto(mlp(), optimizer=sgd()))
    federation.round()
    federation.round(0, 1)
    before = federation.kept[2]
    federation.test(2)
    present = federation.module.state_dict()
    assert all(torch.equal(present[name], before[name]) for name in before)
    assert torch.equal(present["prototypes"], federation.state.shared["prototypes"])


def test_merging_ignores_rows_of_weight_zero():
    """A client without a class may send anything for it: (2 * 1 + 1 * 4) / 3 = 2."""
    previous = torch.tensor([[NAN], [7.0]])
    tables = [torch.tensor([[1.0], [NAN]]), torch.tensor([[4.0], [5.0]])]
    counts = [torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0])]
    assert merge_prototypes(previous, tables, counts).tolist() == [[2.0], [7.0]]
    values, present = known(previous)
    assert (values.tolist(), present.tolist()) == ([[0.0], [7.0]], [0.0, 1.0])


def test_the_pass_takes_features_after_training_in_eval_mode():
    """The uploaded means are those of the model that the client keeps."""
    federation = Federation(FedProto(normed(), optimizer=sgd(), epochs=2))
    result = federation.train(0)
    module = federation.module.eval()
    split = federation.data.split(0, "train")
    z = module.net.backbone(split.x)
    means = class_means(*class_sums(z, split.targets, 3))
    rows = result.upload.extra["classes"].long()
    torch.testing.assert_close(result.upload.extra["means"], means[rows])


def test_the_server_does_not_depend_on_the_order_of_classes():
    state = ServerState(shared={"prototypes": torch.full((3, 1), NAN)})
    rows = {"classes": torch.tensor([2, 0]), "means": torch.tensor([[5.0], [1.0]])}
    upload = Upload(client=0, samples=3, shared={}, extra=rows)
    after = FedProtoServer("uniform").aggregate(state, [upload, replace(upload, client=1)])
    assert after.shared["prototypes"][[0, 2]].tolist() == [[1.0], [5.0]]
