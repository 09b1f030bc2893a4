"""``pfl check``: one line for each promise, kept or broken."""

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
    """A parser that does not require a method's network."""

    def add_class_arguments(
        self, class_type: type, nested_key: str | None = None, *args: Any, **options: Any
    ) -> list[str]:
        """Add a class's arguments; a method's ``net`` becomes optional."""
        if not (inspect.isclass(class_type) and issubclass(class_type, Client)):
            return super().add_class_arguments(class_type, nested_key, *args, **options)
        options["skip"] = {*(options.get("skip") or ()), "net"}
        added = super().add_class_arguments(class_type, nested_key, *args, **options)
        key = f"{nested_key}.net" if nested_key else "net"
        self.add_argument(f"--{key}", type=nn.Module | None, help="(replaced by a small one)")
        return [*added, key]


def check(argv: Sequence[str]) -> None:
    """Check that a method keeps every promise.

    Raises:
        UsageError: The method cannot be built.
        SystemExit: The method breaks a promise.
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
            # An error seen before says nothing about this promise.
            known = error.finding in findings
            mark, finding = ("?", "") if known else ("BROKEN", f": {error.finding}")
            findings.add(error.finding)
        print(f"{mark:<8}{promise.sentence}{finding}", flush=True)
    if findings:
        print(
            f"{name} breaks {len(findings)} of {len(PROMISES)} promises (-: does not apply, "
            "?: could not be checked)"
        )
        raise SystemExit(1)
    print(f"{name} keeps its promises")


def _named(path: str) -> Subject:
    """Find a method by its class name; its arguments need no type annotations."""
    catalogue.load()
    catalogue.see_working_folder()
    method = named_class(path)
    if method is None or not issubclass(method, Client):
        raise UsageError(
            f"{path} is not a method: it is not a subclass of lightning_modules.ClientModule"
        )
    return Subject(method)


def _configured(argv: Sequence[str]) -> Subject:
    """Return a method built with the arguments of a configuration."""
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
    """Return a function that builds a method once it is given the remaining arguments."""
    return lambda **more: kind(**{**given, **more})


def _small(kind: Callable[..., nn.Module], *args: Any, **given: Any) -> nn.Module:
    """Return a small network in place of one shaped by the data, and any other module as it is."""
    return mlp() if from_data(kind) else kind(*args, **given)
