"""The configuration of a run that was started from Python, described by its objects.

It has the keys of a configuration, so that such runs are logged, listed and compared like others. A
network is described by its structure and a tensor by its shape, so nothing can be built from it;
the key ``started`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.plain import plain_value
from pfl.disk.yaml_text import dumped
from pfl.federation.identity import STARTED


def described(loop: Mapping[str, Any], module: ClientModule, data: FederatedData) -> str:
    """Return the configuration as YAML, given the arguments of the loop."""
    content = {
        STARTED: "from Python",
        "seed": loop["seed"],
        "loop": {name: plain_value(value) for name, value in loop.items() if name != "seed"},
        "model": plain_value(module),
        "data": plain_value(data),
    }
    return dumped(content)
