"""One client's round and one client's test, as functions of a Job.

This is what every engine computes; the sequential engine calls it as it stands, and the others are
held to its numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from pfl import metrics
from pfl.seeds import derive, generator, scoped
from pfl.state import clone, finite, matches, total
from pfl.types import (
    Batch,
    ClientSplit,
    FederatedData,
    Job,
    Pass,
    Phase,
    Plan,
    Result,
    Scores,
    Split,
    State,
    Terms,
)

if TYPE_CHECKING:
    from lightning_modules.base import ClientModule

DROPOUTS = (nn.modules.dropout._DropoutNd, nn.RReLU)


@dataclass
class Context:
    """The module that plays every client in turn, and what it works with.

    Attributes:
        module: On its device; its state belongs to the job at hand.
        data: The federation's data, on the same device.
        fabric: Device and precision.
        gradient_clip_val: Largest norm of a step's gradient; ``None`` does not clip.
        template: The state every job starts from, before kept values and broadcast.
    """

    module: ClientModule
    data: FederatedData
    fabric: Fabric
    gradient_clip_val: float | None = None
    template: State = field(init=False)

    def __post_init__(self) -> None:
        # Converts to the precision's type and moves; the wrapper that it returns is not needed, as
        # the loop below enters the precision's context by itself.
        self.fabric.setup_module(self.module)
        self.module.fabric = self.fabric
        self.entries = self.module.state_dict()
        self.template = clone(self.entries)
        self.trainable = {n for n, p in self.module.named_parameters() if p.requires_grad}
        self.stochastic = any(isinstance(m, DROPOUTS) for m in self.module.modules())
        self.normalised = any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules()
        )
        scaler = getattr(self.fabric.strategy.precision, "scaler", None)
        self._scaler_start = scaler.state_dict() if scaler is not None else {}

    def load(self, kept: Mapping[str, Tensor]) -> None:
        """Reset the module to the template with the kept values in place."""
        with torch.no_grad():
            for name, entry in self.entries.items():
                entry.copy_(kept.get(name, self.template[name]))
        if self._scaler_start:
            # The loss scale of one client must not depend on who ran before.
            self.fabric.strategy.precision.load_state_dict(self._scaler_start)

    def isolated(self, job: Job) -> AbstractContextManager[None]:
        """Dropout can only draw from the default stream: lend it one of the client's own."""
        if not self.stochastic:
            return nullcontext()
        return scoped(derive(job.seed, "dropout"), self.module.device)


