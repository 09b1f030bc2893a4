"""Promises about a method as a module: how it is built and trains alone, and what it declares."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pfl.core.checks import ranges, words
from pfl.core.client import ClientModule
from pfl.core.seeds import scoped
from pfl.core.state import clone, matches, named
from pfl.core.types import Batch, Plan
from pfl.testing.compare import difference
from pfl.testing.federation import ToyFederation, second_round
from pfl.testing.promise import BrokenPromiseError, Subject, promise
from pfl.testing.toy import ToyData
from pfl.training import client_round
from pfl.training.declaration import declared

RATES = (0.05, 0.0005)


@promise("it can be built on a split network and returns logits")
def builds(subject: Subject) -> None:
    """Compute the logits of two inputs."""
    module = subject.module()
    if not isinstance(module, ClientModule):
        raise BrokenPromiseError(f"{type(module).__name__} is not a lightning_modules.ClientModule")
    with torch.no_grad(), scoped(0):
        shape = tuple(module.eval()(torch.zeros(2, 5)).shape)
    if shape != (2, 3):
        raise BrokenPromiseError(
            f"two inputs and three classes should give logits of shape (2, 3), got {shape}"
        )


@promise("an unknown argument is refused by name")
def refuses_unknown_arguments(subject: Subject) -> None:
    """Pass a misspelt argument."""
    try:
        subject.module(epoch_count=3)
    except TypeError as error:
        if "epoch_count" in str(error):
            return
        raise
    raise BrokenPromiseError("epoch_count=3 is accepted")


@promise("an unknown word and a number out of its range are refused by name")
def refuses_wrong_values(subject: Subject) -> None:
    """Pass an unknown word, or NaN, to every argument that declares its words or its range."""
    wrong: dict[str, Any] = {**dict.fromkeys(words(subject.method), "so")}
    wrong |= dict.fromkeys(ranges(subject.method), math.nan)
    for name, value in wrong.items():
        try:
            subject.module(**{name: value})
        except ValueError as error:
            if name in str(error) and str(value) in str(error):
                continue
            raise
        raise BrokenPromiseError(f"{name}={value!r} is accepted")


@promise("every pattern matches an entry, and what is kept is used")
def patterns_match(subject: Subject) -> None:
    """Compare the patterns with the names of the entries; change what is shared and kept."""
    module = subject.module()
    entries = module.state_dict()
    for declaration in ("shared", "kept"):
        for pattern in getattr(module, declaration):
            if not any(matches(name, (pattern,)) for name in entries):
                raise BrokenPromiseError(
                    f"the pattern {pattern!r} of {declaration} matches none of the entries "
                    f"{', '.join(entries)}"
                )
    for name in sorted({*module.shared_names()} & {*module.kept_names()}):
        _makes_a_difference(subject, name)


def _makes_a_difference(subject: Subject, name: str) -> None:
    """Run and test a client again, with another kept value of an entry that travels too."""
    federation, (job, *_) = second_round(subject.module())
    results = []
    for shift in (0, 1):
        other = replace(job, kept={**job.kept, name: job.kept[name] + shift})
        client_round.become_tested(federation.context, other)
        tested = clone(federation.context.entries)
        results.append(named([tested, client_round.train(federation.context, other)]))
    if difference(*results) is None:
        raise BrokenPromiseError(
            f"the entry {name!r} is both shared and kept, but the kept value changes nothing: "
            "receive and personalise replace it"
        )


@promise("it trains under a plain Trainer, and its loss falls")
def fits_without_federation(subject: Subject) -> None:
    """Train for fifteen epochs on the samples of one client; one of two learning rates must do."""
    for rate in RATES:
        module = subject.module(optimizer=partial(torch.optim.SGD, lr=rate))
        before, after = _fit(module, subject.data())
        if after < before:
            return
    raise BrokenPromiseError(
        f"the loss was {before:.4g} and is {after:.4g} after 15 epochs of SGD with lr={rate}"
    )


def _fit(module: ClientModule, data: ToyData) -> tuple[float, float]:
    """Return the loss before and after training."""
    split = data.split(0, "train")
    trainer = L.Trainer(
        max_epochs=15,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # Outside a federation, a variational layer draws its noise from the default stream.
    with scoped(0):
        before = _loss(module, split.x, split.targets)
        trainer.fit(module, DataLoader(TensorDataset(split.x, split.targets), batch_size=4))
        return before, _loss(module, split.x, split.targets)


def _loss(module: ClientModule, x: Tensor, y: Tensor) -> float:
    """Return the module's own objective, averaged over draws in case it is random."""
    module.eval()
    # A Trainer accepts logged values only while it fits.
    module.collect_logged(True)
    steps: list[Any] = [module.training_step(Batch(x, y), 0) for _ in range(8)]
    module.collect_logged(False)
    # A Trainer takes the loss itself too.
    losses = [float(step["loss"] if isinstance(step, dict) else step) for step in steps]
    return sum(losses) / len(losses)


@promise("plan and adapt are declarations: they read no values and are the same for every client")
def plans_are_declarations(subject: Subject) -> None:
    """Call both with entries without values, before and after running clients."""
    federation = ToyFederation(subject.module())
    context = federation.context
    before: dict[Literal["plan", "adapt"], list[dict[str, object]]] = {
        "plan": _outline(context.plan),
        "adapt": _outline(context.adapt),
    }
    for job in federation.jobs():
        client_round.train(context, job)
        client_round.test(context, job)
        for verb, plan in before.items():
            if _outline(declared(context.module, verb)) != plan:
                raise BrokenPromiseError(
                    f"{verb}() declares something else after client {job.info.client} than before"
                )


def _outline(plan: Plan) -> list[dict[str, object]]:
    """Return the comparable parts of a plan: everything except functions."""
    return [
        {name: "a function" if callable(value) else value for name, value in vars(part).items()}
        for part in plan
    ]
