"""``pfl check``: print for each promise whether it is kept, broken or not checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jsonargparse import Namespace
from torch import nn

from pfl.cli import catalogue
from pfl.cli.commands import commands
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import UsageError, explained
from pfl.cli.imported import Imported
from pfl.cli.parser import Parser, from_data, make_parser
from pfl.core.client import ClientModule
from pfl.testing.contract import PROMISES
from pfl.testing.promise import BrokenPromiseError, RaisedError, Subject
from pfl.testing.toy import mlp


class _MethodParser(Parser):
    """A parser that does not require a method's network."""

    command = "check"

    def filled(self, target: Any) -> Mapping[str, tuple[Any, str]]:  # noqa: ANN401
        """Return type and help of the arguments that are filled in later: a method's network."""
        is_method = inspect.isclass(target) and issubclass(target, ClientModule)
        net = {"net": (nn.Module, "(replaced by a small one)")} if is_method else {}
        return {**super().filled(target), **net}


def check(argv: Sequence[str]) -> None:
    """Check every promise of a method.

    Raises:
        UsageError: The method cannot be built.
        SystemExit: The method breaks a promise.
    """
    words = commands()["check"].words(argv)
    subject = _named(argv[0]) if len(argv) == 1 < len(words) else _configured(words)
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


def _named(path: str) -> Subject:
    """Find a method by its class name; type annotations are not needed."""
    catalogue.load()
    try:
        method = Imported().find(path, ClientModule)
    except LookupError as error:
        raise UsageError(str(error)) from error
    if not (inspect.isclass(method) and issubclass(method, ClientModule)):
        raise UsageError(
            f"{path} is not a method: it is not a subclass of lightning_modules.ClientModule"
        )
    return Subject(method)


def _configured(argv: Sequence[str]) -> Subject:
    """Return a method built with the arguments of a configuration."""
    experiment = Experiment.parse(make_parser("check", _MethodParser), argv)
    model: Namespace = experiment.values.model

    def build(net: nn.Module, **options: Any) -> ClientModule:
        with explained(experiment.settings, *REFUSALS, part="model"):
            made = experiment.make(
                "model", model, [(_later, ClientModule, True), (_small, nn.Module, True)]
            )
        client: ClientModule = made(**{"net": net, **options})
        return client

    return Subject(catalogue.find(model.class_path), build)


def _later(method: Callable[..., ClientModule], **options: Any) -> Callable[..., ClientModule]:
    """Return a function that builds a method from its remaining arguments."""
    return lambda **more: method(**{**options, **more})


def _small(network: Callable[..., nn.Module], *args: Any, **options: Any) -> nn.Module:
    """Return a small network if its shape depends on the data, and any other module unchanged."""
    return mlp() if from_data(network) else network(*args, **options)
