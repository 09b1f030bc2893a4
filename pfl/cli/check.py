"""``pfl check``: print for each promise whether it is kept, broken or not checked."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from jsonargparse import Namespace
from torch import nn

from pfl.cli import catalogue
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import UsageError, explained
from pfl.cli.imported import Imported
from pfl.cli.parser import Parser, from_data
from pfl.cli.reading import Reading
from pfl.core.checks import ranges
from pfl.core.client import ClientModule
from pfl.core.foreign import trains_itself
from pfl.core.judging import TaskError
from pfl.core.seeds import scoped
from pfl.core.task import Task
from pfl.testing.contract import PROMISES
from pfl.testing.promise import BrokenPromiseError, RaisedError, Subject, lacking, suited
from pfl.testing.tasks import check_alone
from pfl.testing.toy import mlp


class _MethodParser(Parser):
    """A parser that does not require a method's network."""

    command = "check"

    def filled(self, target: Any) -> Mapping[str, tuple[Any, str]]:  # noqa: ANN401
        """Return type and help of the arguments that are filled in later: a method's network."""
        is_method = inspect.isclass(target) and issubclass(target, ClientModule)
        net = {"net": (nn.Module, "(replaced by a small one)")} if is_method else {}
        return {**super().filled(target), **net}


def check(reading: Reading) -> None:
    """Check every promise of a method, or those of a task.

    Raises:
        UsageError: The method cannot be built.
        SystemExit: The method breaks a promise.
    """
    if [item.keys for item in reading.settings] == [("model", "class_path")]:
        path = str(reading.settings[0].text)
        made = _found(path)
        if inspect.isclass(made) and issubclass(made, Task):
            _check_task(made)
            return
        subject = _subject(made, path)
    else:
        subject = _configured(reading)
    name = subject.method.__name__
    findings: dict[str, str] = {}
    for promise in PROMISES:
        try:
            mark, finding = "kept" if promise.hold(subject) else "-", ""
        except BrokenPromiseError as error:
            if promise is PROMISES[0]:
                raise UsageError(f"{name} cannot be built: {error.finding}") from error
            # An error that occurred before is not this promise's.
            known = error.finding in findings
            mark = "RAISES" if isinstance(error, RaisedError) else "BROKEN"
            mark, finding = ("?", "") if known else (mark, f": {error.finding}")
            findings.setdefault(error.finding, mark)
        print(f"{mark:<8}{promise.sentence}{finding}", flush=True)
    if findings:
        broken = [*findings.values()].count("BROKEN")
        raised = len(findings) - broken
        errors = f" and raises {raised} error{'s' * (raised > 1)}" if raised else ""
        print(
            f"{name} breaks {broken} of {len(PROMISES)} promises{errors} (-: does not apply, "
            "?: could not be checked)"
        )
        raise SystemExit(1)
    print(f"{name} keeps its promises")


def _check_task(kind: type[Task]) -> None:
    """Check a task without options.

    Raises:
        UsageError: It cannot be built.
        SystemExit: It breaks a promise.
    """
    try:
        task = kind()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{kind.__name__} cannot be built without options: {error}") from error
    try:
        form = check_alone(task)
    except TaskError as error:
        print(f"BROKEN  {error}")
        raise SystemExit(1) from None
    print(f"{task} keeps its promises, tried on {form}")


def _found(path: str) -> Any:  # noqa: ANN401
    """Find a method or a task by its class name; type annotations are not needed."""
    catalogue.load()
    try:
        return Imported().find(path, ClientModule | Task)
    except LookupError as error:
        raise UsageError(str(error)) from error


def _subject(method: Any, path: str) -> Subject:  # noqa: ANN401
    if not (inspect.isclass(method) and issubclass(method, ClientModule)):
        raise UsageError(
            f"{path} is not a method: it is not a subclass of lightning_modules.ClientModule"
            " (nor a task, a subclass of pfl.core.task.Task)"
        )
    return Subject(method)


def _configured(reading: Reading) -> Subject:
    """Return a method built with the arguments of a configuration, on its network made small."""
    experiment = Experiment.of(reading, _MethodParser)
    model: Namespace = experiment.values.model
    method = catalogue.find(model.class_path)

    def made(net: nn.Module) -> tuple[partial[ClientModule], _Small]:
        small = _Small(method, net)
        with explained(experiment.settings, *REFUSALS, part="model"):
            small_nets = (small.make, nn.Module, True)
            return experiment.make(
                "model", model, [(_later, ClientModule, True), small_nets]
            ), small

    def build(net: nn.Module, **options: Any) -> ClientModule:
        waiting, small = made(net)
        return waiting(**{**options, "net": small.fitted(waiting.keywords.get("net"))})

    waiting, small = made(mlp())
    if (given := waiting.keywords.get("net")) is not None:
        print(f"on {type(small.fitted(given)).__name__}{small.told()}", flush=True)
    return Subject(method, build)


def _later(method: Callable[..., ClientModule], **options: Any) -> partial[ClientModule]:
    """Return what builds a method from its remaining arguments."""
    return partial(method, **options)


class _Small:
    """Makes the networks of a configuration small.

    A network that holds others, as ``LoRA`` does, holds small ones; in place of a network whose
    shape depends on the data stands the toy network. What cannot be made on it is left out.

    Args:
        method: The method.
        toy: The toy network.
    """

    def __init__(self, method: type[ClientModule], toy: nn.Module) -> None:
        self._method, self._toy = method, toy
        self._notes: dict[str, None] = {}

    def make(self, network: Callable[..., nn.Module], *args: Any, **options: Any) -> nn.Module:
        """Return a small network."""
        name = getattr(network, "__name__", str(network))
        if from_data(network):
            self._note(f"{type(self._toy).__name__} in place of {name}")
            return copy.deepcopy(self._toy)
        inner = [one for one in (*args, *options.values()) if isinstance(one, nn.Module)]
        try:
            return network(*args, **options)
        except (TypeError, ValueError) as error:
            limits = ranges(network) if inspect.isclass(network) else {}
            for one in limits.keys() & options.keys():
                limits[one].check(one, options[one])
            if len(inner) != 1:
                raise
            # Its patterns name layers that only the large network has.
            named = [one for one, value in options.items() if _are_words(value)]
            left = {one: value for one, value in options.items() if one not in named}
            made, gone = inner[0], name
            with suppress(TypeError, ValueError):
                if named:
                    made, gone = network(*args, **left), " and ".join(named)
            self._note(f"without {gone}, as {error}")
            return made

    def fitted(self, given: nn.Module | None) -> nn.Module:
        """Return the method's network: the given one, or the toy one if it takes other inputs."""
        if given is not None and not _takes_toys(given):
            self._note(f"{type(self._toy).__name__} in place of {type(given).__name__}")
            given = None
        plain = self._toy if given is None else given
        for need in lacking(self._method, plain):
            self._note(f"{self._method.__name__} {need.why}")
        return suited(self._method, plain)

    def told(self) -> str:
        """Return what differs from the configuration."""
        return f" ({'; '.join(self._notes)})" if self._notes else ""

    def _note(self, note: str) -> None:
        self._notes[note] = None


def _are_words(value: object) -> bool:
    """Return whether an argument is a list of texts, as patterns are."""
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def _takes_toys(net: nn.Module) -> bool:
    """Return ``True`` if a network gives the logits of three classes for the toy inputs."""
    if trains_itself(net):
        return False
    try:
        with torch.no_grad(), scoped(0):
            return tuple(copy.deepcopy(net).eval()(torch.zeros(2, 5)).shape) == (2, 3)
    except Exception:  # A network for other inputs may raise anything.
        return False
