"""The help of commands with a configuration, without their parser, which imports torch."""

from __future__ import annotations

import argparse

from pfl.cli import catalogue
from pfl.cli.commands import CONFIG_HELP, SEED_HELP, Needs, commands
from pfl.cli.commands import parser as own_arguments


def overview(command: str) -> argparse.ArgumentParser:
    """Return a parser with the help of a command that reads a configuration."""
    needs = commands()[command].configuration or Needs()
    parser = own_arguments(command)
    parser.epilog = parser.epilog or (
        "A configuration file has the keys seed, loop, model and data; flags of the same names "
        "that follow it take precedence."
    )
    if needs.named:
        what = "name or import path of the method, if no configuration gives one"
        parser.add_argument("class", metavar="CLASS", nargs="?", help=what)
    parser.add_argument("--config", metavar="FILE", required=not needs.named, help=CONFIG_HELP)
    # The full usage would fill pages.
    usage = parser.format_usage().partition("usage: ")[2]
    parser.usage = f"{usage}{' ' * len(f'usage: {parser.prog} ')}[--any.key=VALUE ...]"
    if needs.loop is None:
        parser.add_argument(
            "--print_config", action="store_true", help="print the configuration and exit"
        )
        parser.add_argument("--seed", help=f"{SEED_HELP} (int, default: 42)")
    for part, kind, read in (("model", "methods", needs.model), ("data", "data", needs.data)):
        if not read:
            continue
        group = parser.add_argument_group(part)
        names = ", ".join(item.name for item in catalogue.listed(kind))
        group.add_argument(f"--{part}", metavar="CLASS", help=f"known: {names}")
        group.add_argument(f"--{part}.help", metavar="CLASS", help="show the class's arguments")
        group.add_argument(f"--{part}.ARGUMENT", metavar="VALUE", help="set one of its arguments")
    group = parser.add_argument_group("loop")
    for name in catalogue.loop_options() if needs.loop is None else needs.loop:
        what = catalogue.loop_options()[name].replace("%", "%%")
        group.add_argument(f"--loop.{name}", metavar="VALUE", help=what)
    return parser
