"""The guard of a site: it admits what the owner allows, and makes the site for a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pfl.core.types import Job
from pfl.disk.container import ContainerError
from pfl.disk.reading import FileError, mapping_of_yaml
from pfl.disk.writing import written
from pfl.engines.transport import wire
from pfl.engines.transport.clients import Refusal
from pfl.extras.sites.relay import Header
from pfl.extras.sites.site import Site
from pfl.training.context import Context

MEGABYTE = 10**6


class Budget(Protocol):
    """What may be learnt of single samples, over all runs; it comes from the extra of privacy."""

    def check(self, run: Mapping[str, Any]) -> None:
        """Refuse a run that does not say that it keeps single samples private.

        Raises:
            Refusal: It does not.
        """

    def charge(self, context: Context, job: Job) -> None:
        """Write down the steps of a job that is about to train.

        Raises:
            Refusal: They do not keep samples private, or exceed the budget.
        """


@dataclass(frozen=True)
class Allowed:
    """What the owner of a site allows a server.

    Attributes:
        methods: The methods that may train, by the names of their classes.
        upload_megabytes: Largest size of an answer; ``None`` for any.
        class_counts: Whether the server may know how many samples of each class there are.
        scores: Whether the server may know losses and scores.
        most_rounds: The last round that the site takes part in; ``None`` for any.
        budget: What may be learnt of single samples; ``None`` does not keep them private.
    """

    methods: tuple[str, ...]
    upload_megabytes: float | None = None
    class_counts: bool = False
    scores: bool = True
    most_rounds: int | None = None
    budget: Budget | None = None


class Host:
    """Answers for a site, which is made when a server says hello.

    Args:
        client: Number of the client, as the server counts.
        local: Number of the client in the owner's data.
        folder: Where kept states lie, and the last hello.
        allowed: What the owner allows.
        build: Makes the context of a run, of its configuration.
        tell: Called with a line of what happens, for the owner.
        tested: See :class:`~pfl.extras.sites.site.Site`.
    """

    def __init__(
        self,
        client: int,
        local: int,
        folder: Path,
        allowed: Allowed,
        build: Callable[[dict[str, Any]], Context],
        tell: Callable[[str], None],
        tested: Callable[[Context], None] = lambda _: None,
    ) -> None:
        self._client, self._local, self._folder = client, local, folder
        self._allowed, self._build, self._tell, self._tested = allowed, build, tell, tested
        self._greeting = folder / "hello"
        self._config: str | None = None
        self._site: Site | None = None
        self._lock = threading.Lock()

    def answer(self, header: Header, content: bytes) -> bytes:
        """Return the answer to a message; ``who`` asks for the client's number."""
        verb = str(header.get("verb"))
        if verb == "who":
            return str(self._client).encode()
        with self._lock:
            try:
                reply = self._hello(content) if verb == "hello" else self._work(verb, content)
            except (Refusal, ContainerError) as error:
                self._tell(f"refused {verb}: {error}")
                return wire.written("error", wire.Failure("refused", str(error)))
        return reply

    def close(self) -> None:
        """Release the site's folder."""
        if self._site is not None:
            self._site.close()
        self._site = None

    def _hello(self, content: bytes) -> bytes:
        hello, _ = wire.asked("hello", wire.Hello, content)
        if self._site is None or hello.config != self._config:
            self.close()
            run = _read(hello.config)
            name, budget = self._check(run), self._allowed.budget
            self._site = Site(
                self._build(run),
                self._client,
                self._folder,
                local=self._local,
                counts=self._allowed.class_counts,
                scores=self._allowed.scores,
                tested=self._tested,
                charge=None if budget is None else budget.charge,
                tell=self._tell,
            )
            self._config = hello.config
            with written(self._greeting) as file:
                file.write(content)
            self._tell(f"a server asks for {name}, {run['loop'].get('rounds')} rounds")
        return self._site.answer("hello", content)

    def _check(self, run: dict[str, Any]) -> str:
        """Return the name of a run's method, if the owner allows the run."""
        name = str(run["model"].get("class_path")).rpartition(".")[2]
        if name not in self._allowed.methods:
            allowed = ", ".join(self._allowed.methods)
            raise Refusal(f"the owner allows {allowed}, but the run is of {name}")
        most, rounds = self._allowed.most_rounds, run["loop"].get("rounds")
        if most is not None and not (isinstance(rounds, int) and rounds <= most):
            raise Refusal(f"the owner allows {most} rounds, but the run has {rounds}")
        if self._allowed.budget is not None:
            self._allowed.budget.check(run)
        return name

    def _work(self, verb: str, content: bytes) -> bytes:
        if self._site is None and verb == "bye":
            return wire.written("bye", wire.Empty())
        if self._site is None and self._greeting.is_file():
            # This process was started anew in the middle of a run.
            self._hello(self._greeting.read_bytes())
        if self._site is None:
            raise Refusal("no server has said hello yet")
        number = 0
        if verb in ("train", "test"):
            number = wire.asked(verb, wire.Order, content)[0].round
        most = self._allowed.most_rounds
        if most is not None and number > most:
            raise Refusal(f"the owner allows {most} rounds; this is round {number}")
        answer = self._site.answer(verb, content)
        limit = self._allowed.upload_megabytes
        if limit is not None and len(answer) > limit * MEGABYTE:
            raise Refusal(
                f"the owner allows {limit:g} MB; the answer to {verb} has "
                f"{len(answer) / MEGABYTE:g} MB"
            )
        return answer


def _read(config: str | None) -> dict[str, Any]:
    """Return a run's configuration.

    Raises:
        Refusal: There is none, or it is not as ``pfl fit`` writes it.
    """
    if config is None:
        raise Refusal("the run was started from Python: a site needs one of pfl fit")
    try:
        content = mapping_of_yaml(config, "the run's configuration")
    except FileError as error:
        raise Refusal(str(error)) from error
    if not all(isinstance(content.get(key), dict) for key in ("model", "data", "loop")):
        raise Refusal("the run's configuration lacks model, data or loop")
    return content
