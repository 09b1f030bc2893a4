"""The table of methods in ``docs/privacy.md``.

``python -m tests.extras.privacy.private_table`` writes it anew.
"""

import re
import warnings
from pathlib import Path

from pfl.extras.privacy.refusal import sent_extra, unsupported_reason
from pfl.testing import mlp, normed
from tests.helpers import discovery

PAGE = Path(__file__).parents[3] / "docs" / "privacy.md"
BEGIN, END = (
    "<!-- methods: python -m tests.extras.privacy.private_table -->\n",
    "<!-- end of methods -->\n",
)
HEAD = "| method | the clip covers | is not sent | with batch norms | is refused, as |\n"


def rows():
    """Yield the cells of each method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method in sorted(discovery.methods(), key=lambda kind: kind.__name__.lower()):
            yield _row(method)


def _row(method):
    module = discovery.build(method, mlp())
    server = module.server()
    if (why := unsupported_reason(module, server)) is not None:
        return method.__name__, "-", "-", "-", re.sub(r"'([^' ]+)'", r"`\1`", why)
    extra = sent_extra(module, server)
    kept = [name for name in module.extra if name not in extra]
    return method.__name__, _named((*module.shared, *extra)), _named(kept), _norms(method), "-"


def _norms(method):
    """Return how a network with batch norms can be run."""
    for buffers, told in (({}, "yes"), ({"buffers": "local"}, "`buffers: local`")):
        module = discovery.build(method, normed(), **buffers)
        if unsupported_reason(module, module.server()) is None:
            return told
    return "no"


def _named(names):
    return ", ".join(f"`{name}`" for name in names) or "-"


def table():
    lines = [f"| {' | '.join(cells)} |\n" for cells in rows()]
    return "".join([HEAD, "| --- | --- | --- | --- | --- |\n", *lines])


def written(text):
    """Return a page with the table of today."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
