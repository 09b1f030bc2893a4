"""The help of a verb that runs on a configuration, whose own parser imports torch."""

from __future__ import annotations

import argparse

from pfl.cli import catalogue, known
from pfl.cli.configured import COMMON, CONFIG_HELP, SEED_HELP, VERBS, usage


def overview(command: str) -> str:
    """Return the help of a verb of :data:`pfl.cli.configured.VERBS`."""
    verb = VERBS[command]
    parser = argparse.ArgumentParser(
        prog=f"pfl {command}",
        usage=usage(verb.own),
        description=verb.description,
        epilog="A configuration file has the keys seed, loop, model and data; flags of the same "
        "names that follow it override it.",
    )
    for name, settings in {**verb.own, **COMMON}.items():
        parser.add_argument(name, **{k: v for k, v in settings.items() if k != "type"})
    parser.add_argument("--config", metavar="FILE", help=CONFIG_HELP)
    parser.add_argument(
        "--print_config", action="store_true", help="print the configuration and exit"
    )
    parser.add_argument("--seed", help=f"{SEED_HELP} (int, default: 42)")
    for part, kind in (("model", "methods"), ("data", "data")):
        group = parser.add_argument_group(part)
        names = ", ".join(item.name for item in catalogue.listed(kind))
        group.add_argument(f"--{part}", metavar="CLASS", help=f"known: {names}")
        group.add_argument(f"--{part}.help", metavar="CLASS", help="show the class's arguments")
        group.add_argument(f"--{part}.ARGUMENT", metavar="VALUE", help="set one of its arguments")
    group = parser.add_argument_group("loop")
    for name, what in known.loop().items():
        group.add_argument(f"--loop.{name}", metavar="VALUE", help=what.replace("%", "%%"))
    return parser.format_help()
