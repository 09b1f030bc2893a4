"""pFedBayes: every weight is a Gaussian; the global one is the prior of each client's posterior.

Zhang et al., "Personalized Federated Learning via Variational Bayesian Inference", ICML 2022, arXiv
2206.07977. The authors released no code; details follow an unofficial re-implementation built on
the code of pFedMe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_modules import base as fl

# Copies of the network that stay: q, and its two moments of Adam.
COPIES = ("personal", "first", "second")


class PFedBayes(fl.ClientModule):
    """Gaussians over all weights: a global distribution v, the prior of each client's posterior q.

    On each batch, q takes ``inner_steps`` steps of Adam on ``CE + zeta/n_i KL(q || v)`` with v
    constant; then v takes one step of the optimiser on ``zeta/n_i KL(q || v)`` with q constant. In
    each round q continues from its last state, and v starts as received. The global Gaussians v
    travel both ways; q and the state of its optimiser stay. Clients are tested with q; a client
    that never trained is tested with the initial one. Under a plain Trainer the objective is the
    cross-entropy of draws from v.

    Args:
        net: The network whose weights become the means; see
            :class:`~lightning_modules.layers.MeanFieldNet`.
        kl_weight: zeta, the weight of the KL divergence (the re-implementation searches 0.5, 1, 5,
            10, 20).
        inner_steps: Steps of q on each batch.
        mc_samples: Draws of the weights in each step.
        inner_lr: Learning rate of q's Adam. It is constant over the rounds.
        init_raw_std: Initial rho of every weight, where sigma = softplus(rho).
        init_mean_std: Standard deviation of the normal draws that initialise the means; ``None``
            keeps the network's own initial values.
        local_steps: R, the number of batches in a round (20 in the code); ``None`` uses ``epochs``
            instead.
        server_step: beta; the server moves to ``(1 - beta) v + beta average``.
        optimizer: Optimiser of v.
        weighting: As in :class:`ClientModule`; the paper's is ``uniform``.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="pFedBayes",
        family="Prototypes and distributions",
        travels="means and deviations",
        stays="posterior",
        apart="every weight is a Gaussian",
        paper=fl.Paper(
            "Personalized Federated Learning via Variational {Bayesian} Inference",
            "Zhang, Xu and Li, Yinchuan and Li, Wenpeng and Guo, Kaiyang and Shao, Yunfeng",
            "ICML",
            2022,
            "https://arxiv.org/abs/2206.07977",
        ),
    )

    kept = (*(f"{copy}.*" for copy in COPIES), "steps")
    vectorizable = True
    draws_noise = True
    needs = ("classes", "sample_losses")
    net: fl.MeanFieldNet

    def __init__(
        self,
        net: nn.Module,
        *,
        kl_weight: fl.NotNegative[float] = 10.0,
        inner_steps: fl.AtLeastOne = 5,
        mc_samples: fl.AtLeastOne = 1,
        inner_lr: fl.NotNegative[float] = 1e-3,
        init_raw_std: float = -3.0,
        init_mean_std: fl.NotNegative[float] | None = 0.1,
        local_steps: fl.AtLeastOne | None = None,
        server_step: fl.NotNegative[float] = 1.0,
        optimizer: fl.OptimizerFactory = lambda params: torch.optim.Adam(params, lr=1e-3),
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, optimizer=optimizer, weighting=weighting, **options)
        with fl.scoped(fl.derive(fl.seed_of(net), "pfedbayes")):
            self.net = gaussian = fl.MeanFieldNet(net, init_raw_std, init_mean_std)
        self.kl_weight = kl_weight
        self.inner_steps = inner_steps
        self.mc_samples = mc_samples
        self.inner_lr = inner_lr
        self.local_steps = local_steps
        self.server_step = server_step
        self.personal = fl.frozen(gaussian)
        self.first = _zeros(gaussian)
        self.second = _zeros(gaussian)
        self._statistics = list(fl.statistics(gaussian.mean))
        self.steps = nn.Buffer(torch.zeros(()))
        self.per_sample = nn.Buffer(torch.zeros(()))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return a rate for Adam, zeta and rho in the code's ranges."""
        return (
            fl.Dimension("optimizer.init_args.lr", 1e-4, 1e-2, log=True),
            fl.Dimension("kl_weight", choices=(0.5, 1.0, 5.0, 10.0, 20.0)),
            fl.Dimension("init_raw_std", choices=(-3.0, -2.5)),
        )

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load v, and the entries of q that are not Gaussian."""
        super().receive(broadcast, info)
        self.per_sample.fill_(1 / max(1, info.samples))
        fl.assign(self.personal.module, _plain(self.net))

    def plan(self) -> fl.Plan:
        """Declare one phase, in which q and v take steps."""
        shapes = self.net.noise_shapes(self.mc_samples)
        return [
            fl.Phase(
                name="local",
                objective=self._fit,
                epochs=self.epochs,
                steps=self.local_steps,
                noise={
                    f"{step}:{name}": shape
                    for step in range(self.inner_steps)
                    for name, shape in shapes.items()
                },
            )
        ]

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return the Gaussians v, with the entries of q that are not Gaussian."""
        upload = super().upload(info)
        plain = {f"net.{name}": value for name, value in _plain(self.personal.module).items()}
        return replace(
            upload, shared=upload.shared | fl.clone(fl.select(plain, tuple(upload.shared)))
        )

    def personalise(self, broadcast: fl.Broadcast | None, info: fl.ClientInfo) -> None:
        """Load q."""
        if broadcast is not None:
            self.receive(broadcast, info)
        fl.assign(self.net, self.personal.module.state_dict())

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that moves the means and rhos towards their averages."""
        q = ("net.", "personal.module.")
        names = tuple(f"net.{name}" for name, _ in self.net.named_parameters())
        return fl.MovingServer(self.weighting, self.server_step, names, inherits=q)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits at the means."""
        logits: Tensor = self.net(x)
        return logits

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return the cross-entropy of draws from v; there is no prior without a federation."""
        draws = fl.draw_noise(self.net.noise_shapes(self.mc_samples), next(self.net.parameters()))
        logits = self.net(batch.x, noise=draws)
        losses = self.task.sample_losses
        loss = fl.monte_carlo_cross_entropy(logits, batch.y, batch.weight, losses=losses)
        return {self.task.loss_name: loss}

    def _fit(self, batch: fl.Batch) -> fl.Outcome:
        """Take the steps of q, and return the objective of v."""
        stored, first, second = (
            dict(self.get_submodule(f"{copy}.module").named_buffers()) for copy in COPIES
        )
        names = [name for name, _ in self.net.named_parameters()]
        q = {name: stored[name] for name in names}
        moments = {n: first[n] for n in names}, {n: second[n] for n in names}
        received = self.net.moments()
        prior = fl.constant(received)
        running: fl.State = {}
        for step in range(self.inner_steps):
            slopes, ce, after, posterior = self._slopes(q, prior, batch, step)
            running = running or after
            q, moments = fl.adam_step(q, slopes, moments, self.steps + step + 1, self.inner_lr)
        kl = self._divergence(posterior, prior)
        entries = {"steps": self.steps + self.inner_steps}
        for copy, state in zip(COPIES, (q | running, *moments), strict=True):
            entries |= {f"{copy}.module.{name}": value for name, value in state.items()}
        final = {n: (q[f"mean.{n}"], fl.softplus_std(q[f"raw_std.{n}"])) for n in prior}
        return fl.Outcome({"ce": ce, "kl": kl, "prior": self._divergence(final, received)}, entries)

    def _slopes(
        self, q: fl.State, prior: fl.Moments, batch: fl.Batch, step: int
    ) -> tuple[fl.State, Tensor, fl.State, fl.Moments]:
        """Compute the gradient of q's objective with the noise of one step.

        The derivatives are written out: for weights ``w = mu + sigma eps``, the gradient of CE with
        respect to mu is that with respect to w, and eps times it is that with respect to sigma.
        Automatic differentiation would take twice as many passes over the weights.

        Returns:
            The gradient by the names of q, the cross-entropy, the new batch-norm statistics, and
            the moments of q.
        """
        weight = self.kl_weight * self.per_sample
        means = {n.removeprefix("mean."): v for n, v in q.items() if n.startswith("mean.")}
        raws = {name: q[f"raw_std.{name}"] for name in prior}
        posterior = {name: (means[name], fl.softplus_std(raw)) for name, raw in raws.items()}
        of_means = {n: torch.zeros_like(mean) for n, mean in means.items() if n not in prior}
        of_stds: fl.State = {}
        for name, (of_mean, of_std) in fl.mean_field_kl_slopes(posterior, prior).items():
            of_means[name], of_stds[name] = of_mean.mul_(weight), of_std.mul_(weight)
        noise = {name: (batch.noise or {})[f"{step}:{name}"] for name in prior}
        ce, after = self._add_slopes_of_loss((of_means, of_stds), means, posterior, batch, noise)
        gradient = {f"mean.{name}": slope for name, slope in of_means.items()}
        for name, slope in of_stds.items():
            std = posterior[name][1]
            gradient[f"raw_std.{name}"] = fl.softplus_std_slope(raws[name], std, slope)
        return gradient, ce, {f"mean.{n}": v for n, v in after.items()}, posterior

    def _add_slopes_of_loss(
        self,
        slopes: tuple[fl.State, fl.State],
        means: fl.State,
        posterior: fl.Moments,
        batch: fl.Batch,
        noise: fl.State,
    ) -> tuple[Tensor, fl.State]:
        """Add the gradient of the cross-entropy to those of means and standard deviations.

        Returns:
            The cross-entropy, averaged over draws, and the new batch-norm statistics.
        """
        of_means, of_stds = slopes
        personal = self.personal.module
        after = {name: personal.get_buffer(f"mean.{name}") for name in self._statistics}
        ce = self.per_sample.new_zeros(())
        for draw in range(self.mc_samples):
            drawn = {n: torch.addcmul(*moments, noise[n][draw]) for n, moments in posterior.items()}
            weights, loss = means | drawn, self.task.loss
            found, value, after = fl.slopes_at(self.net.mean, weights, after, batch, loss)
            ce = ce + value / self.mc_samples
            for name, slope in found.items():
                share = slope / self.mc_samples
                of_means[name].add_(share)
                if name in noise:
                    of_stds[name] = torch.addcmul(of_stds[name], share, noise[name][draw])
        return ce, after

    def _divergence(self, posterior: fl.Moments, prior: fl.Moments) -> Tensor:
        """Compute ``zeta / n_i KL(posterior || prior)``."""
        return self.kl_weight * self.per_sample * fl.mean_field_kl(posterior, prior)


def _plain(net: nn.Module) -> fl.State:
    """Return the entries of a mean-field network, or of a copy of it, that are not Gaussian."""
    entries = net.state_dict()
    stems = {name.removeprefix("raw_std.") for name in entries if name.startswith("raw_std.")}
    gaussian = {f"{moment}.{stem}" for stem in stems for moment in ("mean", "raw_std")}
    return {name: value for name, value in entries.items() if name not in gaussian}


def _zeros(net: nn.Module) -> fl.Frozen:
    zeros = fl.frozen(net)
    fl.assign(zeros, {name: torch.zeros_like(value) for name, value in zeros.state_dict().items()})
    return zeros
