"""Natural clients, such as hospitals: their names, and their assignment to clients."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np

from datamodules.partition.splits import Division
from datamodules.targets import Catalogue, Ints

# Maximum number of natural clients listed in a merged client's name.
_LISTED = 3


def client_names(catalogue: Catalogue, division: Division) -> tuple[str, ...]:
    """Return (N,) names of natural clients, such as hospitals; empty without natural clients.

    A client that is part of a natural one has a number after the name; one merged from several has
    all their names.
    """
    held = domains_of(catalogue, division)
    owners = Counter(domain for domains in held for domain in domains)
    single = all(len(domains) <= 1 for domains in held)
    if not held or not (single or max(owners.values(), default=0) == 1):
        return ()
    names = [_name([catalogue.domain_names[d] for d in sorted(domains)]) for domains in held]
    names = [name or f"client {client}" for client, name in enumerate(names)]
    total, seen, numbered = Counter(names), Counter[str](), []
    for name in names:
        seen[name] += 1
        numbered.append(name if total[name] == 1 else f"{name} ({seen[name]})")
    return tuple(numbered)


def warn_of_merging(catalogue: Catalogue, division: Division, natural: bool) -> None:
    """Warn if a partition by natural clients merged several of them into one."""
    count, named = len(division.holdings), len(catalogue.domain_names)
    if natural and count < named:
        merged = [name for name in client_names(catalogue, division) if " + " in name]
        warnings.warn(
            f"num_clients: {count} merges the {named} natural clients of the data"
            f"{f' (the first is {merged[0]})' if merged else ''}; without num_clients, "
            "each is a client",
            stacklevel=2,
        )


def domains_of(catalogue: Catalogue, division: Division) -> list[set[int]]:
    """Return the domains of each client's own samples; an empty list without domains."""
    domains = catalogue.targets.domains
    if domains is None:
        return []

    def held(ids: Ints) -> set[int]:
        return set(np.unique(domains[ids]).tolist())

    return [held(h.train) | held(h.val) or held(h.test) for h in division.holdings]


def domain_of_each(
    catalogue: Catalogue, division: Division, most: int
) -> tuple[tuple[str, ...], list[int]]:
    """Return the names of domains, and the one domain in which each client trains.

    Both are empty if there are no domains or more than ``most``, or if a client has several.
    """
    domains, names = catalogue.targets.domains, tuple(catalogue.domain_names)
    if domains is None or not 1 < len(names) <= most:
        return (), []
    held = [np.unique(domains[holding.train]) for holding in division.holdings]
    if any(len(trained) != 1 for trained in held):
        return (), []
    return names, [int(trained[0]) for trained in held]


def _name(domains: Sequence[str]) -> str:
    more = len(domains) - _LISTED
    return " + ".join([*domains[:_LISTED], *([f"{more} more"] if more > 0 else [])])
