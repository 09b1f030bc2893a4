"""``pfl site``: one client that trains for remote servers."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from pfl.cli.config import REFUSALS, Experiment, inner_values
from pfl.cli.explain import FailedError, UsageError, explained
from pfl.cli.reading import Reading
from pfl.cli.trained import recipe_of
from pfl.core import export
from pfl.core.client import ClientModule
from pfl.core.data import Adopts
from pfl.core.devices import repeatable
from pfl.core.failure import last_words
from pfl.core.seeds import scoped
from pfl.disk.lock import locked
from pfl.disk.writing import write
from pfl.disk.yaml_text import dumped
from pfl.engines.transport.clients import Refusal
from pfl.extras.sites import flower, nvflare
from pfl.extras.sites.child import end, start_child
from pfl.extras.sites.host import Host
from pfl.extras.sites.relay import SocketServer, private_folder
from pfl.extras.sites.site import Allowed, Budget
from pfl.federation import resume
from pfl.federation.run import TRANSFORMS
from pfl.imports import plugins
from pfl.imports.trust import Trust, check_calls
from pfl.training.context import Context, check_types
from pfl.training.contexts import Contexts
from pfl.training.features import hold_features
from pfl.training.inventory import check_states

# File of the used part of a run's configuration.
RUN = "run.yaml"
# Settings of data and loop that the run decides, not the owner.
_OF_DATA = ("batch_size", "eval_batch_size", "drop_last", "shuffle", "metrics")
_OF_LOOP = ("precision", "gradient_clip_val", "features")
# A server may name only classes of this project, of torch or of the owner's plug-ins.
_OF_SERVER = Trust(own=(), installs=True)


def site(reading: Reading) -> None:
    """Answer servers for one client until the owner stops it.

    Raises:
        UsageError: An option of the owner is wrong.
        FailedError: NVFlare's or Flower's process ended.
    """
    owner = Experiment.of(reading)
    values = owner.values
    if (values.kit is None) == (values.superlink is None):
        raise UsageError("give either kit, NVFlare's startup kit, or superlink, Flower's address")
    folder = Path(values.folder)
    if (values.epsilon is None) != (values.delta is None):
        raise UsageError("give both epsilon and delta, or neither")
    if values.epsilon is None and (values.clip is not None or values.sigma is not None):
        raise UsageError(
            "clip and sigma belong to the owner's epsilon: give epsilon and delta as well"
        )
    if values.epsilon is not None and values.class_counts:
        raise UsageError("class_counts reveals single samples: leave out class_counts or epsilon")
    with explained(owner.settings, *REFUSALS), ExitStack() as scope:
        sockets = private_folder()
        scope.callback(shutil.rmtree, sockets, ignore_errors=True)
        command, env = _connection(values, sockets / "socket")
        scope.enter_context(locked(folder))
        scope.enter_context(repeatable())
        local = values.client if values.local is None else values.local
        if not 0 <= local < owner.data.num_clients:
            raise ValueError(
                f"local: the data have the clients 0 to {owner.data.num_clients - 1}, not {local}"
            )
        allowed = Allowed(
            tuple(values.methods),
            values.upload_megabytes,
            values.class_counts,
            values.epsilon is None if values.scores is None else values.scores,
            values.most_rounds,
            values.most_parameters,
            _budget(owner, local, folder),
        )
        builder = MethodBuilder(owner, folder)
        host = Host(
            *(values.client, local, folder / "kept", allowed, builder.build, _notify),
            *(builder.export, builder.accept, builder.private),
        )
        scope.callback(host.close)
        scope.callback(SocketServer(sockets / "socket", host.answer).close)
        log = folder / "connection.log"
        process = start_child(command, scope.enter_context(log.open("wb")), env)
        scope.callback(end, process)
        _notify(f"client {values.client} waits for a server; Ctrl-C ends it")
        while process.poll() is None:
            time.sleep(0.2)
    said = last_words(log) or "it printed nothing"
    raise FailedError(f"the connection ended: {said} (see {log})")


def _budget(owner: Experiment, local: int, folder: Path) -> Budget | None:
    """Return the owner's budget for single samples, if they are to be kept private."""
    values = owner.values
    if values.epsilon is None:
        return None
    found = ((one.group, one, (one, make)) for one, make in plugins.loaded("pfl.budgets"))
    # An owner has one budget, so all that count it have one name.
    made = plugins.settle("entry in", found)
    if not made:
        raise UsageError("epsilon needs pfl.extras.privacy, which is not installed")
    plugin, make = made["pfl.budgets"]
    numbers = values.epsilon, values.delta, values.clip, values.sigma
    with plugin.checked():
        budget: Budget = make(owner.data, local, _spent_file(owner.data, folder), *numbers)
        complete = all(callable(getattr(budget, name, None)) for name in ("check", "charge"))
        plugin.check(complete, "a function that returns a budget, with check and charge")
    return budget


def _spent_file(data: object, folder: Path) -> Path:
    """Return the file of a budget: beside the table or folder of the data.

    The data thus have one budget, whatever an owner's configurations say. Data without a file have
    it in the site's folder.
    """
    source = getattr(data, "path", None) or getattr(data, "root", None)
    if source is None:
        return folder / "spent.json"
    place = Path(source).expanduser().resolve()
    return place.with_name(f"{place.name}.spent.json")


