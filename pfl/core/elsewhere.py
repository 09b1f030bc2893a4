"""References to states on other machines: a hash, and the round of the state.

A client on another machine keeps its state there. A reference takes the state's place in the run,
its checkpoint, jobs and results. It is a state of one small tensor, so that code that stores or
moves states needs no special case.
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
    """The hash and the round of a state on another machine.

    Attributes:
        digest: Its hash, as :func:`pfl.core.state.digest` computes it.
        round: The round of the client's participation that it is from.

    Raises:
        ValueError: There is no such hash or round.
    """

    digest: Digest
    round: Round


def as_state(reference: Reference) -> State:
    """Return the small state that stands in for the referenced one."""
    octets = bytes.fromhex(reference.digest) + reference.round.to_bytes(_ROUND, "little")
    return {_KEY: torch.tensor(list(octets), dtype=torch.uint8)}


def reference_of(state: Mapping[str, Tensor]) -> Reference | None:
    """Return the reference that a state stands for; ``None`` if it is an ordinary state.

    Raises:
        ValueError: It is a damaged reference.
    """
    if _KEY not in state:
        return None
    form = {name: (value.dtype, tuple(value.shape)) for name, value in state.items()}
    if form != {_KEY: (torch.uint8, (_HASH + _ROUND,))}:
        raise ValueError(f"a reference to a state must be a hash and a round, got {form}")
    octets = bytes(state[_KEY].tolist())
    return Reference(octets[:_HASH].hex(), int.from_bytes(octets[_HASH:], "little"))


def digest_of(state: Mapping[str, Tensor]) -> str:
    """Return the hash of a state, or the one in a reference to it."""
    reference = reference_of(state)
    return digest(state) if reference is None else reference.digest
