"""Which tests run by default (``pytest -n auto``), and which with ``pytest -n auto -m long``.

A test that is parametrised by method classes runs by default for one method of each mechanism, and
for the others only where it examines what their own code could break. A test that is long for
another reason is marked so where it stands.
"""

from __future__ import annotations

from lightning_modules.base import ClientModule

# One of each mechanism: a part stays with the client; statistics before and after training;
# distributions; a network for each client at the server; gradients of gradients; learnt mixtures.
REPRESENTATIVES = {"FedPer", "FedAS", "PFedVEM", "FedSimSup", "PerFedAvg", "FedALA"}
# What a method's own code could break, whatever loop and engines do.
OWN_PROMISES = {
    *("builds", "refuses_unknown_arguments", "refuses_wrong_values", "patterns_match"),
    *("fits_without_federation", "plans_are_declarations", "uploads_are_declared", "copies"),
    *("bytes_follow_the_formula", "broadcasts_are_read", "streams_are_left_alone"),
    *("functions_are_pure", "padding_does_not_count", "upload_changes_nothing"),
    *("servers_are_pure", "clients_are_independent", "clients_change_nothing_but_themselves"),
    *("the_server_holds_nothing_kept", "resumes", "works_on_any_device"),
    *("welcome_is_pure", "welcome_works_on_any_device"),
}


def is_long(parameters: dict) -> bool:
    """Return whether a test belongs to the long tier by its parameters."""
    kinds = [value for value in parameters.values() if isinstance(value, type)]
    others = [
        kind
        for kind in kinds
        if issubclass(kind, ClientModule)
        and kind.__module__.startswith("lightning_modules.")
        and kind.__name__ not in REPRESENTATIVES
    ]
    promise = getattr(parameters.get("promise"), "name", None)
    return bool(others) and promise not in OWN_PROMISES
