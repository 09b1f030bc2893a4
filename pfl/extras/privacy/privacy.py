"""The settings of a private run, and checks of whether it can be private."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pfl.core.data import FederatedData
from pfl.core.data_view import DataView
from pfl.extras.privacy import separable
from pfl.extras.privacy.account import Account
from pfl.extras.privacy.clients import ClientAccount
from pfl.extras.privacy.refusal import unsupported_reason
from pfl.extras.privacy.samples import SampleAccount
from pfl.extras.privacy.terms import Terms
from pfl.training.uplink import Start


@dataclass(frozen=True)
class Privacy(Terms):
    """Differential privacy of a run: for whole clients or single samples.

    ``level: user``: clients clip what they send, and the server adds noise. Two federations are
    neighbours if they differ by one client. McMahan et al., "Learning Differentially Private
    Recurrent Language Models", ICLR 2018, arXiv 1710.06963, with a fixed denominator.

    ``level: sample``: in each step, clients clip the gradient of each sample and add noise. Two
    federations are neighbours if they differ by one sample of a client. Abadi et al., "Deep
    Learning with Differential Privacy", CCS 2016, arXiv 1607.00133.

    Args:
        clip: Largest norm C of a client's difference or a sample's gradient; with ``adaptive``,
            that of the first round.
        sigma: Standard deviation of the noise in the sum of a round or step, in units of the clip.
        delta: Delta of the guarantee, in (0, 1); below one over the number of clients or of the
            largest client's samples.
        epsilon: Limit: the run ends before a round that would exceed it; ``None`` for no limit.
        level: Unit of protection: a whole client (``user``), or each single ``sample`` of its data.
        adaptive: Adapt the clip to the median norm (Andrew et al., "Differentially Private
            Learning with Adaptive Clipping", NeurIPS 2021, arXiv 1905.03871). Epsilon includes the
            count of norms below the clip.
        noise: Source of noise, cohorts and batches: the run's ``seed``, for experiments (anyone who
            knows the seed can subtract the noise), or the operating ``system``.

    Raises:
        ValueError: A number is out of range, an infinite clip has noise, or ``adaptive`` is set at
            the sample level.
    """

    def bound(self, start: Start) -> Account:
        """Return the account of a run, a step of the uplink.

        Raises:
            ValueError: The method cannot be run privately, the sampler does not draw Poisson
                cohorts, a number does not fit the number of clients or samples, or real clients
                would have noise from a seed.
        """
        check_loss(start.data)
        data = start.context.data
        if self.noise == "seed" and isinstance(data, DataView) and data.real:
            raise ValueError(
                "Privacy: the clients are real, and anyone who knows the run's seed could "
                "subtract its noise: set noise: system"
            )
        account = self._of_clients(start) if self.level == "user" else self._of_samples(start)
        start.guarantees.append(account)
        return account

    def _of_clients(self, start: Start) -> ClientAccount:
        account, clients = ClientAccount.of(self.plain, start), len(start.clients)
        check_delta("Privacy: delta", self.delta, clients, "number of clients", "one client's data")
        module = start.context.module
        told = [*map(account.disclosed, start.clients)]
        if (why := unsupported_reason(module, start.server, told)) is not None:
            raise ValueError(f"Privacy: {type(module).__name__} cannot be run: {why}")
        # Rejects too few clients for an adaptive clip.
        account.privacy.sum_deviation(account.expected)
        return account

    def _of_samples(self, start: Start) -> SampleAccount:
        name = type(start.context.module).__name__
        if start.server.needs_label_counts:
            raise ValueError(f"Privacy: {name} cannot be run: its server needs class counts")
        largest = max(start.clients, key=lambda info: info.samples)
        whole = "samples of the largest client"
        check_delta("Privacy: delta", self.delta, largest.samples, whole, "one sample")
        job = start.first(largest.client)
        uncounted = replace(job, info=replace(job.info, label_counts=None))
        if (why := separable.unsupported_reason(start.context, uncounted)) is not None:
            raise ValueError(f"Privacy: samples cannot be kept private: {why}")
        return SampleAccount.of(self.plain, start)


def check_loss(data: FederatedData) -> None:
    """Reject class weights that are counted in the data: they enter every gradient without noise.

    Raises:
        ValueError: The weights are counted in the data.
    """
    loss = getattr(data, "loss", None)
    if isinstance(loss, Mapping) and loss.get("class_weights") == "balanced":
        raise ValueError(
            "Privacy: data.loss: class_weights: balanced counts all clients' samples without "
            "noise: give the weights as numbers"
        )


def check_delta(name: str, delta: float, units: int, whole: str, one: str) -> None:
    """Reject a delta that is too large.

    Args:
        name: Name of the setting.
        delta: Its value.
        units: Number of clients or samples, one of which is protected.
        whole: What ``units`` counts, in words.
        one: What could be published under a large delta, in words.

    Raises:
        ValueError: It is at least one over ``units``.
    """
    if units and delta >= 1 / units:
        raise ValueError(
            f"{name}={delta} must be below {1 / units:.3g}, one over the {whole} ({units}): "
            f"a larger delta would allow publishing {one}"
        )
