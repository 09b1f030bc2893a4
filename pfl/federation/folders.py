"""Where runs lie, and what they were, without torch: ``<default_root_dir>/<name>/<time>``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from pfl.disk import reading
from pfl.federation import identity
from pfl.federation.identity import Identity

# The checkpoint from which a run is resumed, in its folder.
FILE = Path("checkpoints", "last.ckpt")
ROUNDS = "loop.rounds"
# Shown if a run is tested with other data than its own.
ADVICE = "to let clients of other data join the run: pfl test --ckpt_path RUN --data FILE --join 5"
# Settings that a trained model does not depend on.
_TESTS = (
    *("loop.evaluate_at", "loop.evaluate_every", "loop.evaluate_from", "loop.evaluate_clients"),
    *("loop.evaluations", "loop.callbacks", "loop.on_nonfinite"),
)


def usual_name(method: str, data: str) -> str:
    """Return the name of an experiment to which none is given, from its classes' names."""
    return f"{method}_{data}".lower()


def runs(root: Path) -> list[Path]:
    """Return the folders of the runs in a folder that have a checkpoint, the newest last."""
    # A run is named by its starting time.
    return sorted((file.parent.parent for file in root.glob(f"*/{FILE}")), key=lambda run: run.name)


def fitting(root: Path, differences: Callable[[str | None, int | None], list[str]]) -> Path:
    """Return the newest run below a folder that another may continue.

    Args:
        root: The folder.
        differences: Returns the settings that rule out a run, given its configuration and its seed.

    Raises:
        LookupError: There is none.
    """
    refusals: dict[Path, list[str]] = {}
    for folder in reversed(runs(root)):
        differing = differences(*recorded(folder))
        if not differing:
            return folder
        refusals[folder] = differing
    if not refusals:
        raise LookupError(f"--ckpt_path last: there is no checkpoint below {root}")
    # The run with the fewest differences is probably the intended one.
    nearest = min(refusals, key=lambda folder: len(refusals[folder]))
    raise LookupError(
        f"--ckpt_path last: no run below {root} has these settings; {nearest} has "
        f"{'; '.join(refusals[nearest])}"
    )


def refusal(file: Path, differing: list[str], trains: bool) -> str:
    """Return the message about a checkpoint of a run with other settings."""
    other = not trains and any(line.startswith("data.") for line in differing)
    lines = [*differing, *([ADVICE] if other else [])]
    return f"{file} is from a run with other settings: {'; '.join(lines)}"


def of_config(text: str, whose: str) -> tuple[Identity, int | None]:
    """Return the identity of a run without its rounds, and these.

    Args:
        text: Its configuration.
        whose: What it is, for errors.

    Raises:
        FileError: It is no configuration.
    """
    return apart(identity.of_run(reading.mapping_of_yaml(text, f"the configuration {whose}")))


def apart(settings: Identity) -> tuple[Identity, int | None]:
    """Return an identity without the number of rounds, and that."""
    rest = dict(settings)
    return rest, rest.pop(ROUNDS, None)


def changes(old: Identity, new: Identity, trains: bool) -> Iterator[str]:
    """Yield the settings that differ, each with both values.

    Args:
        old: Settings of the run that there is.
        new: Settings of the one that is wanted.
        trains: Whether rounds will be added to it; otherwise those of tests do not count.
    """
    for key in dict.fromkeys((*new, *old)):
        if old.get(key) != new.get(key) and (trains or not key.startswith(_TESTS)):
            yield f"{key} {old.get(key)} (now {new.get(key)})"


def recorded(folder: Path) -> tuple[str | None, int | None]:
    """Return the configuration and the seed of a run, if its folder has them."""
    try:
        config = folder / "config.yaml"
        text = reading.text(config)
        reading.mapping_of_yaml(text or "", config)
        environment = reading.read_json(folder / "environment.json")
    except (OSError, reading.FileError):
        # The checkpoint holds them too, and is checked when it is read.
        return None, None
    return text, environment.get("seed")
