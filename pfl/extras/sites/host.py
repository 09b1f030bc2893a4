"""The host of a site: it checks what the owner allows, and builds the site of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pfl.disk.container import ContainerError
from pfl.disk.reading import FileError, mapping_of_yaml
from pfl.disk.writing import written
from pfl.engines.transport import wire
from pfl.engines.transport.clients import Refusal
from pfl.extras.sites.relay import Header
from pfl.extras.sites.site import Allowed, Site
from pfl.extras.sites.words import without_folders
from pfl.training.context import Context
from pfl.training.contexts import Contexts


class Host:
    """Answers for a site, which is built when a server sends hello.

    Args:
        client: Number of the client for the server.
        local: Number of the client in the owner's data.
        folder: Folder of kept states and the last hello.
        allowed: What the owner allows.
        build: Function from a run's configuration to its contexts.
        notify: Called with messages for the owner.
        tested: See :class:`~pfl.extras.sites.site.Site`.
        accepted: Called once a run is accepted.
        private: Files and folders whose paths a server must not see.
    """

    def __init__(
        self,
        client: int,
        local: int,
        folder: Path,
        allowed: Allowed,
        build: Callable[[dict[str, Any]], Contexts],
        notify: Callable[[str], None],
        tested: Callable[[Context], None] = lambda _: None,
        accepted: Callable[[], None] = lambda: None,
        private: Sequence[Path] = (),
    ) -> None:
        self._client, self._local, self._folder = client, local, folder
        self._allowed, self._build, self._notify, self._tested = allowed, build, notify, tested
        self._accepted, self._private = accepted, (*private, folder)
        self._greeting = folder / "hello"
        self._config: str | None = None
        self._site: Site | None = None
        self._lock = threading.Lock()

    def answer(self, header: Header, content: bytes) -> bytes:
        """Return the answer to a message; ``who`` requests the client's number."""
        verb = str(header.get("verb"))
        if verb == "who":
            return str(self._client).encode()
        with self._lock:
            try:
                if verb == "hello":
                    self._open(content)
                elif verb != "bye" and self._site is None and self._greeting.is_file():
                    # This process was restarted during a run.
                    self._open(self._greeting.read_bytes())
                if self._site is None:
                    raise Refusal("no server has sent hello yet")
            except (Refusal, ContainerError) as error:
                if verb != "bye":  # It ends nothing here.
                    self._notify(f"refused {verb}: {error}")
                told = without_folders(str(error), self._private)
                return wire.failed(verb, content, b"", "refused", told)
            return self._site.answer(verb, content)

    def close(self) -> None:
        """Release the site's folder."""
        if self._site is not None:
            self._site.close()
        self._site = None

    def _open(self, content: bytes) -> None:
        """Build the site of a hello's run, unless it exists.

        Raises:
            Refusal: The owner does not allow the run, or its method cannot be built.
            ContainerError: The message is damaged.
        """
        hello, _ = wire.asked("hello", wire.Hello, content)
        if self._site is not None and hello.config == self._config:
            self._site.open(content)
        else:
            self.close()
            self._site, self._config = self._built(hello.config, content), hello.config
        with written(self._greeting) as file:
            file.write(content)

    def _built(self, config: str | None, content: bytes) -> Site:
        """Return the site of the run with a configuration, which begins with a hello.

        Raises:
            Refusal: As for :meth:`_open`.
        """
        run = _read(config)
        name, contexts = self._check(run), self._build(run)
        site = Site(
            *(contexts, self._client, self._folder),
            local=self._local,
            allowed=self._allowed,
            tested=self._tested,
            notify=self._notify,
        )
        site.open(content)
        self._accepted()
        self._notify(f"a server requests {name}, {run['loop'].get('rounds')} rounds")
        return site

    def _check(self, run: dict[str, Any]) -> str:
        """Return the name of a run's method after checking that the owner allows the run."""
        name = str(run["model"].get("class_path")).rpartition(".")[2]
        if name not in self._allowed.methods:
            allowed = ", ".join(self._allowed.methods)
            raise Refusal(f"the owner allows {allowed}, but the run uses {name}")
        most, rounds = self._allowed.most_rounds, run["loop"].get("rounds")
        if most is not None and not (isinstance(rounds, int) and rounds <= most):
            raise Refusal(f"the owner allows {most} rounds, but the run has {rounds}")
        if self._allowed.budget is not None:
            self._allowed.budget.check(run)
        return name


def _read(config: str | None) -> dict[str, Any]:
    """Return a run's configuration.

    Raises:
        Refusal: It is missing, or ``pfl fit`` did not write it.
    """
    if config is None:
        raise Refusal("the run was started from Python, but sites need a run of pfl fit")
    try:
        content = mapping_of_yaml(config, "the run's configuration")
    except FileError as error:
        raise Refusal(str(error)) from error
    if not all(isinstance(content.get(key), dict) for key in ("model", "data", "loop")):
        raise Refusal("the run's configuration lacks model, data or loop")
    return content
