"""Exported modules: files that ``load_from_checkpoint`` and a Trainer can read."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile, is_zipfile

import lightning
import torch
from lightning.pytorch.core.saving import CHECKPOINT_PAST_HPARAMS_KEYS

from pfl.disk import reading
from pfl.disk.bounds import BoundsError, check_bounds
from pfl.disk.writing import written
from pfl.imports.hints import declared, defaults
from pfl.imports.trust import Trust, TrustError, check_calls, checked, is_default, is_listed

# Most values that a file may have; each reference counts.
_VALUES = 10_000_000
# Functions that build objects from the plain values of a file: Lightning's own.
INSTANTIATORS = (
    "lightning.pytorch.cli.instantiate_module",
    "pytorch_lightning.cli.instantiate_module",
)


class DamagedError(ValueError):
    """A file was changed after it was written, or was written by another program."""


def write(path: Path, module: lightning.LightningModule, arguments: Mapping[str, Any]) -> None:
    """Write a module as a Lightning checkpoint, with the plain arguments that rebuild it.

    Raises:
        OSError: The file cannot be written.
    """
    state = module.state_dict()
    state.update({name: value.cpu() for name, value in state.items()})
    content: dict[str, Any] = {
        "pytorch-lightning_version": lightning.__version__,
        "state_dict": state,
        "hyper_parameters": dict(arguments),
    }
    module.on_save_checkpoint(content)
    packed = io.BytesIO()
    torch.save(content, packed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path, synced=True) as file:
        file.write(packed.getbuffer())


def check(
    source: str | Path | IO[Any],
    module_class: type,
    trust: Trust,
    passed: Mapping[str, Any],
) -> None:
    """Refuse an exported model that names an untrusted object.

    Args:
        source: The file, of ``pfl export`` or of a Trainer.
        module_class: The class to build.
        trust: What the file may name.
        passed: Arguments that the caller gives and no file decides.

    Raises:
        TrustError: An object is not trusted, or does not fit the type declared for its place.
        DamagedError: The file was changed after it was written, or has too many values or levels.
        TypeError: The file does not say how to build an argument that the class needs.
        OSError: The file cannot be read.
    """
    arguments = {**_exported(source), **passed}
    # Without an instantiator, the class gets plain values as they are; no object is built.
    if (instantiator := arguments.pop("_instantiator", None)) is None:
        _check_complete(source, module_class, arguments)
        return
    try:
        if instantiator not in INSTANTIATORS:
            raise TrustError(f"names {instantiator!r} to build objects, not Lightning's own")
        if (path := arguments.pop("_class_path", None)) is not None:
            module_class = checked(str(path), module_class, ("_class_path",), trust)
        types, usual = declared(module_class), defaults(module_class)
        # Before parsing, which imports what is named, and again on the parsed values.
        for read in (dict, partial(_parsed, module_class)):
            for name, item in read(arguments).items():
                if name not in passed and not is_default(item, usual.get(name, ...)):
                    check_calls(item, types.get(name), (name,), trust)
    except (TrustError, ImportError) as error:
        raise TrustError(f"{source}: {error}") from error


def _check_complete(
    source: str | Path | IO[Any], module_class: type, arguments: Mapping[str, Any]
) -> None:
    """Refuse a Trainer's file, which stores no objects, unless all of them are passed."""
    needed = [
        name
        for name, one in inspect.signature(module_class).parameters.items()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if missing := [name for name in needed if name not in arguments]:
        given = ", ".join(f"{name}=..." for name in missing)
        raise TypeError(
            f"{source} has the weights of {module_class.__name__}, but does not say how to build "
            f"its {' and '.join(missing)}: pass what it was trained with, as "
            f"{module_class.__name__}.load_from_checkpoint(file, {given})"
        )


def _parsed(module_class: type, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments as Lightning's instantiator parses them."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(module_class, "module", fail_untyped=False)
    parsed: Mapping[str, Any] = vars(parser.parse_object({"module": dict(arguments)}).module)
    return parsed


def _exported(source: str | Path | IO[Any]) -> dict[str, Any]:
    """Return the arguments of the class in a file, from every key that Lightning reads."""
    if isinstance(source, str | Path):
        content = _undamaged(Path(source)) if is_zipfile(source) else None
    else:
        content = torch.load(source, map_location="cpu", weights_only=True)
        source.seek(0)
    if not isinstance(content, dict) or "state_dict" not in content:
        raise DamagedError(f"{source} contains no module: export one from a run with pfl export")
    arguments: dict[str, Any] = {}
    for key in (
        *CHECKPOINT_PAST_HPARAMS_KEYS,
        lightning.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY,
    ):
        arguments |= content.get(key) or {}
    try:
        check_bounds(arguments)
    except BoundsError as error:
        raise DamagedError(f"{source} is damaged: {error}") from error
    return arguments


def _undamaged(file: Path) -> Any:  # noqa: ANN401
    """Return the content of a file; ``torch.load`` itself verifies no checksums.

    Raises:
        DamagedError: The file was changed after it was written, or was written by another program.
        OSError: The file cannot be read, or not enough memory is free.
    """
    with reading.naming_damage(file, DamagedError):
        with ZipFile(file) as archive:
            if (damaged := archive.testzip()) is not None:
                raise DamagedError(f"the checksum of {damaged} is wrong")
        content = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        check_bounds(content, _VALUES)
    return content


def untrusted(content: Any) -> list[str]:  # noqa: ANN401
    """Return the class paths that :func:`check` admits only if they are in ``trust``."""
    if isinstance(content, Mapping):
        path = content.get("class_path")
        paths = [path] if isinstance(path, str) and not is_listed(path) else []
        return paths + [name for item in content.values() for name in untrusted(item)]
    if isinstance(content, list | tuple):
        return [name for item in content for name in untrusted(item)]
    return []
