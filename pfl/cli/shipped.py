"""The configurations and sweeps shipped with pfl: looked up by name, copied by ``pfl init``."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import pfl
from pfl.cli.explain import UsageError, flags, without
from pfl.disk.nearest import nearest

FOLDERS = ("configs", "sweeps")


def root() -> Path:
    """Return their folder: in the installed package, or beside it in a clone."""
    package = Path(pfl.__file__).parent
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent


def config(word: str, folder: Path = Path()) -> str:
    """Return the given configuration file, or the shipped one of this name.

    Files are relative to ``folder``; examples of names are ``quickstart`` and ``baselines/fedper``.

    Raises:
        UsageError: There is neither a file nor a shipped configuration of this name.
    """
    if Path(word).suffix or (folder / word).is_file():
        return str(folder / word)
    home = root() / "configs"
    file = home / f"{word}.yaml"
    if file.is_file():
        return str(file)
    if (folder / word).is_dir():
        inside = folder / word / "config.yaml"
        raise UsageError(f"{word}: this is a folder{f'; give {inside}' * inside.is_file()}")
    near = nearest(word, names(), 3) or "; pfl init copies all of them"
    raise UsageError(f"{word}: there is no such file or shipped configuration{near}")


def names() -> list[str]:
    """Return the names of the shipped configurations, as for ``--config``."""
    home = root() / "configs"
    paths = [path.relative_to(home).with_suffix("") for path in home.glob("**/*.yaml")]
    return sorted(path.as_posix() for path in paths)


def with_config_files(argv: Sequence[str]) -> list[str]:
    """Replace names of shipped configurations in a command line by their files.

    The files come first, so that flags override them wherever they stand.

    Raises:
        UsageError: See :func:`config`.
    """
    names = [name for flag, name in flags(argv) if flag == "--config"]
    try:
        files = ["--config" if name is None else f"--config={config(name)}" for name in names]
    except UsageError as error:
        raise UsageError(f"--config {error}") from error
    return [*files, *without(argv, lambda flag: flag == "--config")]


def init(options: argparse.Namespace) -> None:
    """Copy the configurations and sweeps into a folder, without overwriting files."""
    folder: Path = options.folder
    new, old = [], []
    for source in sorted(file for name in FOLDERS for file in (root() / name).rglob("*.yaml")):
        target = folder / source.relative_to(root())
        if target.exists():
            old.append(target)
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        except OSError as error:
            raise UsageError(f"{target} cannot be written: {error}") from error
        new.append(target)
    print(f"{len(new)} files written below {folder}, {len(old)} existing files kept")
    print(f"try: pfl fit --config {folder / 'configs' / 'quickstart.yaml'}")
