"""Finding the checkpoint to resume a run from, and checking that it belongs to that run."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.plain import plain_value
from pfl.core.types import ClientInfo
from pfl.core.waits import Waits
from pfl.disk import reading, writing
from pfl.disk.lock import locked
from pfl.federation import checkpoint, folders, identity, schema
from pfl.federation.checkpoint import CheckpointError
from pfl.federation.folders import FILE, ROUNDS
from pfl.federation.identity import Identity
from pfl.federation.run import Callback, Run, load_states
from pfl.federation.schema import Content
from pfl.federation.settings import Settings

if TYPE_CHECKING:
    from pfl.training.contexts import Contexts


@dataclass(frozen=True)
class Wanted:
    """The requested run, to which a checkpoint must belong.

    Attributes:
        settings: Settings of the loop.
        module: The method.
        data: The federation's data.
        ckpt_path: The checkpoint: a file, a run folder, or ``last`` for the newest run below
            :attr:`root` with the same settings and seed; ``None`` reads none.
        config: The resolved configuration as YAML; ``None`` for a run started from Python.
        callbacks: Called after each round; their states are in the checkpoint.
        trains: Whether rounds will be added; otherwise the checkpoint is only read.
        waits: Tells what the user waits for.
    """

    settings: Settings
    module: ClientModule
    data: FederatedData
    ckpt_path: str | None = None
    config: str | None = None
    callbacks: Sequence[Callback] = ()
    trains: bool = False
    waits: Waits = field(default_factory=Waits)

    def __post_init__(self) -> None:
        """Refuse arguments of other types, such as method and data in the wrong order.

        Raises:
            TypeError: The module is not a method, or the data have no clients.
        """
        if not isinstance(self.module, ClientModule):
            raise TypeError(f"the method must be a ClientModule, got {_kind(self.module)}")
        if not hasattr(self.data, "pooled_test"):
            raise TypeError(
                "data must say which client holds which samples, as a data module of this project "
                f"does (TensorData takes tensors by name), got {_kind(self.data)}"
            )

    @property
    def name(self) -> str:
        """The name of the experiment: the given one, or one derived from method and data."""
        return self.settings.name or folders.usual_name(
            type(self.module).__name__, type(self.data).__name__
        )

    @property
    def root(self) -> Path | None:
        """The folder of all runs with the name: ``<default_root_dir>/<name>``."""
        top = self.settings.default_root_dir
        return None if top is None else Path(top, self.name)

    def differences(self, config: str | None, seed: int | None) -> list[str]:
        """Return the settings that rule out a run, each with its value and the wanted one.

        Args:
            config: The run's configuration; unless both runs were started with one, only seeds
                and what the uplink depends on are compared.
            seed: The run's seed.
        """
        if self.config is None or config is None or config.startswith(identity.STARTED):
            same = seed is None or seed == self.settings.seed
            differing = [] if same else [f"seed {seed} (now {self.settings.seed})"]
            return differing + self._uplink(config)
        old, then = folders.of_config(config, "of the checkpoint")
        new, now = folders.of_config(self.config, "of this run")
        return [*folders.changes(old, new, self.trains)] or self._rounds(then, now)

    def _uplink(self, config: str | None) -> list[str]:
        """Return the differences that invalidate an account of earlier rounds, such as epsilon."""
        if config is None or not self.trains:
            return []
        then = reading.mapping_of_yaml(config, "the configuration of the checkpoint")
        loop = self.settings
        now = {"uplink": plain_value(loop.uplink), "sampler": plain_value(loop.sampler)}
        old, new = (_of_uplink(identity.of_run(run)) for run in (then, {"loop": now}))
        return [*folders.changes(old, new, self.trains)]

    def _rounds(self, then: int | None, now: int | None) -> list[str]:
        if then is None or now is None or then == now:
            return []
        if self.module.uses_rounds:
            name = type(self.module).__name__
            return [f"{ROUNDS} {then} (now {now}), on which the results of this {name} depend"]
        if self.trains and now < then:
            return [f"{ROUNDS} {then} (now {now}), which can only grow"]
        return []


@contextmanager
def opened(wanted: Wanted) -> Iterator[Path | None]:
    """Find the wanted checkpoint, and lock its run folder while rounds are added.

    Raises:
        CheckpointError: ``last`` matches no run.
        BusyError: Another process is working on the run.
    """
    file = None if wanted.ckpt_path is None else find_checkpoint(wanted.ckpt_path, wanted)
    with ExitStack() as stack:
        if file is not None and wanted.trains and file.is_file() and (folder := folder_of(file)):
            stack.enter_context(locked(folder))
            files = [name for callback in wanted.callbacks for name in callback.files]
            clear(folder, files)
        yield file


def read(file: Path, wanted: Wanted, contexts: Contexts) -> Content:
    """Return the content of a checkpoint of a wanted run; its contexts are before round one.

    Raises:
        CheckpointError: The checkpoint cannot be used, or belongs to another method, network or
            partition, or its run has other settings; the message gives both values of each.
    """
    content = schema.read(file)
    try:
        differing = wanted.differences(content.config, content.seed)
    except reading.FileError as error:
        raise CheckpointError(f"{file}: {error}") from error
    if differing:
        raise CheckpointError(folders.refusal(file, differing, wanted.trains))
    _check_same("method", content.method, type(wanted.module).__name__)
    # The hash of data at sites is known once the sites have reported it.
    if wanted.data.description().get("hash") is not None:
        _check_partition(content, wanted.data)
    schema.check_tensors("template", content.template, contexts.initial_values)
    return content


def restore(content: Content, run: Run, clients: Sequence[ClientInfo], contexts: Contexts) -> None:
    """Restore a new run to the state in a checkpoint.

    Raises:
        CheckpointError: The checkpoint does not fit the run; the run is unchanged.
    """
    _check_partition(content, run.data)
    schema.check(content, run, clients, contexts)
    run.round = content.round
    run.server = replace(run.server, **checkpoint.move(content.server, contexts.fabric.device))
    run.keeper.restore(content.kept, content.tickets)
    run.history = content.history
    run.failures, run.reasons = content.failures, content.reasons
    load_states(run.callbacks, content.callbacks)


def _check_partition(content: Content, data: FederatedData) -> None:
    _check_same(
        "partition", content.partition, data.description().get("hash"), f"; {folders.ADVICE}"
    )


def _check_same(what: str, old: Any, wanted: Any, advice: str = "") -> None:  # noqa: ANN401
    if old != wanted:
        raise CheckpointError(
            f"the checkpoint was written with the {what} {old}, but this run has {wanted}{advice}"
        )


def folder_of(file: Path) -> Path | None:
    """Return the run folder of a checkpoint file; ``None`` if it is not in one."""
    return file.parent.parent if file.parent.name == FILE.parent.name else None


def beside(file: Path, source: Path) -> Path:
    """Return a path to which a checkpoint's export can be written without replacing anything else.

    Raises:
        CheckpointError: It is that checkpoint, or is in a run's folder of checkpoints; or it holds
            something other than a model, such as a table.
    """
    place = file.resolve()
    folder = folder_of(place)
    of_a_run = folder is not None and (folder / "environment.json").is_file()
    if of_a_run or place == source.resolve():
        raise CheckpointError(f"{file} is the place of a run's checkpoint: name another file")
    # Files of tensors are zip archives: an earlier export is replaced.
    if place.is_file() and place.stat().st_size and not zipfile.is_zipfile(place):
        raise CheckpointError(f"{file} exists and is not an exported model: name another file")
    return file


def find_checkpoint(path: str, wanted: Wanted) -> Path:
    """Return the checkpoint file that a path or ``last`` names; see :class:`Wanted`.

    Raises:
        CheckpointError: ``last`` matches no run or has no folder to search, or the path is a folder
            of runs.
    """
    if path != "last":
        named = Path(path)
        if not named.is_dir():
            return named
        if not (named / FILE).is_file() and (runs := folders.runs(named)):
            raise CheckpointError(f"{named} is not a run's folder: name a run, such as {runs[-1]}")
        return named / FILE
    root = wanted.root
    if root is None:
        raise CheckpointError("--ckpt_path last: give loop.default_root_dir, or name the run")
    try:
        return folders.fitting(root, wanted.differences) / FILE
    except LookupError as error:
        raise CheckpointError(str(error)) from error


def clear(folder: Path, files: Iterable[str]) -> None:
    """Remove partial files that killed processes left in a run folder.

    Raises:
        OSError: The folder of the checkpoint is a link, through which none could be saved.
    """
    writing.no_link(folder / FILE.parent)
    for file in map(Path, files):
        writing.clear(folder / file.parent, [file.name])


def _kind(value: object) -> str:
    """Describe the type of a value."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _of_uplink(settings: Identity) -> Identity:
    """Return the settings of the uplink's steps, and the sampler with them; nothing without any."""
    steps = {key: value for key, value in settings.items() if key.startswith("loop.uplink.")}
    sampler = {key: value for key, value in settings.items() if key.startswith("loop.sampler")}
    return steps | sampler if steps else {}