@dataclass
class Tally:
    """What the phases of one job add up to."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    steps: int = 0
    samples: int = 0

    def add(self, phase: str, terms: Terms, samples: int) -> None:
        """Count one step."""
        for name, term in terms.items():
            key = f"{phase}/{name}"
            value = term.detach()
            self.sums[key] = self.sums[key] + value if key in self.sums else value
            self.counts[key] += 1
        self.steps += 1
        self.samples += samples

    def means(self) -> dict[str, float]:
        """The mean of each term over its steps (one synchronisation)."""
        if not self.sums:
            return {}
        values = torch.stack([value.float() for value in self.sums.values()]).tolist()
        return {k: v / self.counts[k] for k, v in zip(self.sums, values, strict=True)}


def train(context: Context, job: Job) -> Result:
    """Run one client's round.

    Raises:
        TypeError: The module's optimiser configuration is not a single optimiser.
    """
    module, info = context.module, job.info
    tally = Tally()
    with context.isolated(job):
        context.load(job.kept)
        if job.broadcast is not None:
            with torch.no_grad():
                module.receive(job.broadcast, info)
        optimisers = run_plan(context, job, module.plan(), tally)
    with torch.no_grad():
        upload = module.upload(info)
    kept = clone({name: context.entries[name] for name in module.kept_names()}) | optimisers
    means = tally.means()
    sound = finite(kept) and all(v - v == 0 for v in means.values())
    if upload is not None:
        # What a method sends besides its weights is for its own server to judge.
        sound = sound and finite(upload.shared)
    return Result(
        client=info.client,
        upload=upload,
        kept=kept,
        train=means,
        steps=tally.steps,
        samples=tally.samples,
        scores=evaluate(context, info.client, job.splits),
        finite=sound,
    )


def test(context: Context, job: Job) -> Scores:
    """Test one client's personalised model, or the global one, on the job's splits."""
    module = context.module
    with context.isolated(job):
        context.load(job.kept)
        if job.broadcast is not None and job.model == "global":
            with torch.no_grad():
                module.generalise(job.broadcast)
        elif job.broadcast is not None:
            with torch.no_grad():
                module.personalise(job.broadcast, job.info)
            run_plan(context, job, module.adapt(), Tally())
    return evaluate(context, job.info.client, job.splits)


def evaluate(context: Context, client: int, splits: tuple[Split, ...]) -> Scores:
    """Scores of the module as it stands; a split without samples is left out."""
    module, data = context.module, context.data
    module.eval()
    found: dict[Split, Tensor] = {}
    for name in splits:
        split = data.pooled_test() if name == "pooled" else data.split(client, name)
        if split is None or len(split) == 0:
            continue
        logits, labels = [], []
        with torch.inference_mode():
            for positions in _chunks(len(split), data.eval_batch_size):
                with context.fabric.autocast():
                    batch = split.batch(positions)
                    logits.append(module(batch.x))
                labels.append(batch.y)
            found[name] = metrics.scores(torch.cat(logits), torch.cat(labels))
    values = torch.stack(list(found.values())).tolist() if found else []
    return {
        name: dict(zip(metrics.NAMES, row, strict=True))
        for name, row in zip(found, values, strict=True)
    }


def run_plan(context: Context, job: Job, plan: Plan, tally: Tally) -> State:
    """Run phases and passes in order; returns optimiser state that is to be kept."""
    kept: State = {}
    split = context.data.split(job.info.client, "train")
    for part in plan:
        if isinstance(part, Phase):
            kept |= run_phase(context, job, part, split, tally)
        else:
            run_pass(context, part, split)
    return kept


def run_pass(context: Context, part: Pass, split: ClientSplit) -> None:
    """Walk once over the data, add up the statistic, and write what ``then`` makes of it."""
    module, totals = context.module, dict[str, Tensor]()
    module.eval()
    if part.statistic is not None:
        size = part.batch_size or context.data.batch_size
        for positions in _chunks(len(split), size):
            with context.fabric.autocast():
                sums = part.statistic(split.batch(positions))
            for name, value in sums.items():
                value = value.detach()
                totals[name] = totals[name] + value if name in totals else value
        if not totals:
            return
    with torch.no_grad():
        for name, value in part.then(totals).items():
            context.entries[name].copy_(value)


def run_phase(context: Context, job: Job, phase: Phase, split: ClientSplit, tally: Tally) -> State:
    """Train for one phase; returns the optimiser state if the module keeps it."""
    module, fabric = context.module, context.fabric
    if len(split) == 0 or (phase.epochs if phase.steps is None else phase.steps) == 0:
        return {}
    fetch = _fetcher(context, job, phase, split)
    trained = _prepare(context, phase)
    optimizer = _optimizer(module, phase, job, trained)
    wrapped = cast(Optimizer, fabric.setup_optimizers(optimizer))
    step = _step(module, phase)
    module.on_train_start()
    for epoch, index, last, positions in _steps(context, job, phase, len(split)):
        if index == 0:
            module.on_train_epoch_start()
        with fabric.autocast():
            batch = fetch(positions)
            module.on_train_batch_start(batch, index)
            terms = step(batch, index)
        loss = terms.pop("loss")
        module.on_before_zero_grad(optimizer)
        module.optimizer_zero_grad(epoch, index, optimizer)
        module.on_before_backward(loss)
        fabric.backward(loss)
        module.on_after_backward()
        module.on_before_optimizer_step(optimizer)
        if context.gradient_clip_val is not None:
            module.configure_gradient_clipping(wrapped, context.gradient_clip_val, "norm")
        module.optimizer_step(epoch, index, wrapped)
        module.on_train_batch_end({"loss": loss.detach()}, batch, index)
        tally.add(phase.name, terms or {"loss": loss}, len(positions))
        if last:
            module.on_train_epoch_end()
    module.on_train_end()
    optimizer.zero_grad(set_to_none=True)
    return _optimizer_state(phase, optimizer, trained) if module.persist_optimizer else {}


def _step(module: ClientModule, phase: Phase) -> Callable[[Batch, int], Terms]:
    """The phase's objective in the form of a training step: named terms and their ``loss``.

    A training step of a user may give a bare loss, as Lightning allows.
    """
    objective = phase.objective

    def step(batch: Batch, index: int) -> Terms:
        if objective is not None:
            terms = objective(batch)
            return {"loss": total(terms), **terms}
        output = module.training_step(batch, index)
        return dict(output) if isinstance(output, Mapping) else {"loss": output}

    return step


def _prepare(context: Context, phase: Phase) -> dict[str, nn.Parameter]:
    """Set modes and gradients for a phase; returns the parameters it trains."""
    module = context.module
    module.train()
    for name, child in module.named_modules():
        if phase.evals and matches(name, phase.evals):
            child.eval()
    trained = {}
    for name, parameter in module.named_parameters():
        active = name in context.trainable and matches(name, phase.trains)
        parameter.requires_grad_(active)
        if active:
            trained[name] = parameter
    return trained


def _optimizer(
    module: ClientModule, phase: Phase, job: Job, trained: Mapping[str, nn.Parameter]
) -> Optimizer:
    if phase.optimizer is not None:
        optimizer = phase.optimizer(trained.values())
    else:
        optimizer = module.configure_optimizers()
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{type(module).__name__}.configure_optimizers returned "
            f"{type(optimizer).__name__}; a client's phase needs exactly one torch Optimizer "
            "(rates that change over the rounds belong into lr_factor)"
        )
    factor = module.lr_factor(job.info)
    for group in optimizer.param_groups:
        group["lr"] *= factor
    for name, parameter in trained.items():
        stem = f"optimizer:{phase.name}:{name}:"
        state = {k[len(stem) :]: v for k, v in job.kept.items() if k.startswith(stem)}
        if state:
            optimizer.state[parameter] = clone(state)
    return optimizer


def _optimizer_state(
    phase: Phase, optimizer: Optimizer, trained: Mapping[str, nn.Parameter]
) -> State:
    return {
        f"optimizer:{phase.name}:{name}:{key}": torch.as_tensor(value).detach().clone()
        for name, parameter in trained.items()
        for key, value in optimizer.state[parameter].items()
        if value is not None
    }


def _steps(
    context: Context, job: Job, phase: Phase, samples: int
) -> Iterator[tuple[int, int, bool, Tensor]]:
    """(epoch, index in the epoch, last of the epoch, positions) of every step of a phase."""
    size = samples if phase.full_batch else phase.batch_size or context.data.batch_size
    epoch = taken = 0
    while taken < phase.steps if phase.steps is not None else epoch < phase.epochs:
        if phase.shuffle and not phase.full_batch:
            rng = generator(job.seed, "order", phase.name, epoch)
            order = torch.randperm(samples, generator=rng)
        else:
            order = torch.arange(samples)
        batches = list(torch.split(order, size))
        short = len(batches[-1])
        # A batch norm in train mode cannot use a batch of one sample.
        lonely = short == 1 and size > 1 and context.normalised
        if len(batches) > 1 and short < size and (context.data.drop_last or lonely):
            batches.pop()
        for index, positions in enumerate(batches):
            if phase.steps is not None and taken == phase.steps:
                return
            yield epoch, index, index == len(batches) - 1, positions
            taken += 1
        epoch += 1


def _fetcher(
    context: Context, job: Job, phase: Phase, split: ClientSplit
) -> Callable[[Tensor], Batch]:
    """Makes batches as the phase sees them: with constant inputs applied, and with noise."""
    augment = generator(job.seed, "augment", phase.name) if split.augmented else None
    noise_rng = generator(job.seed, "noise", phase.name)
    inputs = phase.inputs
    cache = None
    if inputs is not None and not split.augmented:
        cache = _outputs(context, inputs, split)

    def fetch(positions: Tensor) -> Batch:
        if cache is not None:
            index = positions.to(cache.x.device)
            batch = Batch(cache.x[index], cache.y[index])
        else:
            batch = split.batch(positions, augment)
            if inputs is not None:
                with torch.no_grad():
                    batch = batch._replace(x=inputs(batch))
        if phase.noise:
            draws = {
                name: torch.randn(shape, generator=noise_rng).to(batch.x.device)
                for name, shape in phase.noise.items()
            }
            batch = batch._replace(noise=draws)
        return batch

    return fetch


def _outputs(context: Context, inputs: Callable[[Batch], Tensor], split: ClientSplit) -> Batch:
    """The constant map of all samples, in eval mode."""
    context.module.eval()
    xs, ys = [], []
    with torch.no_grad():
        for positions in _chunks(len(split), context.data.eval_batch_size):
            with context.fabric.autocast():
                batch = split.batch(positions)
                xs.append(inputs(batch))
            ys.append(batch.y)
    return Batch(torch.cat(xs), torch.cat(ys))


def _chunks(samples: int, size: int) -> Sequence[Tensor]:
    """Positions 0 to ``samples - 1`` in stored order, ``size`` at a time."""
    return torch.split(torch.arange(samples), size)
