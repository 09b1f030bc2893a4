"""FedGH: private backbones under a common head, which the server trains on class means.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023,
arXiv 2303.13137; the authors' released code, PFLlib, HtFLlib.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from lightning_modules import base as fl

Order = Literal["batches", "one_by_one"]
HEAD = "net.head."


class FedGH(fl.ClientModule):
    """Private backbones, and a head that the server trains on the clients' mean features.

    A client trains its backbone and the received head on its data, and then sends the mean feature
    of each of its classes. The server takes gradient steps with the head on these pairs of mean and
    class. The head comes down and C_i rows go up; the backbone stays. A client is tested with its
    backbone and the received head (right after training, with its trained head).

    Args:
        net: A ``SplitNet``. Clients' backbones may only differ if their number of features D is the
            same.
        server_lr: eta_h, the learning rate of the server.
        server_epochs: Passes of the server over all pairs.
        server_batch: Batch size of the server, in pairs.
        order: ``batches`` takes shuffled batches (PFLlib, HtFLlib); ``one_by_one`` takes one step
            on each pair, by client and class (the paper), without regard to the two numbers above.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedGH",
        family="Prototypes and distributions",
        travels="head down, class means up",
        stays="backbone",
        apart="the server trains a common head on the clients' class means",
        paper=fl.Paper(
            "{FedGH}: Heterogeneous Federated Learning with Generalized Global Header",
            "Yi, Liping and Wang, Gang and Liu, Xiaoguang and Shi, Zhuan and Yu, Han",
            "ACM MM",
            2023,
            "https://arxiv.org/abs/2303.13137",
            full_venue="ACM Multimedia",
        ),
    )

    shared = ("net.head.*",)
    kept = ("net.backbone.*",)
    extra = ("classes", "means")
    global_model = False
    vectorizable = True
    needs = ("classes", "parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        server_lr: fl.NotNegative[float] = 0.01,
        server_epochs: fl.NotNegative[int] = 100,
        server_batch: fl.AtLeastOne = 10,
        order: Order = "batches",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.of_server = server_lr, server_epochs, server_batch, order
        self.means = nn.Buffer(torch.zeros(net.num_classes, net.features))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return the learning rate and epochs of the server."""
        return (
            fl.Dimension("server_lr", choices=(0.01, 0.1, 1.0)),
            fl.Dimension("server_epochs", choices=(1, 10, 100)),
        )

    @property
    def extra_within(self) -> Mapping[str, str]:
        """Classes of the task."""
        return {"classes": f"[0, {self.net.num_classes - 1}]"}

    def plan(self) -> fl.Plan:
        """Declare training, then a pass that computes the class means."""
        return [
            fl.Phase(name="local", objective=self.losses, epochs=self.epochs),
            fl.means_pass("means", "means", self.net.backbone, self.net.num_classes),
        ]

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return one row for each of the client's classes: C_i (D + 1) numbers."""
        return fl.means_upload(self.means, info)

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that trains the head."""
        head = copy.deepcopy(self.net.head).eval()
        return FedGHServer(self.weighting, *self.of_server, head=head, task=self.task)


@dataclass(eq=False)
class FedGHServer(fl.MeansServer[fl.ServerState]):
    """A server that trains the head; its arguments are those of :class:`FedGH`."""

    order: Order = "batches"
    head: nn.Module = field(kw_only=True, repr=False)
    task: fl.Task = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.order == "one_by_one":
            self.server_batch = 1

    def orders(self, count: int, round: int) -> Iterable[Tensor]:
        """Return the order of ``count`` means in each epoch."""
        single = self.order == "one_by_one"
        return [torch.arange(count)] if single else super().orders(count, round)

    def finish(self, state: fl.ServerState, folded: fl.Folded) -> fl.ServerState:
        """Return the state with the trained head."""
        means, classes = fl.uploaded_means(folded["means"], next(iter(state.shared.values())))
        head = {name.removeprefix(HEAD): value for name, value in state.shared.items()}
        linear = type(self.head) is nn.Linear and "bias" in head
        quick = linear and self.task == fl.Classification() and means.dtype.itemsize >= 4
        train = self._train_linear if quick else self._train
        trained, mean = train(head, means, classes, self.orders(len(means), state.round))
        shared = {HEAD + name: trained[name] for name in head}
        return replace(state, shared=shared, report={"header_loss": mean})

    def _train(
        self, head: fl.State, means: Tensor, classes: Tensor, orders: Iterable[Tensor]
    ) -> tuple[fl.State, float]:
        """Train any head."""

        def loss(values: fl.State, means: Tensor, classes: Tensor) -> Tensor:
            return self.task.loss(fl.call_with(self.head, values, self.head, means), classes)

        return self.descended(head, fl.descent(loss, self.server_lr), (means, classes), orders)

    def _train_linear(
        self, head: fl.State, means: Tensor, classes: Tensor, orders: Iterable[Tensor]
    ) -> tuple[fl.State, float]:
        """Train a linear head: its steps are so many that their calls are what takes time."""
        joined = {"head": torch.cat([head["weight"], head["bias"][:, None]], 1)}
        inputs = torch.cat([means, means.new_ones(len(means), 1)], 1)
        rows = inputs, classes, -F.one_hot(classes, len(head["bias"])).to(means)
        trained, mean = self.descended(joined, fl.linear_descent(self.server_lr), rows, orders)
        weight = trained["head"]
        return {"weight": weight[:, :-1].contiguous(), "bias": weight[:, -1].contiguous()}, mean
