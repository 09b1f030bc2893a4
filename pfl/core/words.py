"""Words with a meaning of their own, which stand beside the annotation of an argument.

An argument ``accelerator: Annotated[str, Device()]`` says that its text names a device. A wrong one
is told before anything heavy is imported; what a word stands for is found out by who uses it.
Nothing here imports torch.
"""

from __future__ import annotations

import ctypes
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pfl.disk.nearest import hint, nearest
from pfl.imports import modules, plugins
from pfl.imports.trust import is_path

# Lightning's names of accelerators.
_ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps", "tpu")


class Word(ABC):
    """What a text may say."""

    @abstractmethod
    def check(self, value: object, closed: bool) -> None:
        """Refuse a word that means nothing.

        Args:
            value: The value of the argument.
            closed: Whether nobody else's module takes part, which could add words.

        Raises:
            ValueError: It means nothing.
        """


@dataclass(frozen=True)
class Device(Word):
    """The name of an accelerator, as in Lightning."""

    def check(self, value: object, closed: bool) -> None:
        """Refuse a name that Lightning does not know, and a GPU on a machine without its driver."""
        if closed and value not in _ACCELERATORS:
            raise ValueError(f"there is no accelerator {value!r}{hint(str(value), _ACCELERATORS)}")
        if (value == "mps" and sys.platform != "darwin") or (
            value in ("cuda", "gpu") and sys.platform == "linux" and not _has_driver()
        ):
            raise ValueError(
                f"this machine has no {value}, or lacks its driver (accelerator auto takes what "
                "there is)"
            )


@dataclass(frozen=True)
class OneDevice(Word):
    """The number of devices, or which one, as in Lightning."""

    def check(self, value: object, closed: bool) -> None:
        """Refuse several devices, and none."""
        # All that there are, -1, may be one.
        if isinstance(value, int) and value not in (1, -1):
            raise ValueError(
                f"devices must name one device, got {value}; an engine spreads a run over workers"
            )


@dataclass(frozen=True)
class Folder(Word):
    """A folder, which need not exist yet."""

    def check(self, value: object, closed: bool) -> None:
        """Refuse a file, and what lies below one."""
        places = (Path(value), *Path(value).parents) if isinstance(value, str) else ()
        if file := next((str(place) for place in places if place.is_file()), None):
            raise ValueError(f"expected a folder, but {file} is a file")


@dataclass(frozen=True)
class Ending(Word):
    """The name of a file.

    Attributes:
        ending: What it ends in, such as ``.png``.
    """

    ending: str

    def check(self, value: object, closed: bool) -> None:
        """Refuse a name with another ending, and what lies below a file."""
        if isinstance(value, str):
            if Path(value).suffix != self.ending:
                raise ValueError(f"{value}: the picture is a {self.ending} file")
            Folder().check(str(Path(value).parent), closed)


def _has_driver() -> bool:
    """Return ``True`` if the driver of a GPU is there, without which torch cannot use any."""
    if Path("/dev/kfd").exists():
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Metrics(Word):
    """Metrics of torchmetrics: class paths, or mappings with ``metric``; or one of them alone."""

    def check(self, value: object, closed: bool) -> None:
        """Refuse the name of a class that is not there, or that no plug-in has."""
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, str | Mapping):
                name = metric_of(one)
                if not _may_be_metric(name):
                    raise ValueError(f"{not_a_metric(name)}{_near(name)}")


def metric_of(spec: str | Mapping[str, object]) -> str:
    """Return which metric a part of ``data.metrics`` names.

    Raises:
        ValueError: It names none.
    """
    if isinstance(spec, Mapping) and "metric" not in spec:
        raise ValueError(f"{dict(spec)} has no key metric, which names a torchmetrics.Metric")
    return spec if isinstance(spec, str) else str(spec["metric"])


def not_a_metric(name: str) -> str:
    """Return the message about a name that is not that of a metric."""
    return (
        f"{name!r} is not a metric: give the path of a torchmetrics.Metric, such as "
        "torchmetrics.AUROC"
    )


def _may_be_metric(name: str) -> bool:
    brought = {plugin.name for plugin in plugins.installed("pfl.metrics")}
    return name in brought or (is_path(name) and not modules.lacks(name))


def _near(name: str) -> str:
    last = name.rpartition(".")[2]
    paths = {path.rpartition(".")[2]: path for path in modules.names_of("torchmetrics.Metric")}
    known = {one: path for one, path in paths.items() if one[0].isupper()}
    same = next((path for one, path in known.items() if one.lower() == last.lower()), None)
    return f"; did you mean {same!r}?" if same else nearest(f"torchmetrics.{last}", known.values())
