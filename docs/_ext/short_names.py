"""Resolve a name that docstrings and annotations write without its module, or as ``fl.Name``."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

HOME = r"(?:~pfl\.core\.ranges\.)?"
RANGES = {
    "[0, inf]": r"NotNegative[\1]",
    "(0, inf]": r"Positive[\1]",
    "[1, inf]": "AtLeastOne",
    "[0, 1]": "Fraction",
}


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Link to the one documented object whose name ends so; an attribute, to its class."""
    if node.get("refdomain") != "py":
        return None
    known = env.domains.python_domain.objects
    target = node["reftarget"]
    owner, _, last = target.rpartition(".")
    for ending in (f".{target}", f".{last}", f".{owner.rpartition('.')[2]}"):
        found = [name for name in known if name.endswith(ending)]
        if len(found) == 1:
            entry = known[found[0]]
            return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content)
    return None


def shorten(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    result: str | None,
) -> tuple[str, str | None] | None:
    """Write ``fl.Batch`` as ``Batch`` in a signature, and ranges by the names of their aliases."""
    if signature is None:
        return None
    signature = re.sub(r"\bfl\.", "", signature)
    for interval, alias in RANGES.items():
        written = rf"Annotated\[(\w+), {HOME}Range\(interval={re.escape(interval)}\)\]"
        signature = re.sub(rf"(?:~typing\.)?{written}", alias, signature)
    return signature, result and re.sub(r"\bfl\.", "", result)


def setup(app: Sphinx) -> dict[str, bool]:
    """Listen to references that Sphinx itself cannot resolve, and to signatures."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
