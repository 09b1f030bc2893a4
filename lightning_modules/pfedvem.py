"""pFedVEM: a Bayesian head for each client, aggregated by the client's confidence.

Zhu, Ma and Blaschko, "Confidence-aware Personalized Federated Learning via Variational Expectation
Maximization", CVPR 2023, arXiv 2305.12557; code: github.com/JunyiZhu-AI/confidence_aware_PFL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from lightning_modules import base as fl

SERVER_HEAD = {"server_head_weight": "mean_weight", "server_head_bias": "mean_bias"}


class PFedVEM(fl.ClientModule):
    """A Gaussian head for each client; the server weights its means by a confidence.

    The base network is trained as in FedAvg. The head of client j is a Gaussian with means mu_j and
    diagonal covariance Sigma_j. Its prior is centred at the server's head w and has one variance
    rho_j^2, which has a closed form. The confidence tau_j = 1 / rho_j^2 sets the strength of the
    prior, and the weight of mu_j in the next w. Base and server head come down; base, mu_j and
    tau_j go up; the Gaussian head and tau_j stay.

    All clients train in every round, and a sample of them uploads: use ``BernoulliSampler`` with
    ``probability`` s, ``minimum`` uploads and ``train_all``. With the loop's ``on_nonfinite:
    skip``, a client whose loss is not finite falls back to its posterior before the round and
    uploads nothing. Before any broadcast a plain Trainer minimises the expected cross-entropy over
    base and head.

    Where paper and code differ, this class follows the code; the method's documentation page lists
    the differences and their options.

    Args:
        net: A ``SplitNet`` whose head is one linear layer, from D features to C logits. The head's
            values are replaced by means from N(0, 1), for weights and biases, which server and
            clients share at the start.
        optimizer: See :class:`ClientModule`; its own learning rate is used under a plain Trainer
            only.
        lr_head: Learning rate of the head's means and raw standard deviations.
        lr_base: Learning rate of the base.
        head_epochs: R, the number of full-batch steps on the head.
        epochs: Epochs of the base (``base_epochs`` in the code).
        mc_samples: K, the draws of the head in each step.
        init_std: Initial standard deviation of every weight and bias of the head.
        tau_timing: When tau is updated: ``before_head`` training, from the posterior of the last
            round and the new w; or ``after_head`` training, for the upload and the next round
            (Algorithm 1).
        base_loss: Loss of the base: over draws of the head (``mc``), or at its means
            (``mean_head``).
        server_momentum: beta in ``beta * old + (1 - beta) * average``, for base and head.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` is not a ``SplitNet`` with one linear layer as its head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="pFedVEM",
        family="Prototypes and distributions",
        travels="backbone, head means, confidence",
        stays="Gaussian head",
        apart="Gaussian heads, weighted by a confidence in closed form",
        paper=fl.Paper(
            (
                "Confidence-aware Personalized Federated Learning via Variational Expectation "
                "Maximization"
            ),
            "Zhu, Junyi and Ma, Xingchen and Blaschko, Matthew B.",
            "CVPR",
            2023,
            "https://arxiv.org/abs/2305.12557",
        ),
    )

    shared = ("net.backbone.*", "server_head_*")
    kept = ("net.head.*", "confidence")
    extra = ("confidence",)
    evaluate_at = "post_local"
    global_model = True
    vectorizable = True
    draws_noise = True
    needs = ("classes", "parts", "sample_losses")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        optimizer: fl.OptimizerFactory = lambda params: torch.optim.SGD(
            params, lr=0.001, momentum=0.9
        ),
        lr_head: fl.NotNegative[float] = 0.001,
        lr_base: fl.NotNegative[float] = 0.001,
        head_epochs: fl.NotNegative[int] = 10,
        epochs: float = 5,
        mc_samples: fl.AtLeastOne = 5,
        init_std: fl.Positive[float] = 1.0,
        tau_timing: Literal["before_head", "after_head"] = "before_head",
        base_loss: Literal["mc", "mean_head"] = "mc",
        server_momentum: Annotated[float, fl.Range("[0, 1)")] = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(_with_gaussian_head(net, init_std), optimizer, epochs, **options)
        self.head_optimizer = fl.with_lr(self.optimizer, lr_head)
        self.base_optimizer = fl.with_lr(self.optimizer, lr_base)
        self.head_epochs = head_epochs
        self.draws = self.head.noise_shapes(mc_samples)
        self.mc_samples = mc_samples
        self.tau_timing = tau_timing
        self.base_loss = base_loss
        self.server_momentum = server_momentum
        self.server_head_weight = nn.Buffer(self.head.mean_weight.detach().clone())
        self.server_head_bias = nn.Buffer(self.head.mean_bias.detach().clone())
        self.confidence = nn.Buffer(torch.tensor(init_std**-2))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return both rates, which replace the common one, and the paper's ranges."""
        return (
            fl.Dimension("lr_head", 1e-4, 0.1, log=True),
            fl.Dimension("lr_base", 1e-4, 0.1, log=True),
            fl.Dimension("init_std", choices=(0.1, 0.3162, 1.0)),
            fl.Dimension("head_epochs", choices=(5, 10, 20)),
        )

    @property
    def head(self) -> fl.VariationalLinear:
        """The posterior of the head."""
        return cast(fl.VariationalLinear, self.net.head)

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load base and server head, and update the confidence in closed form (M-step)."""
        super().receive(broadcast, info)
        if self.tau_timing == "before_head":
            fl.assign(self, {"confidence": self._confidence()})

    @property
    def extra_within(self) -> Mapping[str, str]:
        """One over a variance."""
        return {"confidence": "(0, inf)"}

    def plan(self) -> fl.Plan:
        """Declare two phases: the head's posterior on the received base, then the base."""
        head = fl.Phase(
            name="head",
            objective=self.free_energy,
            epochs=self.head_epochs,
            trains=("net.head.*",),
            evals=("net.backbone",),
            optimizer=self.head_optimizer,
            full_batch=True,
            inputs=self.features,
            noise=self.draws,
        )
        base = fl.Phase(
            name="base",
            objective=self.losses,
            epochs=self.epochs,
            trains=("net.backbone.*",),
            optimizer=self.base_optimizer,
            noise=self.draws if self.base_loss == "mc" else {},
        )
        if self.tau_timing == "before_head":
            return [head, base]
        update = fl.Pass(name="confidence", then=lambda _: {"confidence": self._confidence()})
        return [head, update, base]

    def features(self, batch: fl.Batch) -> Tensor:
        """Return (B, D) features, which are constant while the head is trained."""
        z: Tensor = self.net.backbone(batch.x)
        return z

    def free_energy(self, batch: fl.Batch) -> fl.Terms:
        """Compute the head's objective on all features of a client, a sum over the data plus KL."""
        logits = self.head(batch.x, self.mc_samples, batch.noise)
        nll = self._expected(logits, batch, "sum")
        prior = self.server_head_weight, self.server_head_bias
        return {"nll": nll, "kl": self.head.kl(*prior, self.confidence.rsqrt())}

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return the base's objective: a mean over the batch, without the KL divergence."""
        if self.base_loss == "mean_head":
            return self.supervised(self(batch.x), batch)
        logits = self.head(self.features(batch), self.mc_samples, batch.noise)
        return {"nll": self._expected(logits, batch, "mean")}

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return the base, the posterior means as the server's head, and the confidence."""
        sent = super().upload(info)
        means = {name: getattr(self.head, mean) for name, mean in SERVER_HEAD.items()}
        return replace(sent, shared=sent.shared | fl.clone(means))

    def load_global(self, broadcast: fl.Broadcast) -> None:
        """Load the aggregated base under the server's head."""
        super().load_global(broadcast)
        fl.assign(self.head, {mean: broadcast.shared[name] for name, mean in SERVER_HEAD.items()})

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that averages the base by samples and the head by confidence."""
        return VEMServer(self.weighting, self.server_momentum)

    def describe(self) -> fl.State:
        """Return the confidence, and the two sums from which it is computed."""
        mean, std, prior = self._posterior()
        return {
            "confidence": self.tau(mean, std, prior),
            "uncertainty": std.square().sum(),
            "deviation": (mean - prior).square().sum(),
        }

    def _expected(
        self, logits: Tensor, batch: fl.Batch, reduction: Literal["mean", "sum"]
    ) -> Tensor:
        """Return the task's loss, averaged over draws."""
        losses = self.task.sample_losses
        return fl.monte_carlo_cross_entropy(logits, batch.y, batch.weight, reduction, losses)

    def tau(self, mean: Tensor, std: Tensor, prior: Tensor) -> Tensor:
        """Compute the confidence from (d,) means and standard deviations of the head, and w."""
        return confidence(mean, std, prior)

    def _confidence(self) -> Tensor:
        return self.tau(*self._posterior())

    def _posterior(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (d,) means and standard deviations of the head, and w."""
        head = self.head
        mean, std, prior = (
            torch.cat([weight.flatten(), bias])
            for weight, bias in (
                (head.mean_weight, head.mean_bias),
                (head.std_weight, head.std_bias),
                (self.server_head_weight, self.server_head_bias),
            )
        )
        return mean, std, prior


@dataclass(eq=False)
class VEMServer(fl.Server[fl.ServerState]):
    """A server that averages the base by samples and the head's means by confidence.

    Args:
        momentum: beta in ``beta * old + (1 - beta) * average``; the paper has none.
        weighting: Weighting of the base.
    """

    reports: ClassVar = {**fl.Server.reports, "confidence": "confidence of the head"}
    summed = tuple(SERVER_HEAD)
    momentum: float = 0.0

    def welcome(
        self,
        state: fl.ServerState,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Return the broadcast, and a posterior that is the prior: its head, and one variance.

        The variance is the inverse of the mean confidence in the last round; without such a round,
        the initial one stays.
        """
        sent, _ = super().welcome(state, info, members)
        kept = {f"net.head.{mean}": sent.shared[name] for name, mean in SERVER_HEAD.items()}
        told = list((state.client_report or {}).get("confidence", {}).values())
        if told:
            tau = sum(told) / len(told)
            raw = fl.inverse_softplus(tau**-0.5)
            for mean in SERVER_HEAD.values():
                like = kept[f"net.head.{mean}"]
                kept[f"net.head.{mean.replace('mean', 'raw_std')}"] = torch.full_like(like, raw)
            kept["confidence"] = torch.tensor(tau).to(like)
        return sent, kept

    def begin(self, state: fl.ServerState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare ``theta = sum n_j theta_j / sum n_j``, ``w = sum tau_j mu_j / sum tau_j``."""
        head = fl.Mean(lambda upload: float(upload.extra["confidence"]), tuple(SERVER_HEAD))
        return {**super().begin(state, senders), "head": head}

    def finish(self, state: fl.ServerState, folded: fl.Folded) -> fl.ServerState:
        """Return the state after a step towards the averages."""
        average = folded.mean | folded["head"]
        momentum = torch.tensor([self.momentum, 1 - self.momentum], dtype=torch.float64)
        moved = fl.weighted_mean([state.shared, average], momentum)
        return replace(state, shared=moved, client_report=self.reported(folded))


def confidence(mean: Tensor, std: Tensor, prior: Tensor) -> Tensor:
    """Compute the inverse prior variance, ``tau = d / (sum std^2 + sum (mean - w)^2)``.

    This tau minimises the KL divergence of the posterior from the prior N(w, 1 / tau).

    Args:
        mean: (d,) posterior means.
        std: (d,) posterior standard deviations.
        prior: (d,) means of the prior, w.

    Example:
        >>> confidence(torch.tensor([1.0, 3.0]), torch.ones(2), torch.ones(2))  # 2 / (2 + 4)
        tensor(0.3333)
    """
    return inverse_mean(std.square() + (mean - prior).square())


def inverse_mean(squares: Tensor) -> Tensor:
    """Return the number of (d,) squares over their sum; a sum below 1e-8 counts as 1e-8, zero as d.

    Example:
        >>> inverse_mean(torch.tensor([1.0, 3.0])), inverse_mean(torch.zeros(2))
        (tensor(0.5000), tensor(1.))
    """
    total = squares.sum()
    return torch.where(total > 0, len(squares) / total.clamp_min(1e-8), 1.0)


def _with_gaussian_head(net: fl.SplitNet, init_std: float) -> fl.SplitNet:
    fl.check_needs("PFedVEM", PFedVEM.needs, net)
    fl.must_have_linear_head(net, "PFedVEM")
    with fl.scoped(fl.seed_of(net)):
        head = fl.VariationalLinear(net.features, net.num_classes, init_std)
    return fl.SplitNet(net.backbone, head, net.features, net.num_classes)
