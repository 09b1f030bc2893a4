"""The help of a verb that runs on a configuration, built from source files.

The parser of configurations imports every class that they can name, and therefore torch; reading
the source files is enough to show the options.
"""

from __future__ import annotations

import argparse
import ast
import re

from pfl.cli.configured import COMMON, CONFIG_HELP, LOOP_DEFAULTS, SEED_HELP, VERBS, usage
from pfl.cli.outline import LOOP, Outline, Sources

_FROM_CLI = {name: str(value) for name, value in LOOP_DEFAULTS.items() if isinstance(value, str)}


def overview(command: str) -> str:
    """Return the help of a verb of :data:`pfl.cli.configured.VERBS`."""
    verb, sources = VERBS[command], Sources()
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
        known = ", ".join(item.shown for item in sources.of_kind(kind))
        group.add_argument(f"--{part}", metavar="CLASS", help=f"known: {known}")
        group.add_argument(f"--{part}.help", metavar="CLASS", help="show the class's arguments")
        group.add_argument(f"--{part}.ARGUMENT", metavar="VALUE", help="set one of its arguments")
    _add_loop(parser, sources)
    return parser.format_help()


def _add_loop(parser: argparse.ArgumentParser, sources: Sources) -> None:
    loop = sources.find(LOOP)
    if loop is None:
        return
    group, told = parser.add_argument_group("loop"), _described(loop)
    for name, kind, default in _arguments(loop, sources):
        if name != "seed":
            default = _FROM_CLI.get(name, default)
            what = f"{told[name]} ({kind}, default: {default})".replace("%", "%%")
            group.add_argument(f"--loop.{name}", metavar="VALUE", help=what)


def _arguments(item: Outline, sources: Sources) -> list[tuple[str, str, str]]:
    """Return the name, type and default of each argument of a class, as in its source."""
    (start,) = (
        n for n in item.node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"
    )
    kinds = [_spelt(a.annotation, item.module, sources) for a in start.args.args[1:]]
    names = [argument.arg for argument in start.args.args[1:]]
    return list(zip(names, kinds, map(ast.unparse, start.args.defaults), strict=True))


def _spelt(kind: ast.expr | None, module: str, sources: Sources) -> str:
    """Return a type as written, with aliases of a ``Literal`` replaced by its words."""
    text = "" if kind is None else ast.unparse(kind)

    def meant(name: re.Match[str]) -> str:
        alias = sources.alias(module, name[0])
        return name[0] if alias is None else ast.unparse(alias)

    spelt = re.sub(r"\b[A-Z]\w+\b", meant, text)
    return re.sub(r"Literal\[([^]]*)\]", lambda found: found[1].replace(", ", " | "), spelt)


def _described(item: Outline) -> dict[str, str]:
    """Return the description of each argument in a class's docstring."""
    told = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", ast.get_docstring(item.node) or "", re.M | re.S)
    lines = re.split(r"^    (?=\w)", told[1] if told else "", flags=re.M)[1:]
    return {
        name: " ".join(text.replace("``", "").split())
        for name, _, text in (line.partition(": ") for line in lines)
    }