def _connection(values: Any, site_socket: Path) -> tuple[list[str], dict[str, str]]:  # noqa: ANN401
    """Return the command of NVFlare's or Flower's process, and its environment variables."""
    if values.kit is not None:
        return nvflare.client_command(Path(values.kit), site_socket)
    return flower.client_command(
        values.superlink, site_socket, values.root_certificates, values.private_key
    )


class MethodBuilder:
    """Builds a server's method on the owner's data and device, and exports the owner's model.

    Args:
        owner: The owner's configuration.
        folder: Folder in which the used part of an accepted run's configuration and of the data's
            is written, for the owner.

    Raises:
        CheckpointError: The file for the model exists and is not a model.
    """

    def __init__(self, owner: Experiment, folder: Path) -> None:
        self._owner, self._folder = owner, folder
        self._study: Experiment | None = None
        self._texts: dict[str, str] = {}
        given = owner.values.export
        self._file = None if given is None else resume.beside(Path(given), folder)

    def build(self, run: Mapping[str, Any]) -> Contexts:
        """Return the contexts of a run: the server's method on the owner's data and device.

        Raises:
            Refusal: The method cannot be built, or names a class that servers may not use.
        """
        owner = self._owner
        try:
            loop = {name: run["loop"][name] for name in _OF_LOOP if name in run["loop"]}
            options = run["data"].get("init_args") or {}
            asked = {name: options[name] for name in _OF_DATA if name in options}
            # Before the parser imports named classes, and again with the names as parsed.
            _check_texts([run.get("seed"), loop, run["model"], asked])
            data = yaml.safe_load(owner.text)["data"]
            used = {
                "seed": run.get("seed"),
                "loop": {**loop, "accelerator": owner.values.loop.accelerator},
                "model": run["model"],
                "data": {**data, "init_args": {**(data.get("init_args") or {}), **asked}},
            }
            with tempfile.TemporaryDirectory() as place:
                file = Path(place, RUN)
                write(file, dumped(used))
                study = Experiment.parse("fit", ["--config", str(file)])
            trust = replace(_OF_SERVER, filled=study.parser.filled)
            check_calls(study.values.model, ClientModule, ("model",), trust)
            # The constructor checks the options; the owner's data are not read again.
            with explained(study.settings, *REFUSALS, part="data"):
                made = study.make("data", study.values.data)
            # A run that is refused changes nothing of the owner's data.
            source = copy(owner.data)
            for name in asked:
                setattr(source, name, getattr(made, name))
            study.data = source
            _check_size(study, owner.values.most_parameters)
            module, fabric = study.module, study.loop.fabric
            source.to(fabric.device)
            check_types(module, fabric)
            fabric.strategy.precision.convert_module(module)
            contexts = Contexts(module, source, fabric, study.loop.gradient_clip_val)
            if owner.values.epsilon is None:
                # An owner's account covers no other look at the samples.
                if study.loop.features == "cached":
                    hold_features(contexts, ExitStack(), self._folder)
                check_states(contexts)
            self._texts = {RUN: dumped(used)}
            if isinstance(source, Adopts):
                # For the owner: the model expects inputs on this scale.
                self._texts[TRANSFORMS] = json.dumps(source.transforms(), indent=1)
        except (UsageError, *REFUSALS, RuntimeError, MemoryError) as error:
            raise Refusal(f"the run's method cannot be built here: {error}") from error
        self._study = study
        return contexts

    def accept(self) -> None:
        """Write what was built last, for the owner."""
        for name, text in self._texts.items():
            write(self._folder / name, text)

    @property
    def private(self) -> list[Path]:
        """Files and folders of the owner, whose paths a server must not see."""
        texts = yaml.safe_load(self._owner.text)
        places = [Path(text).expanduser() for text in _texts(texts) if text.isprintable()]
        return [self._folder, *(place for place in places if place.exists())]

    def export(self, context: Context) -> None:
        """Write the model that was just tested, if the owner requested it.

        A write error is reported to the owner and does not end the run.
        """
        if self._file is None or self._study is None:
            return
        try:
            export.write(self._file, context.module, recipe_of(self._study))
        except OSError as error:
            _notify(f"the model was not written: {error}")


def _check_size(study: Experiment, most: int | None) -> None:
    """Refuse a method with too many parameters and buffers before they take any memory.

    Raises:
        ValueError: It has more than the owner allows.
    """
    if most is None:
        return
    try:
        with torch.device("meta"), scoped(0):
            module: ClientModule = study.make("model", study.model)
    except (UsageError, *REFUSALS, RuntimeError):
        # It reads values, or is wrong, which is told where it is made.
        return
    count = sum(tensor.numel() for tensor in (*module.parameters(), *module.buffers()))
    if count > most:
        raise ValueError(
            f"the owner allows most_parameters={most:,}, but the method has {count:,} parameters "
            "and buffers"
        )


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield all texts in a part of a configuration."""
    if isinstance(value, str):
        yield value
    for item in inner_values(value):
        yield from _texts(item)


def _check_texts(value: Any) -> None:  # noqa: ANN401
    """Reject a server's text that names something forbidden or that a parser would expand.

    Raises:
        TrustError: There is such a text.
    """
    if isinstance(value, str):
        _OF_SERVER.check_text(value)
    for item in inner_values(value):
        _check_texts(item)


def _notify(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
