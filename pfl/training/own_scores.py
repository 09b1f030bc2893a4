"""Scores of a LightningModule with steps of its own: what its test and validation steps log."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from pfl.core.client import ClientModule
from pfl.core.data import ClientSplit, CountedSplit, FederatedData, members
from pfl.core.data_view import Subset
from pfl.core.foreign import NeedError
from pfl.core.ranges import Range
from pfl.core.seeds import derive, everything_scoped
from pfl.core.types import Split
from pfl.training.lightning_loops import Alone, derived, in_order, make_trainer, overrides, ran
from pfl.training.metrics import Scorer

# The stages that people put before the names of what they log.
_STAGE = re.compile(r"^(train|val|valid|validation|test)[/_.-](?=.)", re.IGNORECASE)
# Words in names of scores of which less is better.
_LESS = {
    *("loss", "error", "err", "mse", "rmse", "nrmse", "mae", "mape", "smape", "huber", "pinball"),
    *("nll", "ce", "bce", "kl", "elbo", "ppl", "perplexity", "brier", "ece", "crps", "fid"),
    *("wer", "cer", "mer", "distance", "dist", "hd", "hd95", "hausdorff", "energy"),
}


class OwnScorer(Scorer):
    """Scores a model by what its own test step logs.

    Names lose the stage with which they begin: ``val_acc`` and ``test/acc`` are ``acc``. More is
    better if the logged object of torchmetrics says so; otherwise by the name (less of a loss or
    an error is better). The main score is what a scheduler monitors, or else the first that is
    logged. The attribute ``scores`` of the module says all of this itself, such as
    ``{"dice": True, "loss": False}``.

    Args:
        module: The method with its network.
        data: The federation's data.
        fabric: Device and precision.
    """

    scores_all = False

    def __init__(self, module: ClientModule, data: FederatedData, fabric: Fabric) -> None:
        self._module, self._data, self._fabric = module, data, fabric
        self.task, self.added = data.task, ()
        self._metrics, self._asked, self._reasons = {}, set(), {}

    @cached_property
    def better(self) -> Mapping[str, bool]:  # type: ignore[override]
        """The names of the scores, the main score first; ``True`` if more is better."""
        net = cast(Any, self._module.tested_net)
        declared = getattr(net, "scores", None)
        found = declared if _names_scores(declared) else self._logged()
        if not found:
            warnings.warn(
                f"{type(net).__name__} logs no number in a test_step or a validation_step, so its "
                "models are not tested",
                stacklevel=2,
            )
        return {**found} if found else {"loss": False}

    @cached_property
    def within(self) -> Mapping[str, Range]:  # type: ignore[override]
        """The range of each score, which only the module knows."""
        return {name: Range("(-inf, inf)") for name in self.better}

    @property
    def _partial(self) -> set[str]:  # type: ignore[override]
        return {*list(self.better)[1:]}

    def scores(self, models: Sequence[Any]) -> list[dict[str, float]]:
        """Return the scores of models, which :meth:`measure` has taken already."""
        return list(models)

    def measure(self, splits: Mapping[Split, ClientSplit]) -> dict[Split, Any]:
        """Return the scores of the module as it is, on each of some splits that have samples."""
        net, found = self._module.tested_net, dict[Split, Any]()
        for name, split in splits.items():
            with everything_scoped(derive(0, "test", name), self._fabric.device):
                if scores := _tested(net, self._data, self._fabric, split, name == "val"):
                    found[name] = scores
        return found

    def _logged(self) -> dict[str, bool]:
        """Return what is logged on two samples of the first client that has some, on a copy."""
        splits = (
            self._data.split(c, n) for n in ("test", "val", "train") for c in members(self._data)
        )
        here = (one for one in splits if len(one) and not isinstance(one, CountedSplit))
        if (split := next(here, None)) is None:
            name = type(self._module.tested_net).__name__
            raise NeedError(
                f"there is no sample here on which to see what {name} logs: let the module say it, "
                'as scores = {"acc": True, "loss": False}, the main score first'
            )
        net = copy.deepcopy(self._module.tested_net)
        probe = _Probe(net)
        few = Subset(split, torch.arange(min(2, len(split))))
        with everything_scoped(0, self._fabric.device):
            _tested(net, self._data, self._fabric, few, False, probe)
        main = [name for name in probe.monitored if name in probe.better]
        return {name: probe.better[name] for name in [*main, *probe.better]}


class _Probe:
    """A callback that notes what a module logs, and what its schedulers monitor."""

    def __init__(self, net: nn.Module) -> None:
        self.better: dict[str, bool] = {}
        self.monitored: list[str] = []
        self._log = cast(Any, net).log
        vars(net)["log"] = self._note

    def _note(self, name: str, value: Any, *others: Any, **options: Any) -> None:  # noqa: ANN401
        more = getattr(value, "higher_is_better", None)
        if not isinstance(value, Tensor) and more is not None:
            self.better.setdefault(plain_name(name), bool(more))
        else:
            self.better.setdefault(plain_name(name), not _is_loss(name))
        self._log(name, value, *others, **options)

    def on_test_start(self, trainer: Any, net: Any) -> None:  # noqa: ANN401
        """Ask what schedulers monitor, where that is known without training."""
        with Alone().held(), suppress(Exception):
            self.monitored = [*map(plain_name, _monitors(net.configure_optimizers()))]

    on_validation_start = on_test_start


def plain_name(name: str) -> str:
    """Return the name of a score without the stage before it.

    Example:
        >>> plain_name("val/acc"), plain_name("test_loss"), plain_name("testimony")
        ('acc', 'loss', 'testimony')
    """
    return _STAGE.sub("", name)


def _is_loss(name: str) -> bool:
    words = re.split("[^a-z0-9]+", name.lower())
    return any(word in _LESS or word.endswith(("loss", "error")) for word in words)


def _names_scores(declared: object) -> bool:
    """Return ``True`` for names of scores, each with whether more is better."""
    values = [*declared.values()] if isinstance(declared, Mapping) else []
    return bool(values) and all(isinstance(value, bool) for value in values)


def _monitors(value: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield what the schedulers in a module's optimiser configuration monitor."""
    if isinstance(value, Mapping):
        if isinstance(name := value.get("monitor"), str):
            yield name
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for one in value:
            yield from _monitors(one)


def _tested(
    net: nn.Module,
    data: FederatedData,
    fabric: Fabric,
    split: ClientSplit,
    validates: bool,
    probe: _Probe | None = None,
) -> dict[str, float]:
    """Run a module's test or validation step on a split; return what it logs."""
    verbs = {"validate": "validation_step", "test": "test_step"}
    order = [*verbs] if validates else [*reversed(verbs)]
    verb = next((verb for verb in order if overrides(net, verbs[verb])), None)
    if verb is None:
        return {}
    callbacks = [] if probe is None else [derived("Callback", probe, net)]
    trainer = make_trainer(net, fabric, callbacks=callbacks)
    modes = [(child, child.training) for child in net.modules()]
    logged = ran(
        getattr(trainer, verb), net, data, fabric, in_order(data, fabric, split), verbose=False
    )
    for child, mode in modes:
        child.training = mode
    numbers = {name: float(value) for one in logged for name, value in one.items()}
    short = {plain_name(name): value for name, value in numbers.items()}
    return short if len(short) == len(numbers) else numbers
