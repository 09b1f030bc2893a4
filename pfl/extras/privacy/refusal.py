"""Methods that can be run privately, and the reasons why others cannot.

A private run sums the messages of clients. They may contain only differences that can be clipped:
parameters, and what the method's server declares in ``Server.summed``. The server must work with
the mean alone (``Server.merge_mean``).
"""

from __future__ import annotations

from typing import Any

from pfl.core.batch_norms import batch_norms
from pfl.core.client import ClientModule
from pfl.core.server import Server
from pfl.core.state import matches

# A server that overrides one of these sees individual uploads.
_ONE_BY_ONE = {"merge", "weights", "aggregate"}


def sent_extra(module: ClientModule, server: Server[Any]) -> tuple[str, ...]:
    """Return the names in ``extra`` that a private client sends; it keeps all others."""
    return tuple(name for name in module.extra if matches(name, server.summed))


def unsupported_reason(module: ClientModule, server: Server[Any]) -> str | None:
    """Return why a method cannot be run privately, or ``None`` if it can."""
    names, norms = module.shared_names(), batch_norms(module)
    if not names:
        return "it sends nothing, so that it is private without noise"
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name in names:
        if name in parameters or matches(name, server.summed):
            continue
        if name.rpartition(".")[0] in norms:
            return (
                f"{name!r} is a statistic of a batch norm, not a difference that can be "
                "clipped: keep such statistics with the clients (buffers: local)"
            )
        return f"{name!r} is a statistic of a client's data, not a difference that can be clipped"
    server_class = type(server)
    if server.per_client:
        return f"its server keeps each client's {names[0]!r}, but noise protects only sums"
    if _sees_each_upload(server_class):
        name = next(iter(module.extra), names[0])
        return f"its {server_class.__name__} uses {name!r} of individual uploads"
    return None


def _sees_each_upload(server_class: type[Server[Any]]) -> bool:
    """Return ``True`` if a server overrides how uploads are merged, but not ``merge_mean``."""
    for base in server_class.__mro__:
        if "merge_mean" in vars(base):
            return False
        if _ONE_BY_ONE & vars(base).keys():
            return True
    return True
