"""``pfl check``: a line for each promise, kept or broken."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from jsonargparse import Namespace
from torch import nn

from pfl.cli import catalogue
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import UsageError, explained, named_class
from pfl.cli.parser import Parser, from_data, make_parser
from pfl.core.client import Client
from pfl.testing.contract import PROMISES
from pfl.testing.promise import BrokenPromiseError, Subject
from pfl.testing.toy import mlp


class _Parser(Parser):
    """A parser that does not ask for the network of a method."""

    def add_class_arguments(
        self, class_type: type, nested_key: str | None = None, *args: Any, **options: Any
    ) -> list[str]:
        """Add a class's arguments; that of a method's network becomes optional."""
        if not (inspect.isclass(class_type) and issubclass(class_type, Client)):
            return super().add_class_arguments(class_type, nested_key, *args, **options)
        options["skip"] = {*(options.get("skip") or ()), "net"}
        added = super().add_class_arguments(class_type, nested_key, *args, **options)
        key = f"{nested_key}.net" if nested_key else "net"
        self.add_argument(f"--{key}", type=nn.Module | None, help="(replaced by a small one)")
        return [*added, key]


def check(argv: Sequence[str]) -> None:
    """Hold a method to every promise.

    Raises:
        UsageError: It cannot be built.
        SystemExit: It breaks a promise.
    """
    if argv and not argv[0].startswith("-"):
        subject = _named(argv[0]) if len(argv) == 1 else _configured(["--model.class_path", *argv])
    else:
        subject = _configured(argv)
    name = subject.method.__name__
    findings: set[str] = set()
    for promise in PROMISES:
        try:
            mark, finding = "kept" if promise.hold(subject) else "-", ""
        except BrokenPromiseError as error:
            if promise is PROMISES[0]:
                raise UsageError(f"{name} cannot be built: {error.finding}") from error
            # The same error again says nothing of this promise.
            known = error.finding in findings
            mark, finding = ("?", "") if known else ("BROKEN", f": {error.finding}")
            findings.add(error.finding)
        print(f"{mark:<8}{promise.sentence}{finding}", flush=True)
    if findings:
        print(
            f"{name} breaks {len(findings)} of {len(PROMISES)} promises (-: says nothing of it, "
            "?: could not be examined)"
        )
        raise SystemExit(1)
    print(f"{name} keeps its promises")


def _named(path: str) -> Subject:
    """Find a method by its class name; its signature needs no types."""
    catalogue.load()
    catalogue.see_working_folder()
    method = named_class(path)
    if method is None or not issubclass(method, Client):
        raise UsageError(f"{path} is no method: no subclass of lightning_modules.ClientModule")
    return Subject(method)


def _configured(argv: Sequence[str]) -> Subject:
    """Return a method with the arguments of a configuration."""
    experiment = Experiment.parse(make_parser("check", _Parser), argv)
    model: Namespace = experiment.values.model

    def build(net: nn.Module, **options: Any) -> Client:
        with explained(experiment.given, *REFUSALS, part="model"):
            made = experiment.make(
                "model", model, [(_later, Client, True), (_small, nn.Module, True)]
            )
        client: Client = made(**{"net": net, **options})
        return client

    return Subject(catalogue.find(model.class_path), build)


def _later(kind: Callable[..., Client], **given: Any) -> Callable[..., Client]:
    """Return a method that still lacks its network, with the arguments of a configuration."""
    return lambda **more: kind(**{**given, **more})


def _small(kind: Callable[..., nn.Module], *args: Any, **given: Any) -> nn.Module:
    """Return a small network for one that the data would shape, any other module as it is."""
    return mlp() if from_data(kind) else kind(*args, **given)
