"""Methods that can be run privately, and the reasons why others cannot.

A private run sums the messages of clients. They may contain only differences that can be clipped:
parameters, and what the method's server declares in ``Server.summed``. The server must work with
the mean alone (``Fold.of_mean``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfl.core.batch_norms import batch_norms
from pfl.core.client import ClientModule
from pfl.core.server import Server
from pfl.core.state import entry, matches
from pfl.core.types import ClientInfo


def sent_extra(module: ClientModule, server: Server[Any]) -> tuple[str, ...]:
    """Return the names in ``extra`` that a private client sends; it keeps all others."""
    return tuple(name for name in module.extra if matches(name, server.summed))


def unsupported_reason(
    module: ClientModule, server: Server[Any], clients: Sequence[ClientInfo]
) -> str | None:
    """Return why a method cannot be run privately, or ``None`` if it can.

    Args:
        module: The method.
        server: Its server.
        clients: Information on clients with training data.
    """
    names, norms = module.shared_names(), batch_norms(module)
    if not names:
        return "it sends nothing, so that it is private without noise"
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name in names:
        if entry(module, name).is_complex():
            return f"{name!r} has complex numbers, and the noise is for real ones"
        if name in parameters or matches(name, server.summed):
            continue
        if name.rpartition(".")[0] in norms:
            return (
                f"{name!r} is a statistic of a batch norm, not a difference that can be "
                "clipped: keep such statistics with the clients (buffers: local)"
            )
        return f"{name!r} is a statistic of a client's data, not a difference that can be clipped"
    if server.per_client:
        return f"its server keeps each client's {names[0]!r}, but noise protects only sums"
    initial = {name: entry(module, name) for name in names}
    folds = server.begin(server.init(initial, clients), clients)
    if not all(fold.private for fold in folds.values()):
        name = next(iter(module.extra), names[0])
        return f"its {type(server).__name__} uses {name!r} of individual uploads"
    return None
