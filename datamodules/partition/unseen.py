"""Held-out clients, which take no part in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from datamodules.checks import require
from datamodules.partition.natural import client_names, domains_of
from datamodules.partition.partitioner import IID, ByDomain
from datamodules.partition.splits import Division, Rule, TestProtocol, divide
from datamodules.targets import Catalogue
from pfl.core.checks import check_arguments
from pfl.core.origins import warn_of_name
from pfl.core.ranges import Range
from pfl.core.seeds import derive


@dataclass(frozen=True)
class Unseen:
    """A rule that holds clients out of training, after the data have been divided.

    No client's samples change. Held-out clients are excluded from all rounds and statistics; they
    join the trained federation and are tested then.

    Args:
        share: Fraction of the clients to hold out, drawn at random; at least one.
        clients: The clients to hold out instead, by number or by name (in quotes if the name is a
            number). The name of a natural client, such as a hospital, selects all clients with
            samples of it.
        by: Unit of the draw: single clients, or each ``domain`` with all its clients (one domain if
            no ``share`` is given).
        validation: Fraction of the drawn clients (or domains) that select the epochs of the tuned
            baseline and are not reported; at least one if two are drawn. Without any, the clients
            that train select them.
        seed: Seed of the draw.

    Raises:
        ValueError: A fraction is out of range, or not exactly one rule is given.
    """

    share: Annotated[float, Range("(0, 1)")] | None = None
    # Text comes first in the union, so that a quoted number is read as a name.
    clients: Sequence[str | int] | None = None
    by: Literal["client", "domain"] = "client"
    validation: Annotated[float, Range("[0, 1)")] = 0.25
    seed: int = 1

    def __post_init__(self) -> None:
        check_arguments(self)
        drawn = self.share is not None or self.by == "domain"
        require(
            drawn != bool(self.clients),
            "unseen needs a share (or by: domain), or a list of clients",
        )

    def apply(self, catalogue: Catalogue, division: Division) -> dict[str, tuple[int, ...]]:
        """Return the clients held out as ``unseen``, and those for ``validation``.

        Raises:
            ValueError: There is no such client or no domain, or no client is left to train.
        """
        if self.clients is not None:
            chosen, reserved = [self._named(one, catalogue, division) for one in self.clients], 0
        else:
            units = self._units(catalogue, division)
            rng = np.random.default_rng(derive(self.seed, "unseen"))
            count = max(1, round((self.share or 0) * len(units)))
            chosen = [units[place] for place in rng.permutation(len(units))[:count]]
            wanted = max(1, round(self.validation * count)) if self.validation else 0
            reserved = min(wanted, count - 1)
        validation = _joined(chosen[:reserved])
        unseen = tuple(c for c in _joined(chosen[reserved:]) if c not in validation)
        sizes = division.sizes
        for client in unseen:
            require(
                bool(sizes[client, [0, 2]].all()),
                f"unseen: client {client} cannot be held out, as it lacks training or test samples "
                "of its own",
            )
        left = np.delete(sizes[:, 0], [*unseen, *validation])
        require(bool(left.any()), "unseen: every client with training data is held out")
        return {"unseen": unseen, "validation": validation}

    def _units(self, catalogue: Catalogue, division: Division) -> list[tuple[int, ...]]:
        """Return the groups of clients that are held out together."""
        full = [client for client, sizes in enumerate(division.sizes) if sizes[[0, 2]].all()]
        require(bool(full), "unseen: no client has both training and test samples of its own")
        if self.by == "client":
            return [(client,) for client in full]
        held = domains_of(catalogue, division)
        require(bool(held), "unseen: by: domain needs a data set with domains; this one has none")
        domains = sorted(set().union(*(held[client] for client in full)))
        return [tuple(c for c in full if domain in held[c]) for domain in domains]

    def _named(self, who: int | str, catalogue: Catalogue, division: Division) -> tuple[int, ...]:
        count, names = len(division.holdings), client_names(catalogue, division)
        if isinstance(who, int):
            warn_of_name(who, names)
            require(0 <= who < count, f"unseen: there is no client {who}, only 0 to {count - 1}")
            return (who,)
        if who in names:
            return (names.index(who),)
        known = [*dict.fromkeys([*names, *catalogue.domain_names])]
        require(
            who in catalogue.domain_names,
            f"unseen: there is no client {who!r}, only {', '.join(known[:20]) or 'numbers'}",
        )
        domain = [*catalogue.domain_names].index(who)
        held = domains_of(catalogue, division)
        return tuple(number for number, domains in enumerate(held) if domain in domains)


def later(catalogue: Catalogue, rule: Rule) -> Division:
    """Return the division of data whose clients all join later.

    Each domain is a client; without domains there is one client. Each client is tested on a share
    of its own samples: its latest with the ``future`` protocol, random ones otherwise.
    """
    count = len(catalogue.domain_names)
    protocol: TestProtocol = "future" if rule.test_protocol == "future" else "pooled"
    whole = replace(rule, test_protocol=protocol, max_samples=None, max_train_samples=None)
    return divide(catalogue, ByDomain() if count else IID(), max(1, count), whole)


def _joined(groups: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({client for group in groups for client in group}))
