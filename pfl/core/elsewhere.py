"""References to states on other machines: a hash, and the round that the state is from.

A client on another machine keeps its state there. Here a reference takes the state's place: in the
run, in its checkpoint, in jobs and in results. It is a state of one small tensor, so that nothing
that stores or moves states needs to know of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from pfl.core.state import digest
from pfl.core.types import State
from pfl.disk.form import STRICT

# No entry of a module has a colon in its name.
_KEY = "elsewhere:hash,round"
_HASH, _ROUND = 32, 8  # bytes
# A site finds the file of a state by its hash.
Digest: TypeAlias = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * _HASH}}}$")]
# Up to the last round that a run may have.
Round: TypeAlias = Annotated[int, Field(ge=0, lt=10**9)]


@dataclass(frozen=True, config=STRICT)
class Reference:
    """A state that lies elsewhere.

    Attributes:
        digest: Its hash, as :func:`pfl.core.state.digest` computes it.
        round: The round of the client's participation that it is from.

    Raises:
        ValueError: There is no such hash or round.
    """

    digest: Digest
    round: Round


def as_state(reference: Reference) -> State:
    """Return the small state that takes the place of the one that a reference names."""
    octets = bytes.fromhex(reference.digest) + reference.round.to_bytes(_ROUND, "little")
    return {_KEY: torch.tensor(list(octets), dtype=torch.uint8)}


def reference_of(state: Mapping[str, Tensor]) -> Reference | None:
    """Return what a state refers to; ``None`` if it is a state itself.

    Raises:
        ValueError: It is a damaged reference.
    """
    if _KEY not in state:
        return None
    form = {name: (value.dtype, tuple(value.shape)) for name, value in state.items()}
    if form != {_KEY: (torch.uint8, (_HASH + _ROUND,))}:
        raise ValueError(f"a state that lies elsewhere has a hash and a round, not {form}")
    octets = bytes(state[_KEY].tolist())
    return Reference(octets[:_HASH].hex(), int.from_bytes(octets[_HASH:], "little"))


def digest_of(state: Mapping[str, Tensor]) -> str:
    """Return the hash of a state, wherever it lies."""
    reference = reference_of(state)
    return digest(state) if reference is None else reference.digest
