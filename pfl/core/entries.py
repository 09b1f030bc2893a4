"""Which entries of a module's state travel, and which stay with a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from torch import nn

from pfl.core.batch_norms import norm_statistics, read_counters
from pfl.core.state import averages, constants, matches, select
from pfl.core.types import Patterns


class Declared(NamedTuple):
    """What a method says of its entries, by patterns of their names.

    Attributes:
        shared: What travels.
        kept: What stays with the client.
        stays: What the user leaves with the client.
        buffers: Whether batch-norm statistics that would travel are averaged, or stay too.
    """

    shared: Patterns
    kept: Patterns
    stays: Patterns
    buffers: Literal["average", "local"]


class Divided(NamedTuple):
    """The names of a module's entries, by what becomes of them; others do not survive a round.

    Attributes:
        travel: Those that travel.
        stay: Those that stay with a client.
    """

    travel: tuple[str, ...]
    stay: tuple[str, ...]


def divide(module: nn.Module, declared: Declared) -> Divided:
    """Divide the entries of a module.

    Raises:
        ValueError: A pattern matches no entry.
    """
    for problem in _unmatched(module, declared):
        raise ValueError(f"{type(module).__name__}.{problem}")
    entries, counters = module.state_dict(), read_counters(module)
    shared = [name for name in entries if matches(name, declared.shared)]
    # Integers do not travel, as a mean of them is none. The counter of a batch norm that reads it
    # counts what this client's statistics have seen, so it stays with the client.
    remains = (*declared.kept, *declared.stays)
    stay = [n for n in entries if matches(n, remains) or n in counters.intersection(shared)]
    travel = [n for n in shared if averages(entries[n]) and not matches(n, declared.stays)]
    if declared.buffers == "local":
        # Only batch-norm statistics stay; prototypes and other buffers of a method still travel.
        statistics = norm_statistics(module)
        stay += [name for name in travel if name in statistics and name not in stay]
        travel = [name for name in travel if name not in statistics]
    return Divided((*travel,), (*stay,))


def _unmatched(module: nn.Module, declared: Declared) -> Iterator[str]:
    """Yield which patterns match no entry."""
    names = [*module.state_dict()]
    for field in ("shared", "kept", "stays"):
        for pattern in getattr(declared, field):
            if any(matches(name, (pattern,)) for name in names):
                continue
            why = f"nothing in the network; its entries are {', '.join(names[:6])}, ..."
            if select(constants(module), (pattern,)):
                verb = "share" if field == "shared" else "keep"
                why = (
                    f"only frozen entries, so that nothing is left to {verb}: freeze less of the "
                    "network, or choose another method"
                )
            yield f"{field} has the pattern {pattern!r}, which matches {why}"
