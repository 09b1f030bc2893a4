"""The table of methods in ``docs/privacy.md``.

``python -m tests.extras.privacy.private_table`` writes it anew.
"""

import re
import warnings
from collections import defaultdict
from pathlib import Path

from pfl.core.types import ClientInfo
from pfl.extras.privacy.refusal import sent_extra, unsupported_reason
from pfl.testing import mlp, normed
from tests.helpers import discovery

PAGE = Path(__file__).parents[3] / "docs" / "privacy.md"
BEGIN, END = (
    "<!-- methods: python -m tests.extras.privacy.private_table -->\n",
    "<!-- end of methods -->\n",
)
COVERED = (
    "| methods | the clip covers | is not sent | with batch norms |\n| --- | --- | --- | --- |\n"
)
REFUSED = "| refused | as |\n| --- | --- |\n"


def table():
    """Return a table of the methods that can be run, and one of those that are refused."""
    covered, refused = defaultdict(list), defaultdict(lambda: defaultdict(list))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method in sorted(discovery.methods(), key=lambda kind: kind.__name__.lower()):
            module = discovery.build(method, mlp())
            why = _refused(module)
            if why is None:
                covered[_covered(method, module)].append(method.__name__)
            else:
                # The name of a method's own server would part equal reasons.
                told = re.sub(r"\bits \w+Server\b", "its server", why)
                named = re.search(r"'([^' ]+)'", told)
                reason = re.sub(r"'[^' ]+'", "the entry in brackets", told)
                reason = reason.replace("'s the entry", "'s entry")
                entry = f" (`{named[1]}`)" if named else ""
                refused[reason][entry].append(method.__name__)
    lines = [f"| {', '.join(names)} | {' | '.join(cells)} |\n" for cells, names in covered.items()]
    reasons = [f"| {_by_entry(entries)} | {why} |\n" for why, entries in refused.items()]
    return "".join([COVERED, *lines, "\n", REFUSED, *reasons])


def _by_entry(entries):
    """Return the methods that are refused for one reason, by the entry that it is about."""
    return "; ".join(f"{', '.join(names)}{entry}" for entry, names in entries.items())


def _covered(method, module):
    extra = sent_extra(module, module.server())
    kept = [name for name in module.extra if name not in extra]
    return _named((*module.shared, *extra)), _named(kept), _norms(method)


def _refused(module):
    infos = [ClientInfo(client, 1, None, rounds=2) for client in range(3)]
    return unsupported_reason(module, module.server(), infos)


def _norms(method):
    """Return how a network with batch norms can be run."""
    for buffers, told in (({}, "yes"), ({"buffers": "local"}, "`buffers: local`")):
        module = discovery.build(method, normed(), **buffers)
        if _refused(module) is None:
            return told
    return "no"


def _named(names):
    return ", ".join(f"`{name}`" for name in names) or "-"


def written(text):
    """Return a page with the table of today."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
